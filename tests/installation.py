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
    "columns": "select c.relname, attnum, attname, format_type(atttypid, atttypmod), attnotnull, "
    "attidentity, pg_get_expr(adbin, adrelid) from pg_attribute a "
    "join pg_class c on c.oid = attrelid "
    "left join pg_attrdef d on adrelid = attrelid and adnum = attnum "
    "where relnamespace = %(schema)s::regnamespace and attnum > 0",
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
