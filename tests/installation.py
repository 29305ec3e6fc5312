"""What is installed in a schema, seen from outside: its whole catalogue, and whether a job runs."""

from __future__ import annotations

from typing import Any

from psycopg import Connection

from faultline.protocol import Protocol

_CATALOGUE = {
    "schema": "select nspowner::regrole, nspacl, obj_description(oid, 'pg_namespace') "
    "from pg_namespace where oid = %(schema)s::regnamespace",
    "functions": "select pg_get_functiondef(oid), proowner::regrole, proacl from pg_proc "
    "where pronamespace = %(schema)s::regnamespace",
    "relations": "select relname, relkind, relpersistence, reloptions, relowner::regrole, relacl, "
    "pg_get_viewdef(oid), pg_get_partkeydef(oid) from pg_class "
    "where relnamespace = %(schema)s::regnamespace",
    "columns": "select c.relname, "
    "row_number() over (partition by attrelid order by attnum), attname, "
    "format_type(atttypid, atttypmod), attnotnull, "
    "attidentity, pg_get_expr(adbin, adrelid) from pg_attribute a "
    "join pg_class c on c.oid = attrelid "
    "left join pg_attrdef d on adrelid = attrelid and adnum = attnum "
    "where relnamespace = %(schema)s::regnamespace and attnum > 0 and not attisdropped",
    "constraints": "select conrelid::regclass, conname, pg_get_constraintdef(oid) "
    "from pg_constraint where connamespace = %(schema)s::regnamespace",
    "indexes": "select pg_get_indexdef(oid) from pg_class where relkind in ('i', 'I') "
    "and relnamespace = %(schema)s::regnamespace",
    "triggers": "select pg_get_triggerdef(t.oid), tgenabled from pg_trigger t "
    "join pg_class c on c.oid = tgrelid where relnamespace = %(schema)s::regnamespace",
}


def catalogue(conn: Connection[Any], schema: str) -> dict[str, list[str]]:
    """All there is in the schema, as text, with owners and privileges."""
    found = {}
    for what, query in _CATALOGUE.items():
        rows = conn.execute(query, {"schema": schema}).fetchall()
        found[what] = sorted(str(row) for row in rows)
        assert found[what], f"there are no {what}: the catalogue was not read"
    recorded = f"select version, name, checksum, applied_at from {schema}.migration"
    found["migrations"] = sorted(str(row) for row in conn.execute(recorded))
    return found


def schema_exists(conn: Connection[Any], schema: str) -> bool:
    row = conn.execute("select to_regnamespace(%s) is not null", (schema,)).fetchone()
    return row == (True,)


def run_one_job(conn: Connection[Any], schema: str) -> None:
    """The installation works: a job goes through it."""
    verbs = Protocol(schema)
    job_id = verbs.enqueue("work", {"n": 1}).run(conn)
    lanes = [lane.lane for lane in verbs.lanes(["default"]).run(conn)]
    [lease] = verbs.claim("A", lanes).run(conn)
    assert (lease.job_id, lease.token, lease.payload) == (job_id, 1, {"n": 1})
    assert verbs.complete([(job_id, lease.token)]).run(conn) == []
    status = verbs.status(job_id).run(conn)
    assert status is not None
    assert status.state == "succeeded"


# The newest installation as version 1 had it, where that matters to an upgrade.
AS_VERSION_1 = """
delete from {schema}.migration where version > 1;
drop index {schema}.a_paused_queue_is_found_at_once;
drop table {schema}.announcement;
alter table {schema}.job drop column payload_bytes cascade;
alter table {schema}.lane drop column counted cascade;
alter table {schema}.scheduled drop column awaits cascade;
alter table {schema}.worker drop column tasks cascade;
alter table {schema}.lease drop column renewals cascade;
alter table {schema}.attempt drop column renewals cascade;
alter table {schema}.epoch drop column relation cascade;
drop index {schema}.ended_without_success;
drop table {schema}.setting cascade;
create table {schema}.setting (
    one boolean primary key default true,
    payload_limit_bytes integer not null default 1048576,
    constraint there_is_one_row_of_settings check (one),
    constraint a_payload_limit_is_positive check (payload_limit_bytes > 0));
alter table {schema}.setting owner to {schema}_owner;
insert into {schema}.setting default values;
do $$ declare p regclass; begin
    for p in select inhrelid from pg_inherits
              where inhparent in ('{schema}.job'::regclass, '{schema}.attempt'::regclass) loop
        execute format('alter table %s reset (autovacuum_freeze_min_age, '
                       'autovacuum_vacuum_insert_scale_factor, '
                       'autovacuum_vacuum_insert_threshold)', p);
    end loop; end $$;
drop table {schema}.progress cascade;
drop type {schema}.reclaimed cascade;
drop table {schema}.step, {schema}.server_life cascade;
drop type {schema}.stale cascade;
create type {schema}.stale as (
    job_id uuid, fencing_token bigint, current_token bigint, reason text);
alter type {schema}.stale owner to {schema}_owner;
drop function {schema}.fence, {schema}.begin_step, {schema}.record_step, {schema}.commit_status,
    {schema}.raise_stale, {schema}.hold_lease;
create function {schema}.fence(job_id uuid, token bigint) returns void
language sql begin atomic select; end;
alter function {schema}.fence(uuid, bigint) owner to {schema}_owner;
drop function {schema}.renew;
create function {schema}.renew(job_ids uuid[], tokens bigint[]) returns table (
    job_id uuid, fencing_token bigint, verdict text, expires_at timestamptz, cancel_reason text)
language sql begin atomic select null::uuid, 0::bigint, '', null::timestamptz, ''; end;
alter function {schema}.renew(uuid[], bigint[]) owner to {schema}_owner;
drop function {schema}.status(uuid), {schema}.release_others, {schema}.progress, {schema}.retry,
    {schema}.reconcile;
create function {schema}.status(job_id uuid) returns table (
    state text, fencing_token bigint, attempts bigint, next_run_at timestamptz,
    finished_at timestamptz, result jsonb, error jsonb)
language sql begin atomic select 'old', 0::bigint, 0::bigint, null::timestamptz,
    null::timestamptz, null::jsonb, null::jsonb; end;
alter function {schema}.status(uuid) owner to {schema}_owner;
comment on schema {schema} is 'version 1'"""
