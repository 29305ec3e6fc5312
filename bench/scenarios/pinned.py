"""A transaction that keeps its snapshot open during a long drain: nothing can be vacuumed.

A REPEATABLE READ transaction takes a snapshot before the drain and keeps it to its end. A second
connection keeps some jobs queued, in batches of 10,000, so that the worker is never without: how
many are done it reads from the server's statistics, since counting rows would read the dead ones
too. The first two seconds are the start; after them, the first and the last ten are compared, by
the times at which the attempts ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from psycopg import Connection

from bench.arena import ENQUEUE_BATCH, Arena, Ground
from bench.blocks import Say
from bench.plan import Plan
from bench.rows import Bar, Row
from bench.workers import Worker
from faultline.connect import connect

SECONDS = 60.0
START_SECONDS = 2.0
WINDOW_SECONDS = 10.0
AHEAD = 150_000  # jobs kept queued

DONE = """
select coalesce(sum(n_tup_ins), 0)::bigint from pg_stat_user_tables
 where schemaname = '{schema}' and relname like 'attempt\\_%'"""
BY_SECOND = """
select floor(extract(epoch from at - %s))::integer as second, count(*)
  from {schema}.attempt group by 1 order by 1"""
BETWEEN = """
select count(*) from {schema}.attempt
 where at >= %s + make_interval(secs => %s) and at < %s + make_interval(secs => %s)"""


def run(ground: Ground, plan: Plan, say: Say) -> list[Row]:
    """One long drain."""
    seconds, start = plan.seconds(SECONDS), plan.seconds(START_SECONDS)
    window = min(WINDOW_SECONDS, (seconds - start) / 3)
    with ground.arena() as arena:
        arena.enqueue(AHEAD)
        arena.settle()
        with snapshot(arena), feeding(arena, AHEAD) as least:
            worker = arena.worker()
            since = first_claim(arena, worker)
            time.sleep(seconds)
            worker.kill()
        counts = dict(arena.rows(BY_SECOND, since))
        first = rate(arena, since, start, start + window)
        last = rate(arena, since, seconds - window, seconds)
    say(f"  first {window:.0f} s {first:,.0f}, last {last:,.0f} jobs/s; {min(least):,} jobs ahead")
    facts = {
        "seconds": round(seconds),
        "first_per_second": round(first),
        "last_per_second": round(last),
        "fewest_jobs_ahead": min(least),
        "by_second": [counts.get(second, 0) for second in range(int(seconds))],
    }
    told = f"{last:,.0f} to {first:,.0f} jobs/s"
    what = f"REPEATABLE READ transaction open during a drain of {seconds:.0f} s"
    unit = f"of the first {window:.0f} s"
    if min(least) <= 0:
        return [
            Row("pinned", what, None, "", None, facts, "the queue ran empty: it proves nothing")
        ]
    return [Row("pinned", what, last / first, unit, Bar(least=0.85), facts, told)]


@contextmanager
def snapshot(arena: Arena) -> Iterator[None]:
    """Somebody's report, or backup, that takes its time."""
    with connect(arena.url, schema=None, autocommit=False) as conn:
        conn.execute("set transaction isolation level repeatable read")
        conn.execute("select count(*) from pg_class")
        yield
        conn.rollback()


@contextmanager
def feeding(arena: Arena, ahead: int) -> Iterator[list[int]]:
    """Keep so many jobs queued; yields how many there were, each time it looked."""
    stop, seen = threading.Event(), [ahead]
    feeder = threading.Thread(target=_feed, args=(arena, ahead, stop, seen))
    feeder.start()
    try:
        yield seen
    finally:
        stop.set()
        feeder.join()


def _feed(arena: Arena, ahead: int, stop: threading.Event, seen: list[int]) -> None:
    enqueued = ahead
    with connect(arena.url, schema=None) as conn:
        while not stop.wait(0.05):
            left = enqueued - _done(conn, arena.schema)
            seen.append(left)
            if left < ahead:
                arena.enqueue(ENQUEUE_BATCH, conn=conn)
                enqueued += ENQUEUE_BATCH


def _done(conn: Connection[Any], schema: str) -> int:
    row = conn.execute(DONE.format(schema=schema)).fetchone()
    assert row is not None
    return int(row[0])


def first_claim(arena: Arena, worker: Worker) -> Any:
    """When the worker's first job was claimed, once there is an ending."""
    arena.wait(lambda: bool(arena.value("select exists (select from {schema}.attempt)")), worker)
    return arena.value("select min(claimed_at) from {schema}.attempt")


def rate(arena: Arena, since: Any, start: float, end: float) -> float:
    """Endings a second, from one second after that moment to another."""
    return float(arena.value(BETWEEN, since, start, since, end)) / (end - start)
