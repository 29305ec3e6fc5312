"""Migrations: bring an installation to the version of this package, in one transaction.

`script` says what is run; this module looks at what is there, decides, and runs it. It refuses to
downgrade, to touch a schema it does not know, to go on after a released migration was edited, to
let a superuser own the functions, and to store JSON in a database that is not UTF8.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from psycopg import Connection, errors, sql

from faultline.connect import require_server
from faultline.errors import MigrationRefused
from faultline.script import SCHEMA_VERSION, fingerprint, lock, migrations, script

TRIES = 40  # about a minute
PAUSE_SECONDS = 1.0  # between two tries, for whoever had to wait behind the last one


def migrate(
    conn: Connection[Any],
    schema: str,
    *,
    roles: bool = True,
    tries: int = TRIES,
    on_wait: Callable[[], None] = lambda: None,
) -> list[str]:
    """Bring the installation to this version; answers with the names of the migrations applied.

    A lock that somebody holds for long, a backup or a transaction that was left open, is not waited
    for: workers would have to wait behind us, and lose their leases. It is tried again instead, so
    often; `on_wait` is told the first time.
    """
    require_server(conn.info.server_version)
    if (encoding := conn.info.parameter_status("server_encoding")) != "UTF8":
        raise MigrationRefused(
            f"database {conn.info.dbname!r} is encoded in {encoding}, and JSON can be stored whole "
            "only in UTF8: make another (create database jobs encoding 'UTF8' template template0)"
        )
    for number in range(1, tries):
        try:
            return _migrate(conn, schema, roles)
        except errors.LockNotAvailable:
            if number == 1:
                on_wait()
            time.sleep(PAUSE_SECONDS)
    try:
        return _migrate(conn, schema, roles)
    except errors.LockNotAvailable as error:
        raise MigrationRefused(
            f"somebody holds what has to be changed ({error.diag.message_primary}), a backup "
            "perhaps or a transaction that was left open (pg_stat_activity): nothing was changed, "
            "try again when it has ended"
        ) from error


def _migrate(conn: Connection[Any], schema: str, roles: bool) -> list[str]:
    """One try."""
    try:
        with conn.transaction():
            # Whoever had the lock before may have changed everything: look only now, and under no
            # snapshot older than the lock.
            conn.execute("set transaction isolation level read committed")
            conn.execute(sql.SQL(lock(schema)))
            applied = inspect(conn, schema)
            for step in script(schema, roles=roles, owner=_owner(conn, schema, roles)):
                conn.execute(sql.SQL(step))
    except errors.InsufficientPrivilege as error:
        raise MigrationRefused(
            f"user {conn.info.user!r} may not migrate ({error.diag.message_primary}): connect as "
            "a superuser or the database's owner with CREATEROLE, or use --no-roles to do without "
            "roles"
        ) from error
    return [m.name for m in migrations() if m.version not in applied]


def is_current(conn: Connection[Any], schema: str) -> bool:
    """Whether a migrate would change nothing."""
    row = conn.execute(
        "select obj_description(to_regnamespace(%s), 'pg_namespace')", (schema,)
    ).fetchone()
    return row is not None and row[0] == fingerprint(schema)


def inspect(conn: Connection[Any], schema: str) -> set[int]:
    """The versions applied so far, or a refusal to go on."""
    if conn.execute(_IS_A_KEYWORD, (schema,)).fetchone() == (True,):
        raise MigrationRefused(
            f"schema name {schema!r} is a word of SQL: choose another one with FAULTLINE_SCHEMA"
        )
    found = conn.execute(_WHAT_IS_THERE, (schema,)).fetchone()
    if found is None or found == (False, True):
        return set()
    if found == (False, False):
        raise MigrationRefused(
            f"schema {schema!r} exists and is not a Faultline installation: choose another name "
            "with FAULTLINE_SCHEMA"
        )
    try:
        applied = dict(
            conn.execute(sql.SQL(f"select version, checksum from {schema}.migration")).fetchall()
        )
    except errors.InsufficientPrivilege as error:
        raise MigrationRefused(
            f"user {conn.info.user!r} may not read {schema}.migration: connect as the user that "
            "installed it, or as a superuser"
        ) from error
    known = {m.version: m for m in migrations()}
    if newer := sorted(applied.keys() - known.keys()):
        raise MigrationRefused(
            f"the installation in schema {schema!r} has version {newer[-1]}, this package only "
            f"knows {SCHEMA_VERSION}: upgrade faultline-queue instead"
        )
    for version, checksum in applied.items():
        if known[version].checksum != checksum:
            raise MigrationRefused(
                f"migration {known[version].name} was changed after it was applied: a released "
                "migration is never edited; add a new one"
            )
    return set(applied)


def _owner(conn: Connection[Any], schema: str, roles: bool) -> str | None:
    """Who shall own the installation: whoever does already, but never a superuser.

    None is the user migrating now, who is none.
    """
    row = conn.execute(_WHO_OWNS, (schema,)).fetchone()
    superuser, owner = row if row is not None else (False, None)
    if superuser and not roles and owner is None:
        raise MigrationRefused(
            f"user {conn.info.user!r} is a superuser, and the functions run with their owner's "
            "rights: leave out --no-roles, or migrate as an ordinary user that owns the database"
        )
    return owner or (f"{schema}_owner" if roles else None)


_IS_A_KEYWORD = """
select exists (select from pg_get_keywords() where word = %s and catcode in ('R', 'T'))"""

# Is it an installation (its table of migrations has our columns)? Is it empty? No row: no schema.
_WHAT_IS_THERE = """
select (select count(*) = 2 from pg_class c join pg_attribute a on a.attrelid = c.oid
         where c.relnamespace = n.oid and c.relname = 'migration'
           and a.attname in ('version', 'checksum')),
       not exists (select from pg_class where relnamespace = n.oid)
       and not exists (select from pg_proc where pronamespace = n.oid)
       and not exists (select from pg_type where typnamespace = n.oid)
  from pg_namespace n where n.nspname = %s"""

_WHO_OWNS = """
select (select rolsuper from pg_roles where rolname = current_user),
       (select r.rolname::text from pg_namespace n join pg_roles r on r.oid = n.nspowner
         where n.nspname = %s and not r.rolsuper)"""
