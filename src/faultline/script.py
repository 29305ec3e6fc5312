"""The installation as a script: what is in `sql/`, rendered with a schema's name, in order.

The shape (`sql/migrations`) is numbered, recorded with a checksum and never edited after a release.
Functions, views and invariants (`sql/functions`, `sql/views`, `sql/invariants`) are replaced every
time, and so are the grants (`sql/roles.sql`). What `faultline migrate --sql` prints is what
`migrate` runs. Nothing here has a connection.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources
from typing import Final

from faultline import __version__
from faultline.config import schema_name

SCHEMA_VERSION: Final = 13  # the newest file in sql/migrations
OLDEST_CLIENT: Final = 3  # the oldest SCHEMA_VERSION whose client still works with this schema
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
# For the one that takes one row, in index order, and has no other choice: each clause costs it 1 to
# 2 µs. A single enqueue has none at all (see docs/decisions/0019).
_SINGLE = (
    _DEFINER + "\nset enable_seqscan = off\nset plan_cache_mode = force_generic_plan"
    "\nset enable_bitmapscan = off"
)
# For verbs that look rows up by keys from an array. After a vacuum of an empty table the planner
# would rather walk that table's whole index and search the array for each row; a bitmap scan, the
# one kind left here, needs a key (see docs/decisions/0003).
_PROBING = _NO_SCANS + "\nset enable_indexscan = off\nset enable_indexonlyscan = off"
# For verbs that end many attempts at once: a transaction that holds one of the leases, and may do
# so until that runs out, must not hold up the others.
_SETTLING = _PROBING + "\nset lock_timeout = '1s'"


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


def invariants() -> list[str]:
    """The names of what must hold of every job."""
    return [name.removesuffix(".sql") for name, _ in _files("invariants")]


def fingerprint(schema: str) -> str:
    """What the installation's comment says when it is exactly this version."""
    body = "".join([_replaceable(schema), _text("roles.sql"), *(m.text for m in migrations())])
    digest = hashlib.sha256(body.encode()).hexdigest()[:16]
    return f"faultline-queue {__version__}, schema {SCHEMA_VERSION}, {digest}"


def script(schema: str, *, roles: bool = True, owner: str | None = None) -> list[str]:
    """The whole migration as SQL texts, in order; safe to run on an empty or an older database."""
    schema_name(schema)
    owner = owner or (f"{schema}_owner" if roles else None)
    steps = [lock(schema, wait="10s"), LOCK_TIMEOUT]
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
    steps.append(f"revoke all on all functions in schema {schema} from public;")
    if roles:
        steps.append(_render(_text("roles.sql"), schema))
    steps.append(f"select {schema}.create_partitions();")  # late: it bounds what follows
    steps.append(f"comment on schema {schema} is '{fingerprint(schema)}';")
    if owner:
        steps.append("reset role;")
    return steps


def lock(schema: str, *, wait: str = "500ms") -> str:
    """What keeps two migrates of one installation apart, until the end of the transaction.

    Any login of the database can take this lock, so the wait for it is bounded, and the error
    (55P03) names the session that holds it.
    """
    return _render(_LOCK, schema_name(schema)).replace("{wait}", wait)


def _files(folder: str) -> list[tuple[str, str]]:
    found = resources.files("faultline").joinpath("sql", folder).iterdir()
    return sorted((item.name, item.read_text("utf-8")) for item in found)


def _text(name: str) -> str:
    return resources.files("faultline").joinpath("sql", name).read_text("utf-8")


def _render(text: str, schema: str) -> str:
    views = ", ".join(f"{schema}.{name[4:-4]}" for name, _ in _files("views"))
    return (
        text.replace("{pinned}", _PINNED)
        .replace("{single}", _SINGLE)
        .replace("{probing}", _PROBING)
        .replace("{settling}", _SETTLING)
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


# Below a second, after which the server looks for deadlocks: the session in the way goes on, and
# those that wait behind a migrate do not wait for long.
LOCK_TIMEOUT: Final = "set local lock_timeout = '500ms';"

_LOCK = """set local lock_timeout = '{wait}';
do $lock$
declare
    v_key bigint := hashtextextended('{schema}.migrate', 0);
    v_holder text;
begin
    perform pg_advisory_xact_lock(v_key);
exception when lock_not_available then
    select format('process %s of user %s, application %L, since %s', a.pid, a.usename,
                  a.application_name,
                  coalesce(coalesce(a.xact_start, a.backend_start)::text, 'an unknown time'))
      into v_holder
      from pg_locks l join pg_stat_activity a on a.pid = l.pid
     where l.locktype = 'advisory' and l.granted and l.objsubid = 1
       and (l.classid::bigint << 32 | l.objid::bigint) = v_key
       and l.database = (select oid from pg_database where datname = current_database())
     limit 1;
    raise exception using
        errcode = '55P03',
        message = format('the lock of migrates of {schema} is held by %s',
                         coalesce(v_holder, 'a session that has just let go of it')),
        hint = 'Another migrate goes on, or a session keeps the lock: end it with '
               'pg_terminate_backend, then migrate again.';
end $lock$;"""

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
       (epoch, system_identifier, timeline, relation, postmaster_started_at, seen_at)
select 0, system_identifier, {schema}.server_timeline(), '{schema}.epoch'::regclass,
       pg_postmaster_start_time(), clock_timestamp()
  from pg_control_system()
    on conflict do nothing;"""
