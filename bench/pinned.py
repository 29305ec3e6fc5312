"""`python -m bench.pinned`: what dead rows cost while a snapshot is pinned (a minute).

A REPEATABLE READ transaction stays open, so that vacuum can remove nothing. Jobs are enqueued and
drained in batches of 500 with a cursor, up to so many dead rows in `ready` and in `lease`; then is
timed, in milliseconds: a batch claimed with a cursor, a batch claimed from zero (a sweep), the look
for the next expiry, a reconcile, and a compaction. The last line is one JSON object. Machines
differ and are noisy: compare only figures of one run.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

from psycopg import Connection, IsolationLevel, sql

from faultline.config import Settings
from faultline.connect import connect
from faultline.launcher import Server
from faultline.migrate import migrate

DEAD = (0, 100_000, 1_000_000)
CHUNK = 50_000
TIMES = 5

ENQUEUE = """select {schema}.enqueue_many('bench', array(select {schema}.new_id()
    from generate_series(1, {jobs})), (select jsonb_agg('{{}}'::jsonb)
    from generate_series(1, {jobs})))"""

DRAIN = """do $$
declare
    s record; v_lanes integer[] := array(select lane from {schema}.lane);
    v_ids uuid[] := '{{}}'; v_tokens bigint[] := '{{}}';
    v_cursor bigint := nullif(current_setting('bench.cursor', true), '');
begin
    loop
        select * into s from {schema}.swap(
            v_ids, v_tokens, null, 'bench', v_lanes, 500, array[v_cursor]);
        commit;
        exit when coalesce(cardinality(s.claimed_ids), 0) = 0;
        v_ids := s.claimed_ids;
        v_tokens := s.claimed_tokens;
        v_cursor := (select min(q) from unnest(s.seqs) q);
    end loop;
    perform set_config('bench.cursor', v_cursor::text, false);
end $$"""

CLAIM = """select from {schema}.claim('bench', array(select lane from {schema}.lane), 500, {cursor})
    c, {schema}.release(c.job_ids, c.tokens)"""

STEPS = {
    "claim": CLAIM.replace("{cursor}", "array[current_setting('bench.cursor')::bigint]"),
    "sweep": CLAIM.replace("{cursor}", "null"),
    "look": "select min(expires_at) from {schema}.lease",
    "reconcile": "select from {schema}.reconcile()",
    "compact": "select {schema}.compact()",
}


def median_ms(conn: Connection[Any], statement: str) -> float:
    """Of a few times; what was claimed is handed back by the statement itself."""
    seen = []
    for _ in range(TIMES):
        begun = time.perf_counter()
        conn.execute(sql.SQL(statement))
        seen.append((time.perf_counter() - begun) * 1000)
    return round(statistics.median(seen), 1)


def measure(conn: Connection[Any], schema: str, dead: int) -> dict[str, float]:
    """Each step's milliseconds with so many dead rows."""
    for _ in range(dead // CHUNK):
        conn.execute(sql.SQL(ENQUEUE.format(schema=schema, jobs=CHUNK)))
        conn.execute(sql.SQL(DRAIN.format(schema=schema)))
    conn.execute(sql.SQL(ENQUEUE.format(schema=schema, jobs=500)))
    figures = {}
    for step, statement in STEPS.items():
        if step == "compact":  # the first time is the one that finds the dead rows
            begun = time.perf_counter()
            conn.execute(sql.SQL(statement.format(schema=schema)))
            figures[step] = round((time.perf_counter() - begun) * 1000, 1)
        else:
            figures[step] = median_ms(conn, statement.format(schema=schema))
    conn.execute(sql.SQL(DRAIN.format(schema=schema)))
    return figures


def main() -> int:
    """Measure on an embedded server."""
    settings = Settings.from_environment()
    found: dict[str, object] = {"unit": "milliseconds, by dead rows"}
    with (
        Server.temporary(binaries=settings.binaries) as server,
        connect(server.url, schema=None) as conn,
        connect(server.url, schema=None) as pin,
    ):
        migrate(conn, settings.schema)
        conn.execute(sql.SQL(ENQUEUE.format(schema=settings.schema, jobs=500)))
        conn.execute(sql.SQL(DRAIN.format(schema=settings.schema)))
        pin.autocommit = False
        pin.isolation_level = IsolationLevel.REPEATABLE_READ
        pin.execute("select 1")
        for dead in DEAD:
            found[str(dead)] = figures = measure(conn, settings.schema, dead)
            print(f"{dead:>9,} dead rows: {figures}", file=sys.stderr)
        pin.rollback()
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
