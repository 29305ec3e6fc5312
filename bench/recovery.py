"""`make bench-recovery`: how soon the leases of a lost zone are all back (a minute).

A worker claims 100,000 jobs and dies, its leases run out, and a reconciler takes them over: the
real one, round after round, on a server of its own with default durability. The same is done with
half and with twice as many leases: the time for each must not grow with their number. The last line
is one JSON object; the exit code is 0 if 100,000 are back within 10 s.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from psycopg import Connection, sql

from faultline.config import Settings
from faultline.connect import connect
from faultline.launcher import Server
from faultline.migrate import migrate
from faultline.protocol import Protocol
from faultline.worker.reconciler import Reconciler

LOST = (50_000, 100_000, 200_000)  # leases
MOST_SECONDS = 10.0  # for 100,000
CHUNK = 10_000

ENQUEUE = """select {schema}.enqueue_many('bench', array(select {schema}.new_id()
    from generate_series(1, {jobs})), (select jsonb_agg(n) from generate_series(1, {jobs}) n))"""
CLAIM = "select from {schema}.claim('lost', array(select lane from {schema}.lane), {jobs})"


def lose(conn: Connection[Any], schema: str, leases: int) -> None:
    """Have a worker claim this many jobs, and end its leases."""
    for _ in range(leases // CHUNK):
        for statement in (ENQUEUE, CLAIM):
            conn.execute(sql.SQL(statement.format(schema=schema, jobs=CHUNK)))
    conn.execute(sql.SQL(f"update {schema}.lease set expires_at = clock_timestamp()"))
    conn.execute(sql.SQL("vacuum analyze"))


async def recover(url: str, schema: str) -> float:
    """Return the seconds until a reconciler finds nothing more to take over."""
    reconciler = Reconciler("bench", url, Protocol(schema), lambda _: None)
    began = time.monotonic()
    try:
        while (await reconciler.round()).reclaimed:
            pass
    finally:
        await reconciler.close()
    return time.monotonic() - began


def main() -> int:
    """Measure on an embedded server."""
    settings = Settings.from_environment()
    seconds: dict[int, float] = {}
    with (
        Server.temporary(binaries=settings.binaries) as server,
        connect(server.url, schema=None) as conn,
    ):
        migrate(conn, settings.schema)
        for leases in LOST:
            lose(conn, settings.schema, leases)
            seconds[leases] = round(asyncio.run(recover(server.url, settings.schema)), 2)
            left = conn.execute(sql.SQL(f"select count(*) from {settings.schema}.lease")).fetchone()
            assert left == (0,), f"{left} leases are left"
            rate = round(leases / seconds[leases])
            print(f"{leases:>8,} leases: {seconds[leases]:6.2f} s, {rate:,}/s", file=sys.stderr)
            conn.execute(sql.SQL(f"truncate {settings.schema}.ready, {settings.schema}.scheduled"))
    is_met = seconds[100_000] <= MOST_SECONDS
    print(json.dumps({"seconds": seconds, "most_seconds": MOST_SECONDS, "is_met": is_met}))
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
