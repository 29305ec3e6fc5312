"""`make bench-sizes`: what jobs take on disk and in the WAL, by payload (a minute).

On a server of its own with PostgreSQL's defaults, JOBS jobs are enqueued, claimed and completed in
the server, in batches of 500, once for each payload. Counted are bytes a job: of WAL, from the
server's own positions; on disk, of every table of the schema with its indexes, when all is queued
and when all has ended and was vacuumed. So a million jobs take so many megabytes. The last line is
one JSON object. Bytes hardly differ between machines; only the share of full pages in the WAL does,
which follows from how often a checkpoint is made.
"""

from __future__ import annotations

import sys
from typing import Any

from psycopg import Connection, sql

from bench.arena import LIMIT, Arena, Ground, ground
from faultline.config import Settings
from faultline.connect import connect
from proofs.stopwatch import finish

JOBS = 200_000
CHUNK = 10_000
PAYLOADS = {"20 bytes": 0, "100 bytes": 80, "1,000 bytes": 980}  # name → of filling
KEY = "an idempotency key"
SAID = ("enqueue WAL", "run WAL", "queued disk", "ended disk")

ENQUEUE = """select {schema}.enqueue_many('bench',
    array(select {schema}.new_id() from generate_series({first}, {last})),
    (select jsonb_agg(jsonb_build_object('order_id', n, 'fill', repeat('x', {fill})))
       from generate_series({first}, {last}) n),
    idempotency_keys => {keys})"""
KEYS = "array(select 'order-' || n from generate_series({first}, {last}) n)"
DISK = """select sum(pg_total_relation_size(oid))::bigint from pg_class
    where relnamespace = %s::regnamespace and relkind in ('r', 'm')"""


def wal(conn: Connection[Any]) -> int:
    """Bytes of WAL since the server was made."""
    row = conn.execute("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
    assert row is not None
    return int(row[0])


def disk(conn: Connection[Any], schema: str) -> int:
    """Bytes of the schema's tables with their indexes."""
    row = conn.execute(DISK, (schema,)).fetchone()
    assert row is not None
    return int(row[0])


def measure(arena: Arena, jobs: int, fill: int, *, keys: bool = False) -> dict[str, int]:
    """Bytes a job, of each step."""
    schema = arena.ground.schema
    with connect(arena.url, schema=schema) as conn:
        empty = disk(conn, schema)
        conn.execute("checkpoint")
        begun = wal(conn)
        for first in range(1, jobs + 1, CHUNK):
            span = {"first": first, "last": min(first + CHUNK - 1, jobs)}
            given = KEYS.format(**span) if keys else "null"
            text = ENQUEUE.format(schema=schema, fill=fill, keys=given, **span)
            conn.execute(sql.SQL(text))
        enqueued, queued = wal(conn), disk(conn, schema)
        conn.execute("checkpoint")
        before = wal(conn)
        limit = LIMIT.format(schema=schema, worker="bench", batch=500)
        conn.execute(sql.SQL(limit))
        ran = wal(conn)
        conn.execute("vacuum")
        ended = disk(conn, schema)
    found = (enqueued - begun, ran - before, queued - empty, ended - empty)
    return {said: round(size / jobs) for said, size in zip(SAID, found, strict=True)}


def sizes(here: Ground, jobs: int) -> dict[str, dict[str, int]]:
    """For each payload, and for the smallest with a key as well."""
    found = {}
    for name, fill in PAYLOADS.items():
        with here.arena() as arena:
            found[name] = measure(arena, jobs, fill)
    with here.arena() as arena:
        found[f"20 bytes and {KEY}"] = measure(arena, jobs, 0, keys=True)
    return found


def main() -> int:
    """Measure on a server of its own."""
    with ground(Settings.from_environment()) as here:
        found = sizes(here, JOBS)
    for name, figures in found.items():
        print(f"{name:>36}: {figures}", file=sys.stderr)
    finish("bench-sizes", {"unit": "bytes a job", "jobs": JOBS, "payloads": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
