"""Connections: opened with our defaults, refused in one clear sentence, checked before first use.

`connect(url)` also makes sure that this client fits the installation it is going to use;
`schema=None` is for those who are about to make one.

Nothing here keeps a connection, retries or reads the environment.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import psycopg
from psycopg import AsyncConnection, Connection, errors, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import PollingStatus
from psycopg.pq.abc import PGcancelConn
from psycopg.rows import TupleRow

from faultline import columns  # noqa: F401 - before the first connection, which would not know them
from faultline.config import DEFAULT_SCHEMA, schema_name
from faultline.errors import (
    DatabaseUnavailable,
    NotPermitted,
    SchemaMismatch,
    ServerTooOld,
)
from faultline.script import ROLES, SCHEMA_VERSION

OLDEST_SERVER = 15

# A silent partition otherwise hangs a client for ever: keepalives do not help while data is
# unacknowledged (seen: with tcp_user_timeout=3000 it fails after 3.2 s). What the URL says wins.
_DEFAULTS = {"connect_timeout": "10", "tcp_user_timeout": "3000", "application_name": "faultline"}
# How often the server looks whether the client of a call is still there. Otherwise a call that
# waits for a lock, and that its client has given up, keeps its session until it gets the lock.
CONNECTION_CHECK = "2s"
_CANCEL_SECONDS = 10
_EVENTS: dict[int, int] = {
    PollingStatus.READING: select.POLLIN,
    PollingStatus.WRITING: select.POLLOUT,
}


def connect(
    url: str, *, schema: str | None = DEFAULT_SCHEMA, autocommit: bool = True
) -> Connection[TupleRow]:
    """Open a connection, or raise DatabaseUnavailable, ServerTooOld or SchemaMismatch."""
    try:
        conn = Connection.connect(conninfo(url), autocommit=autocommit)
    except psycopg.Error as error:
        raise _unavailable(url, error) from error
    try:
        require_server(conn.info.server_version)
        if schema is not None:
            check(conn, schema)
    except BaseException:
        conn.close()
        raise
    return conn


async def aconnect(
    url: str,
    *,
    schema: str | None = DEFAULT_SCHEMA,
    autocommit: bool = True,
    kind: type[AsyncConnection[Any]] = AsyncConnection,
    on_clock: Callable[[float], None] | None = None,
) -> AsyncConnection[TupleRow]:
    """As `connect`, for asyncio; a connection of this kind. `on_clock` is told what the database's
    clock says, in seconds since 1970."""
    try:
        conn = await kind.connect(conninfo(url), autocommit=autocommit)
    except psycopg.Error as error:
        raise _unavailable(url, error) from error
    try:
        require_server(conn.info.server_version)
        if schema is not None:
            seconds = await acheck(conn, schema)
            if on_clock is not None:
                on_clock(seconds)
    except BaseException:  # also when it is cancelled
        await conn.close()
        raise
    return conn


def check(conn: Connection[Any], schema: str) -> float:
    """Refuse what this client does not fit, prepare nothing behind a pooler; one round trip.

    The session of an autocommit connection ends soon after its client has gone, see
    CONNECTION_CHECK. Returns the database's clock, in seconds since 1970.
    """
    with _no_installation(schema, conn):
        try:
            answer = conn.execute(_ask(schema, conn)).fetchone()
        except errors.InvalidParameterValue:  # a server on Windows cannot look
            conn.rollback()
            answer = conn.execute(_ask(schema)).fetchone()
    conn.rollback()
    return _checked(conn, schema, answer)


async def acheck(conn: AsyncConnection[Any], schema: str) -> float:
    """As `check`, for asyncio."""
    with _no_installation(schema, conn):
        try:
            answer = await (await conn.execute(_ask(schema, conn))).fetchone()
        except errors.InvalidParameterValue:
            await conn.rollback()
            answer = await (await conn.execute(_ask(schema))).fetchone()
    await conn.rollback()
    return _checked(conn, schema, answer)


def keep_from_children(conn: Connection[Any] | AsyncConnection[Any]) -> None:
    """Have a process that is forked from this one give up its copy of the connection's socket."""
    _kept.add(conn)


def _after_fork() -> None:
    """Close the copies: by their numbers, since libpq would tell the server that this is the end.

    The numbers then lead to nowhere, so that no file of the child's gets one of them.
    """
    if not _kept:
        return
    nowhere = os.open(os.devnull, os.O_RDWR)
    for conn in list(_kept):
        with suppress(psycopg.Error, OSError):  # closed already
            os.dup2(nowhere, conn.pgconn.socket, inheritable=False)
    os.close(nowhere)
    _kept.clear()


_kept: weakref.WeakSet[Connection[Any] | AsyncConnection[Any]] = weakref.WeakSet()
os.register_at_fork(after_in_child=_after_fork)


def pooled(conn: Connection[Any] | AsyncConnection[Any]) -> bool:
    """Whether a pooler such as PgBouncer stands between: LISTEN then needs a URL of its own."""
    return conn.prepare_threshold is None


def require_server(version: int) -> None:
    """Refuse a server before PostgreSQL 15; `version` is libpq's number, e.g. 150018."""
    if version < OLDEST_SERVER * 10_000:
        raise ServerTooOld(
            f"the server is PostgreSQL {version // 10_000}; Faultline needs {OLDEST_SERVER} or "
            "newer: upgrade the server, or use the embedded one (faultline db start)"
        )


def require_schema(schema: str, installed: tuple[int, int] | None) -> None:
    """Refuse an installation that this client does not fit: (its version, its oldest client)."""
    version, oldest_client = installed or (0, 0)
    if version < SCHEMA_VERSION:
        raise SchemaMismatch(
            f"the installation in schema {schema!r} has version {version}, this client needs "
            f"{SCHEMA_VERSION}: run `faultline migrate`"
        )
    if oldest_client > SCHEMA_VERSION:
        raise SchemaMismatch(
            f"the installation in schema {schema!r} has version {version} and works with clients "
            f"from {oldest_client} on, this one is {SCHEMA_VERSION}: upgrade faultline-queue"
        )


def schema_missing(schema: str) -> SchemaMismatch:
    """The error for a database that has no installation, or one too old to ask."""
    return SchemaMismatch(
        f"there is no Faultline installation in schema {schema!r} of this database, or not one "
        "of this version: run `faultline migrate` (FAULTLINE_SCHEMA names another schema)"
    )


def _ask(schema: str, conn: Connection[Any] | AsyncConnection[Any] | None = None) -> sql.SQL:
    """The question, which also sets the session's check of this connection, if there is one.

    Behind a pooler that is local to the question, since the session is not ours. A value of the
    user's own is kept.
    """
    setting = "null"
    if conn is not None:
        setting = (
            "case current_setting('client_connection_check_interval') when '0' then "
            f"set_config('client_connection_check_interval', '{CONNECTION_CHECK}', "
            f"pg_backend_pid() <> {conn.info.backend_pid}) end"
        )
    return sql.SQL(
        "select version, oldest_client, pg_backend_pid(), "
        "extract(epoch from clock_timestamp())::float8, "
        f"{setting} from {schema_name(schema)}.schema_version()"
    )


def _checked(
    conn: Connection[Any] | AsyncConnection[Any], schema: str, answer: tuple[Any, ...] | None
) -> float:
    version, oldest_client, backend_pid, clock_seconds, _ = answer or (0, 0, 0, 0.0, None)
    require_schema(schema, (version, oldest_client))
    if backend_pid != conn.info.backend_pid:
        # A pooler: the next transaction may run in another session, which knows no statement.
        conn.prepare_threshold = None
    return float(clock_seconds)


@contextmanager
def _no_installation(schema: str, conn: Connection[Any] | AsyncConnection[Any]) -> Iterator[None]:
    try:
        yield
    except (errors.InvalidSchemaName, errors.UndefinedFunction, errors.UndefinedColumn) as error:
        raise schema_missing(schema) from error
    except errors.InsufficientPrivilege as error:
        roles = [f"{schema}_{role}" for role in ROLES]
        raise NotPermitted(conn.info.user, "anything", schema, roles) from error


def readable_url(url: str) -> dict[str, Any]:
    """The parts of a URL; one that cannot be read is refused without repeating any of it.

    libpq quotes what it could not read, and takes the rest of a password with an @ or / in it for
    the host or the database: that may be the password.
    """
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        given = {"host": "?@"}
    if any("@" in str(given.get(part) or "")[1:] for part in ("host", "dbname")):
        raise DatabaseUnavailable(
            "the database URL cannot be read: it should look like "
            "postgresql://user:password@host:5432/database, with special characters as %XX"
        )
    return given


def conninfo(url: str) -> str:
    """The URL with our defaults; what it says itself wins."""
    return make_conninfo("", **{**_DEFAULTS, **readable_url(url)})


def _unavailable(url: str, error: psycopg.Error) -> DatabaseUnavailable:
    """One sentence with the server's own words; libpq gives no SQLSTATE for a failed connection."""
    given: dict[str, Any] = conninfo_to_dict(url)
    where = f"{given.get('host') or 'the local socket'}:{given.get('port') or 5432}"
    if error.pgconn is not None and (error.pgconn.used_password or error.pgconn.needs_password):
        return DatabaseUnavailable(
            f"PostgreSQL at {where} refused user {given.get('user')!r} ({_first_line(error)}): "
            "unless that says why, check user, password and database name in FAULTLINE_DATABASE_URL"
        )
    return DatabaseUnavailable(
        f"no connection to PostgreSQL at {where} ({_first_line(error)}): check "
        "FAULTLINE_DATABASE_URL, or start the embedded server with `faultline db start`"
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def sever(conn: Connection[Any] | AsyncConnection[Any]) -> None:
    """Cut the connection, whoever is using it just now, in whatever thread."""
    with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(conn.fileno())) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)


def abort(conn: Connection[Any] | AsyncConnection[Any]) -> None:
    """Cut the connection, and have the server give up at once what it is doing for it.

    A server that is busy would not notice for a long time, and keep the rows locked that the
    transaction has written. Asking it may take as long as the network does, so a thread asks.
    """
    with suppress(psycopg.Error):
        cancel: Callable[[], None]
        if psycopg.capabilities.has_cancel_safe():
            cancel = partial(_cancel, conn.pgconn.cancel_conn())
        else:
            cancel = conn.pgconn.get_cancel().cancel
        sever(conn)
        threading.Thread(target=_quietly, args=(cancel,), daemon=True).start()


def _quietly(act: Callable[[], None]) -> None:
    with suppress(psycopg.Error, OSError):
        act()


def _cancel(request: PGcancelConn) -> None:
    """Without ever waiting in libpq, as of its version 17: psycopg calls the older PQcancel with
    the interpreter's lock held, and a peer that does not answer stops the whole process."""
    request.start()
    while (wants := request.poll()) in _EVENTS:
        poll = select.poll()
        poll.register(request.socket, _EVENTS[wants])
        if not poll.poll(_CANCEL_SECONDS * 1000):
            break
    request.finish()
