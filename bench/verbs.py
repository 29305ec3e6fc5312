"""`make bench-verbs`: what claim and complete cost inside the server, by batch size.

No client and no commit in the figure: a loop in one transaction, timed with the server's clock,
medians of five rounds on a server of its own with default durability. The last line is one JSON
object with microseconds per job. Machines differ and are noisy: compare only figures of one run.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

from psycopg import Connection, sql

from faultline.config import Settings
from faultline.connect import connect
from faultline.launcher import Server
from faultline.migrate import migrate
from proofs.stopwatch import finish

BATCHES = (1, 10, 100, 500)
ROUNDS = 5
CALLS = 10

ENQUEUE = """select {schema}.enqueue_many('bench', array(select {schema}.new_id()
    from generate_series(1, {jobs})), (select jsonb_agg(jsonb_build_object('n', n))
    from generate_series(1, {jobs}) n))"""

LOOP = """do $$
declare
    c record; v_lanes integer[] := array(select lane from {schema}.lane);
    t timestamptz; v_claim interval := '0'; v_complete interval := '0';
begin
    for i in 1..{calls} loop
        t := clock_timestamp();
        select * into strict c from {schema}.claim('bench', v_lanes, {batch});
        v_claim := v_claim + (clock_timestamp() - t);
        t := clock_timestamp();
        perform {schema}.complete(c.job_ids, c.tokens);
        v_complete := v_complete + (clock_timestamp() - t);
    end loop;
    perform set_config('bench.claim', extract(epoch from v_claim)::text, false),
            set_config('bench.complete', extract(epoch from v_complete)::text, false);
end $$"""


def measure(conn: Connection[Any], schema: str, batch: int) -> dict[str, float]:
    """Microseconds per job of each verb, the median of the rounds."""
    seen: dict[str, list[float]] = {"claim": [], "complete": []}
    for _ in range(ROUNDS):
        jobs = batch * CALLS
        conn.execute(sql.SQL(ENQUEUE.format(schema=schema, jobs=jobs)))
        conn.execute(sql.SQL("vacuum analyze"))
        conn.execute(sql.SQL(LOOP.format(schema=schema, batch=batch, calls=CALLS)))
        for verb, figures in seen.items():
            row = conn.execute("select current_setting(%s)::float8", (f"bench.{verb}",)).fetchone()
            assert row is not None
            figures.append(row[0] / jobs * 1e6)
    return {verb: round(statistics.median(figures), 1) for verb, figures in seen.items()}


def main() -> int:
    """Measure on an embedded server."""
    settings = Settings.from_environment()
    found: dict[str, object] = {"unit": "microseconds per job, inside the server"}
    with (
        Server.temporary(binaries=settings.binaries) as server,
        connect(server.url, schema=None) as conn,
    ):
        migrate(conn, settings.schema)
        measure(conn, settings.schema, 1)  # the first calls of a session plan
        for batch in BATCHES:
            found[f"batch_{batch}"] = figures = measure(conn, settings.schema, batch)
            print(f"batch {batch:>4}: {figures}", file=sys.stderr)
    finish("bench-verbs", found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
