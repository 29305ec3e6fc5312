"""Migrations: bring an installation to the version of this package, in one transaction.

The shape (`sql/migrations`) is numbered, recorded with a checksum and never edited after a release.
Functions, views and invariants (`sql/functions`, `sql/views`, `sql/invariants`) are replaced every
time, and so are the grants (`sql/roles.sql`). Everything is rendered with the schema's name, and
the script that `faultline migrate --sql` prints is the one that `migrate` runs.

It refuses to downgrade, to touch a schema it does not know, to go on after a released migration was
edited, and to let a superuser own the functions.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from psycopg import Connection, errors, sql

from faultline import __version__
from faultline.call import translated_errors
from faultline.config import schema_name
from faultline.connect import require_server, schema_missing
from faultline.errors import MigrationRefused, SchemaMismatch

SCHEMA_VERSION: Final = 1  # the newest file in sql/migrations
OLDEST_CLIENT: Final = 1  # the oldest SCHEMA_VERSION whose client still works with this schema
ROLES: Final = ("worker", "producer", "operator", "reader")

_DEFINER = "security definer\nset search_path = {schema}, pg_catalog, pg_temp"
# A session whose first calls met empty tables would cache plans with sequential scans and keep them
# (15 → 97 µs a job). With those priced out, JIT would fire on every call (72 k → 14.6 k jobs/s).
_NO_SCANS = (
    _DEFINER + "\nset enable_seqscan = off\nset enable_hashjoin = off\nset enable_mergejoin = off"
    "\nset plan_cache_mode = force_generic_plan\nset jit = off"
)
# For verbs that read in index order.
_PINNED = _NO_SCANS + "\nset enable_bitmapscan = off"
# For verbs that look rows up by keys from an array. After a vacuum of an empty table the planner
# would rather walk that table's whole index and search the array for each row; a bitmap scan, the
# one kind left here, needs a key (see docs/decisions/0003).
_PROBING = _NO_SCANS + "\nset enable_indexscan = off\nset enable_indexonlyscan = off"


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file."""

    version: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """Of the file as written, before rendering."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def migrations() -> list[Migration]:
    """All numbered files, in order."""
    return [
        Migration(int(name.split("_")[0]), name.removesuffix(".sql"), text)
        for name, text in _files("migrations")
    ]


def fingerprint(schema: str) -> str:
    """What the installation's comment says when it is exactly this version."""
    body = "".join([_replaceable(schema), _text("roles.sql"), *(m.text for m in migrations())])
    digest = hashlib.sha256(body.encode()).hexdigest()[:16]
    return f"faultline-queue {__version__}, schema {SCHEMA_VERSION}, {digest}"


def script(schema: str, *, roles: bool = True, owner: str | None = None) -> list[str]:
    """The whole migration as SQL texts, in order; safe to run on an empty or an older database."""
    schema_name(schema)
    owner = owner or (f"{schema}_owner" if roles else None)
    steps = [_render(_LOCK, schema)]
    if roles:
        names = [f"{schema}_{role}" for role in ROLES]
        steps.append(_roles_step([*names, owner] if owner == f"{schema}_owner" else names))
    if owner:
        steps.append(_owner_step(schema, owner))
    else:
        steps.append(_NOT_A_SUPERUSER)
        steps.append(f"create schema if not exists {schema};")
    steps.append(f"set local search_path = {schema}, pg_catalog, pg_temp;")
    steps.append(_render(_RECORD_TABLE, schema))
    steps += [_migration_step(schema, migration) for migration in migrations()]
    steps.append(_replaceable(schema))
    steps.append(_render(_FIRST_EPOCH, schema))
    steps.append(f"select {schema}.create_partitions();")
    steps.append(f"revoke all on all functions in schema {schema} from public;")
    if roles:
        steps.append(_render(_text("roles.sql"), schema))
    steps.append(f"comment on schema {schema} is '{fingerprint(schema)}';")
    if owner:
        steps.append("reset role;")
    return steps


def migrate(conn: Connection[Any], schema: str, *, roles: bool = True) -> list[str]:
    """Bring the installation to this version; answers with the names of the migrations applied."""
    require_server(conn.info.server_version)
    try:
        with conn.transaction():
            # Whoever had the lock before may have changed everything: look only now, and under no
            # snapshot older than the lock.
            conn.execute("set transaction isolation level read committed")
            conn.execute(sql.SQL(_render(_LOCK, schema_name(schema))))
            applied = _inspect(conn, schema)
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


def check_client(conn: Connection[Any], schema: str) -> None:
    """Raise SchemaMismatch unless this client can work with what is installed."""
    try:
        with translated_errors(schema):
            row = conn.execute(sql.SQL(f"select * from {schema}.schema_version()")).fetchone()
    except errors.UndefinedTable as error:
        raise schema_missing(schema) from error
    installed, oldest_client = row if row is not None else (0, 0)
    if installed < SCHEMA_VERSION:
        raise SchemaMismatch(
            f"the installation in schema {schema!r} has version {installed}, this client needs "
            f"{SCHEMA_VERSION}: run `faultline migrate`"
        )
    if oldest_client > SCHEMA_VERSION:
        raise SchemaMismatch(
            f"the installation in schema {schema!r} has version {installed} and works with clients "
            f"from {oldest_client} on, this one is {SCHEMA_VERSION}: upgrade faultline-queue"
        )


def _inspect(conn: Connection[Any], schema: str) -> set[int]:
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


def _files(folder: str) -> list[tuple[str, str]]:
    found = resources.files("faultline").joinpath("sql", folder).iterdir()
    return sorted((item.name, item.read_text("utf-8")) for item in found)


def _text(name: str) -> str:
    return resources.files("faultline").joinpath("sql", name).read_text("utf-8")


def _render(text: str, schema: str) -> str:
    views = ", ".join(f"{schema}.{name[4:-4]}" for name, _ in _files("views"))
    return (
        text.replace("{pinned}", _PINNED)
        .replace("{probing}", _PROBING)
        .replace("{definer}", _DEFINER)
        .replace("{views}", f"{views}, {schema}.violations")
        .replace("{schema_version}", str(SCHEMA_VERSION))
        .replace("{oldest_client}", str(OLDEST_CLIENT))
        .replace("{schema}", schema)
    )


def _replaceable(schema: str) -> str:
    """Functions, views and the violations, in that order: what every migrate replaces."""
    parts = [text for folder in ("functions", "views") for _, text in _files(folder)]
    queries = [
        f"select '{name.removesuffix('.sql')}'::text as invariant, job_id, detail from (\n{text}) i"
        for name, text in _files("invariants")
    ]
    view = f"create or replace view {schema}.violations as\n" + "\nunion all\n".join(queries)
    return _render("\n".join([*parts, view + ";"]), schema)


def _migration_step(schema: str, migration: Migration) -> str:
    body = _render(migration.text, schema)
    return f"""do $migration$
begin
    if exists (select from {schema}.migration where version = {migration.version}) then
        return;
    end if;
    execute $body${body}$body$;
    insert into {schema}.migration (version, name, checksum)
    values ({migration.version}, '{migration.name}', '{migration.checksum}');
end $migration$;"""


def _roles_step(names: list[str]) -> str:
    """Roles belong to the whole server: another database's migrate may be making them just now."""
    array = ", ".join(f"'{name}'" for name in names)
    return f"""do $roles$
declare
    v_name text;
begin
    foreach v_name in array array[{array}] loop
        if to_regrole(v_name) is null then
            begin
                execute format('create role %I nologin', v_name);
            exception when duplicate_object or unique_violation then
                raise notice 'role % has just been made by somebody else', v_name;
            end;
        end if;
    end loop;
end $roles$;"""


def _owner_step(schema: str, owner: str) -> str:
    identifier = '"' + owner.replace('"', '""') + '"'
    literal = "'" + owner.replace("'", "''") + "'"
    step = _render(_OWNER_STEP, schema)
    return step.replace("{owner_name}", literal).replace("{owner}", identifier)


_LOCK = "select pg_advisory_xact_lock(hashtextextended('{schema}.migrate', 0));"

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

_NOT_A_SUPERUSER = """do $owner$
begin
    if (select rolsuper from pg_roles where rolname = current_user) then
        raise exception 'the functions run with their owner''s rights: without roles, migrate as '
                        'an ordinary user that owns the database';
    end if;
end $owner$;"""

# Since PostgreSQL 16 who creates a role may grant it, but is not yet able to SET ROLE to it.
# An empty schema that a superuser has prepared is handed over.
_OWNER_STEP = """do $owner$
begin
    if not pg_has_role(current_user, {owner_name}, case
               when current_setting('server_version_num')::integer >= 160000 then 'set'
               else 'member' end) then
        execute format('grant %I to %I', {owner_name}, current_user);
    end if;
end $owner$;
create schema if not exists {schema} authorization {owner};
alter schema {schema} owner to {owner};
set local role {owner};"""

_RECORD_TABLE = """create table if not exists {schema}.migration (
    version integer primary key,
    name text not null,
    checksum text not null,
    applied_at timestamptz not null default clock_timestamp()
);"""

_FIRST_EPOCH = """insert into {schema}.epoch
       (epoch, system_identifier, timeline, postmaster_started_at, seen_at)
select 0, system_identifier, {schema}.server_timeline(), pg_postmaster_start_time(),
       clock_timestamp()
  from pg_control_system()
    on conflict do nothing;"""

__all__ = [
    "ROLES",
    "SCHEMA_VERSION",
    "Migration",
    "check_client",
    "fingerprint",
    "is_current",
    "migrate",
    "migrations",
    "script",
]
