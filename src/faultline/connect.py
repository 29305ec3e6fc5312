"""Connections: opened with our defaults, refused in one clear sentence, checked before first use.

Nothing here keeps a connection, retries or reads the environment.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow

from faultline.errors import DatabaseUnavailable, FaultlineError, SchemaMismatch, ServerTooOld

OLDEST_SERVER = 15

# A silent partition otherwise hangs a client for ever: keepalives do not help while data is
# unacknowledged (seen: with tcp_user_timeout=3000 it fails after 3.2 s). What the URL says wins.
_DEFAULTS = {"connect_timeout": "10", "tcp_user_timeout": "3000", "application_name": "faultline"}


def connect(url: str, *, autocommit: bool = True) -> Connection[TupleRow]:
    """Open a connection, or raise DatabaseUnavailable or ServerTooOld."""
    try:
        conn = Connection.connect(_conninfo(url), autocommit=autocommit)
    except psycopg.Error as error:
        raise _unavailable(url, error) from error
    try:
        require_server(conn.info.server_version)
    except FaultlineError:
        conn.close()
        raise
    return conn


async def aconnect(url: str, *, autocommit: bool = True) -> AsyncConnection[TupleRow]:
    """As `connect`, for asyncio."""
    try:
        conn = await AsyncConnection.connect(_conninfo(url), autocommit=autocommit)
    except psycopg.Error as error:
        raise _unavailable(url, error) from error
    try:
        require_server(conn.info.server_version)
    except FaultlineError:
        await conn.close()
        raise
    return conn


def require_server(version: int) -> None:
    """Refuse a server before PostgreSQL 15; `version` is libpq's number, e.g. 150018."""
    if version < OLDEST_SERVER * 10_000:
        raise ServerTooOld(
            f"the server is PostgreSQL {version // 10_000}; Faultline needs {OLDEST_SERVER} or "
            "newer: upgrade the server, or use the embedded one (faultline db start)"
        )


def schema_missing(schema: str) -> SchemaMismatch:
    """The error for a database that has no installation, or one too old to ask."""
    return SchemaMismatch(
        f"there is no Faultline installation in schema {schema!r} of this database, or not one "
        "of this version: run `faultline migrate` (FAULTLINE_SCHEMA names another schema)"
    )


def _conninfo(url: str) -> str:
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        given = {"host": "?@"}
    # libpq quotes what it could not read, and takes the rest of a password with an @ or / in it for
    # the host or the database: none of that is repeated here, since it may be the password.
    if any("@" in str(given.get(part) or "")[1:] for part in ("host", "dbname")):
        raise DatabaseUnavailable(
            "the database URL cannot be read: it should look like "
            "postgresql://user:password@host:5432/database, with special characters as %XX"
        )
    return make_conninfo("", **{**_DEFAULTS, **given})


def _unavailable(url: str, error: psycopg.Error) -> DatabaseUnavailable:
    """One sentence with the server's own words; libpq gives no SQLSTATE for a failed connection."""
    given: dict[str, Any] = conninfo_to_dict(url)
    where = f"{given.get('host') or 'the local socket'}:{given.get('port') or 5432}"
    if error.pgconn is not None and (error.pgconn.used_password or error.pgconn.needs_password):
        return DatabaseUnavailable(
            f"PostgreSQL at {where} refused user {given.get('user')!r} ({_first_line(error)}): "
            "check user, password and database name in FAULTLINE_DATABASE_URL"
        )
    return DatabaseUnavailable(
        f"no connection to PostgreSQL at {where} ({_first_line(error)}): check "
        "FAULTLINE_DATABASE_URL, or start the embedded server with `faultline db start`"
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
