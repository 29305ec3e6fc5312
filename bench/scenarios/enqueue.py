"""Enqueueing through the public API, by a user who is only a producer.

Bulk: `task.enqueue_many`, in calls of 10,000. Single: `task.enqueue`, one after the other, against
one statement that inserts the same two rows (job and pointer) into tables of the same shape, with
no checks, no roles and no notification.

The 50 idle workers are 50 connections that LISTEN and are recorded as asleep, as workers are. No
process stands behind them: what is measured is what they cost who enqueues, not what workers then
do with the machine. How often they are notified does not depend on whether they answer. Their
blocks have turns of their own: a bare INSERT is another process of the server's, and who came after
it varied four times as much as what was to be seen.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from psycopg import sql

from bench.arena import Arena, Ground
from bench.blocks import Measured, Say, alternated
from bench.plan import Plan
from bench.rows import Bar, Row, against, paired, whole
from faultline import App
from faultline.connect import connect
from faultline.ids import Ids
from faultline.protocol import Protocol
from faultline.task import Task

CALL = 10_000  # jobs in one call of the bulk API
SINGLES = 1_000  # in a block
TURNS = 8  # of them in a round
SETTLING_SECONDS = 0.6  # before a block, of the same and not counted: see singles
IDLE = 50
NOT_SLOWER = 0.95  # equal, as far as blocks of one second can tell

BARE_TABLES = """
create schema bench;
create table bench.job (like {schema}.job including all);
create table bench.ready (like {schema}.ready including all)"""
BARE = """
with added as (
    insert into bench.job (id, created_at, lane, max_attempts, max_crashes, lease_seconds,
                           backoff_seconds, backoff_cap_seconds, task, producer, payload)
    values (%s, clock_timestamp(), 1, 5, 3, 30, 2, 300, 'noop', 'bench', %s)
    returning id, lane, lease_seconds)
insert into bench.ready (lane, job_id, lease_seconds) select lane, id, lease_seconds from added"""

ARE_GONE = "select not exists (select from pg_stat_activity where pid = any (%s))"


def run(ground: Ground, plan: Plan, say: Say) -> list[Row]:
    """Bulk, then single with nobody and with many listening."""
    with ground.arena() as arena, App(arena.producer_url, schema=arena.schema) as app:
        task = app.task(noop)
        task.enqueue_many([{}] * 1_000)
        bulk_seen = alternated(
            plan.rounds, {"bulk": lambda: bulk(arena, task, plan.jobs)}, say, "jobs/s"
        )
        alone, beside = singles(arena, task, plan, say)
    return [
        Row(
            "enqueue",
            "bulk enqueue through the producer role",
            statistics.median(bulk_seen["bulk"]),
            "jobs/s",
            None,
            {"jobs": plan.jobs, "jobs_per_second": whole(bulk_seen["bulk"])},
        ),
        Row(
            "enqueue",
            "single enqueue",
            paired(alone["ours"], alone["bare"]),
            "of a bare two-row INSERT",
            Bar(least=0.85),
            {kind: whole(figures) for kind, figures in alone.items()},
            against(alone["ours"], alone["bare"], "/s"),
        ),
        Row(
            "enqueue",
            f"single enqueue, {IDLE} idle workers listening",
            paired(beside["listening"], beside["nobody"]),
            "of that with nobody listening",
            Bar(least=NOT_SLOWER),
            {kind: whole(figures) for kind, figures in beside.items()},
            against(beside["listening"], beside["nobody"], "/s"),
        ),
    ]


async def noop() -> None:
    """Never run here."""


def bulk(arena: Arena, task: Task[[], Any], jobs: int) -> float:
    """Jobs a second, from the first call to the last answer."""
    arena.empty()
    arena.settle()
    calls: list[list[dict[str, Any]]] = [
        [{}] * min(CALL, jobs - first) for first in range(0, jobs, CALL)
    ]
    started = time.perf_counter()
    for items in calls:
        task.enqueue_many(items)
    return jobs / (time.perf_counter() - started)


def singles(arena: Arena, task: Task[[], Any], plan: Plan, say: Say) -> tuple[Measured, Measured]:
    """Enqueues a second, as it goes in a process that does nothing else: beside a bare INSERT; and
    with nobody and with many listening.

    After a block of another kind, that is, of another process of the server's, ours is moved to
    another core at each enqueue for up to half a second: nr_migrations in /proc/PID/sched says so.
    That is 275 instead of 245 us, and has to do with who was there before; so it is not counted.
    """
    count = plan.number(SINGLES)
    turns = TURNS * plan.rounds
    arena.conn.execute(sql.SQL(BARE_TABLES.format(schema=arena.schema)))

    def ours() -> float:
        return settled_rate(task.enqueue, count, plan)

    def listened() -> float:
        with idle_workers(arena, IDLE):
            return ours()

    ids = Ids()
    with connect(arena.url, schema=None) as conn:

        def bare() -> float:
            return settled_rate(lambda: conn.execute(BARE, (ids(), "{}")), count, plan)

        alone = warm_turns(arena, turns, {"bare": bare, "ours": ours}, say)
    return alone, warm_turns(arena, turns, {"nobody": ours, "listening": listened}, say)


def warm_turns(
    arena: Arena, turns: int, kinds: Mapping[str, Callable[[], float]], say: Say
) -> Measured:
    """So many of each kind, after one that counts for nothing."""
    alternated(1, kinds, lambda _: None)
    arena.settle()
    return alternated(turns, kinds, say, "enqueues/s")


def settled_rate(send: Callable[[], object], count: int, plan: Plan) -> float:
    """Calls a second, once the machine has settled."""
    settled = time.perf_counter() + min(SETTLING_SECONDS, plan.seconds(2.0))
    while time.perf_counter() < settled:
        send()
    started = time.perf_counter()
    for _ in range(count):
        send()
    return count / (time.perf_counter() - started)


@contextmanager
def idle_workers(arena: Arena, count: int) -> Iterator[None]:
    """So many sessions that listen and are known to be asleep; they are gone afterwards, since to
    end them costs the server as much as a block."""
    verbs = Protocol(arena.schema)
    sessions: list[int] = []
    with ExitStack() as stack:
        for number in range(count):
            conn = stack.enter_context(connect(arena.worker_url, schema=None))
            sessions.append(conn.info.backend_pid)
            conn.execute(sql.SQL(f"listen {arena.schema}"))
            verbs.sleep(f"idle-{number}", ["default"], 3600.0).run(conn)
        yield
        for number in range(count):
            verbs.awake(f"idle-{number}").run(conn)
    arena.wait(lambda: bool(arena.value(ARE_GONE, sessions)))
