"""Reconcilers make the partitions of the coming months by themselves.

Method: the last month's partitions are dropped, as if it had not been due yet, and a reconciler
goes on. How long it waits until it looks again is shortened to nothing where that is not the
question; somebody who holds the table is the test's own session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from psycopg import Connection

from faultline.events import Event
from faultline.worker.reconciler import Reconciler
from tests.stage import Stage

EVERY = "faultline.worker.reconciler.PARTITIONS_EVERY"
LATER = "faultline.worker.reconciler.PARTITIONS_LATER"
AT_ALL_TIMES = 0.0
MONTHS = """
select relname::text from pg_class join pg_inherits on inhrelid = oid
 where inhparent in ('{schema}.job'::regclass, '{schema}.attempt'::regclass) order by 1"""


def months(stage: Stage) -> list[str]:
    return [row[0] for row in stage.execute(MONTHS)]


def last_month(stage: Stage) -> list[str]:
    """Its partitions: of job and of attempt."""
    last = max(name[-7:] for name in months(stage))
    return [f"attempt_{last}", f"job_{last}"]


def drop(stage: Stage, partitions: list[str]) -> None:
    for name in partitions:
        stage.execute(f"drop table {{schema}}.{name}")
    assert not set(partitions) & set(months(stage))


def play(stage: Stage, scene: Callable[[Reconciler], Awaitable[None]]) -> list[Event]:
    """With a reconciler; what it says."""
    events: list[Event] = []

    async def run() -> None:
        reconciler = Reconciler("R", stage.url, stage.verbs, events.append)
        try:
            await scene(reconciler)
        finally:
            await reconciler.close()

    asyncio.run(run())
    return events


def test_a_month_is_made_before_it_is_needed_though_nobody_asks_for_it(stage: Stage) -> None:
    before, last = months(stage), last_month(stage)
    drop(stage, last)

    async def scene(reconciler: Reconciler) -> None:
        await reconciler.round()
        assert months(stage) == before

    assert play(stage, scene) == []


def test_a_reconciler_that_has_looked_once_looks_again_when_it_is_time(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, last = months(stage), last_month(stage)

    async def scene(reconciler: Reconciler) -> None:
        await reconciler.round()
        drop(stage, last)
        await reconciler.round()

    play(stage, scene)
    assert not set(last) & set(months(stage)), "it looks seldom"
    stage.verbs.create_partitions().run(stage.conn)
    monkeypatch.setattr(EVERY, AT_ALL_TIMES)
    play(stage, scene)
    assert months(stage) == before


def hold(stage: Stage) -> Connection[Any]:
    """Somebody has the table for himself, and nobody waits for it for long."""
    stage.execute("alter function {schema}.create_partitions set lock_timeout = '50ms'")
    holder = stage.connect(isolation="read committed")
    holder.execute("lock table only faultline.job in share update exclusive mode")
    return holder


def test_a_month_that_could_not_be_made_is_tried_again_and_not_only_after_an_hour(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LATER, AT_ALL_TIMES)
    before, last = months(stage), last_month(stage)
    drop(stage, last)
    holder = hold(stage)

    async def scene(reconciler: Reconciler) -> None:
        for _ in range(2):
            await reconciler.round()
        holder.rollback()
        await reconciler.round()
        assert months(stage) == before

    play(stage, scene)


def test_a_month_that_cannot_be_made_holds_up_no_recovery(stage: Stage) -> None:
    """What has expired is taken over first; and the next round does not try again already, which
    might wait for a lock once more."""
    last = last_month(stage)
    drop(stage, last)
    expired = [stage.running()[0] for _ in range(2)]
    holder = hold(stage)

    async def scene(reconciler: Reconciler) -> None:
        stage.expire(expired[0])
        await reconciler.round()
        assert stage.state(expired[0]) == "queued"
        holder.rollback()
        stage.expire(expired[1])
        await reconciler.round()
        assert stage.state(expired[1]) == "queued"
        assert not set(last) & set(months(stage))

    assert [event.event for event in play(stage, scene)] == ["lease_reclaimed"] * 2
