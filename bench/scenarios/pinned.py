"""A transaction that keeps its snapshot open during a long drain: nothing can be vacuumed.

A REPEATABLE READ transaction takes a snapshot before the drain and keeps it to its end. All that is
drained was queued before, and nothing else is done: a second connection that enqueued meanwhile
could do so only as fast as the worker left it room, and when what was queued in advance was used
up, that would be measured. The first two seconds are the start; after them, the first and the last
ten are compared, by the times at which the attempts ended.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.arena import Arena, Ground
from bench.blocks import Say
from bench.plan import Plan
from bench.rows import Bar, Row
from bench.workers import Worker
from faultline.connect import connect

SECONDS = 60.0
START_SECONDS = 2.0
WINDOW_SECONDS = 10.0
LEAST_JOBS = 200_000
RAN_EMPTY = "the queue ran empty"
NONE_ENDED = "no job ended in the first window"
OF_LIMIT = 0.8  # no worker comes near it: enough is queued

LEFT = "select count(*) from {schema}.ready"
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
        arena.enqueue(plan.jobs)
        jobs = max(LEAST_JOBS, round(OF_LIMIT * arena.limit() * seconds))
        say(f"  {jobs:,} jobs queued …")
        arena.empty()
        arena.enqueue(jobs)
        arena.settle()
        with snapshot(arena):
            worker = arena.worker()
            since = first_claim(arena, worker)
            time.sleep(seconds)
            worker.kill()
        left = arena.value(LEFT)
        counts = dict(arena.rows(BY_SECOND, since))
        first = rate(arena, since, start, start + window)
        last = rate(arena, since, seconds - window, seconds)
    say(f"  first {window:.0f} s {first:,.0f}, last {last:,.0f} jobs/s; {left:,} jobs left")
    facts = {
        "seconds": round(seconds),
        "first_per_second": round(first),
        "last_per_second": round(last),
        "jobs_queued": jobs,
        "jobs_left": left,
        "by_second": [counts.get(second, 0) for second in range(int(seconds))],
    }
    what = f"REPEATABLE READ transaction open during a drain of {seconds:.0f} s"
    return [compared(what, f"of the first {window:.0f} s", first, last, facts)]


def compared(what: str, unit: str, first: float, last: float, facts: dict[str, Any]) -> Row:
    """Return the last rate as a share of the first, or a failed row if that says nothing."""
    if facts["jobs_left"] == 0:
        return Row("pinned", what, None, "", None, facts, skipped=RAN_EMPTY, failed=True)
    if first == 0:
        return Row("pinned", what, None, "", None, facts, skipped=NONE_ENDED, failed=True)
    told = f"{last:,.0f} to {first:,.0f} jobs/s"
    return Row("pinned", what, last / first, unit, Bar(least=0.85), facts, told)


@contextmanager
def snapshot(arena: Arena) -> Iterator[None]:
    """Somebody's report, or backup, that takes its time."""
    with connect(arena.url, schema=None, autocommit=False) as conn:
        conn.execute("set transaction isolation level repeatable read")
        conn.execute("select count(*) from pg_class")
        yield
        conn.rollback()


def first_claim(arena: Arena, worker: Worker) -> Any:
    """When the worker's first job was claimed, once there is an ending."""
    arena.wait(lambda: bool(arena.value("select exists (select from {schema}.attempt)")), worker)
    return arena.value("select min(claimed_at) from {schema}.attempt")


def rate(arena: Arena, since: Any, start: float, end: float) -> float:
    """Endings a second, from one second after that moment to another."""
    return float(arena.value(BETWEEN, since, start, since, end)) / (end - start)
