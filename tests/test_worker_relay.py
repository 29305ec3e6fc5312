"""Short handlers in one task: whose turn it is, and who is stopped just when it suspends.

Method: the part of a worker that runs handlers, on a real event loop, without a database; what
comes at an awkward moment is put into the loop's queue for that moment.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

from faultline.jobs import Unreadable
from faultline.worker.attempt import Attempt
from faultline.worker.endings import Failed
from tests.shorts import GO, TELL, Bench, app, attempt_of, seen


def test_the_loop_has_its_turn_also_where_jobs_of_two_tasks_alternate() -> None:
    async def run() -> None:
        bench = Bench(places=2)
        bench.execution.take([attempt_of(("busy", "as_busy")[n % 2], {"n": n}) for n in range(40)])
        turns = 0
        while len(bench.endings) < 40:
            await asyncio.sleep(0)
            turns += 1
        assert turns > 5, "of 80 ms, each 5"

    asyncio.run(run())


def test_who_is_told_before_it_suspends_is_cancelled_then_and_only_once() -> None:
    async def run() -> None:
        bench = Bench(places=1)
        (told,) = attempts = [attempt_of("is_told_and_waits", {"n": 0})]
        TELL["now"] = lambda: told.tell("cancelled", "enough")
        bench.execution.take(attempts)
        async with asyncio.timeout(10):
            while not seen:
                await asyncio.sleep(0)
        bench.execution.interrupt(told)  # as by who told it just when it suspended
        for _ in range(5):
            await asyncio.sleep(0)
        GO["now"].set()
        await bench.until(1)
        assert seen == [(0, "cancelled")]
        assert bench.execution.running == 0

    asyncio.run(run())


def test_who_is_given_up_just_when_it_suspends_leaves_no_place_taken_and_is_stopped() -> None:
    """By a callback that was in the loop's queue before the relay began."""

    async def run() -> None:
        bench = Bench(places=1)
        (attempt,) = attempts = [attempt_of("waits", {"n": 0})]
        bench.execution.take(attempts)
        asyncio.get_running_loop().call_soon(bench.execution.abandon, attempt)
        await asyncio.sleep(0)
        assert [n for n, _ in seen] == [0]
        assert attempt.done, "given up"
        task = seen[0][1]
        async with asyncio.timeout(10):
            while not task.done():
                await asyncio.sleep(0)
        assert task.cancelling() == 1
        assert bench.execution.running == 0
        assert len(bench.endings) == 1

    asyncio.run(run())


def test_who_is_to_be_handed_back_just_when_it_suspends_is_cancelled_not_given_up() -> None:
    async def run() -> None:
        bench = Bench(places=1)
        (attempt,) = attempts = [attempt_of("waits", {"n": 0})]
        bench.execution.take(attempts)

        def hurry() -> None:
            assert attempt.tell("shutdown")
            assert attempt.running is not None, "a worker that ends gives up only what has none"

        asyncio.get_running_loop().call_soon(hurry)
        endings = await bench.until(1)
        assert type(endings[0]).__name__ == "Released"
        assert bench.execution.running == 0

    asyncio.run(run())


def test_a_payload_that_cannot_be_read_needs_no_process_of_its_own() -> None:
    async def run() -> None:
        bench = Bench()
        bench.execution._alone = cast(Any, object())  # nobody asks it anything
        lease = attempt_of("short", {"n": 0}).lease
        unreadable = lease._replace(payload=Unreadable("too deep"), last_chance=True)
        bench.execution.take([Attempt(unreadable, app.tasks["short"], time.monotonic())])
        (ending,) = await bench.until(1)
        assert isinstance(ending, Failed)
        assert ending.dead

    asyncio.run(run())
