"""Short handlers share a task or a thread, one after the other, and none of them can tell.

Method: the part of a worker that runs handlers, on a real event loop and with real threads; no
database, since nothing here asks one. What a handler may see of its task, thread and context is
written down by the handlers themselves.
"""

from __future__ import annotations

import asyncio

from faultline.worker.endings import Completed, Failed
from faultline.worker.stretch import LOOK_SECONDS
from tests.shorts import GO, Bench, gate, numbered, seen


def test_short_handlers_run_in_one_task_in_their_order_and_each_ends_once() -> None:
    async def run() -> None:
        bench = Bench(places=2)
        attempts = bench.take("short", *numbered(1000))
        endings = await bench.until(1000)
        assert [ending.attempt for ending in endings] == attempts
        assert all(isinstance(ending, Completed) for ending in endings)
        assert [n for n, _ in seen] == list(range(1000))
        assert len({task for _, task in seen}) == 1
        assert bench.execution.running == 0
        assert bench.execution.room > 2, "they were short, and some may wait from now on"

    asyncio.run(run())


def test_no_job_sees_the_context_variables_of_another() -> None:
    async def run() -> None:
        bench = Bench()
        bench.take("leaves_a_note", *numbered(10))
        await bench.until(10)
        assert {kept for _, kept in seen} == {"clean"}

    asyncio.run(run())


def test_a_handler_that_suspends_holds_up_nobody_and_has_its_task_to_itself() -> None:
    async def run() -> None:
        bench = Bench(places=3)
        bench.take("waits", *numbered(2))
        bench.take("short", *numbered(5))
        await bench.until(5)
        assert {ending.attempt.lease.task for ending in bench.endings} == {"short"}
        assert bench.execution.running == 2
        GO["now"].set()
        await bench.until(7)
        tasks = [task for _, task in seen]
        assert len(set(tasks[:2])) == 2, "each of those that suspend has one of its own"
        assert not set(tasks[:2]) & set(tasks[2:])
        assert bench.execution.running == 0

    asyncio.run(run())


def test_a_task_that_was_cancelled_is_not_used_again() -> None:
    async def run() -> None:
        bench = Bench(places=1)
        (waiting,) = bench.take("waits", {"n": 0})
        bench.take("short", *numbered(3))
        while not seen:
            await asyncio.sleep(0)
        assert waiting.tell("cancelled", "enough")
        await bench.until(4)
        assert [type(ending).__name__ for ending in bench.endings] == [
            "Cancelled",
            *["Completed"] * 3,
        ]
        assert seen[0][1] not in [task for _, task in seen[1:]]
        assert all(task.cancelling() == 0 for _, task in seen[1:])

    asyncio.run(run())


def test_a_task_whose_handler_has_cancelled_it_for_later_is_not_used_again() -> None:
    async def run() -> None:
        bench = Bench(places=2)
        bench.take("cancels_itself", {"n": 0})
        bench.take("waits", {"n": 1})
        while len(seen) < 1:
            await asyncio.sleep(0)
        for _ in range(10):  # turns of the loop, in which a cancellation would arrive
            await asyncio.sleep(0)
        GO["now"].set()
        await bench.until(2)
        ended = {e.attempt.lease.task: type(e).__name__ for e in bench.endings}
        assert ended == {"cancels_itself": "Completed", "waits": "Completed"}

    asyncio.run(run())


def test_values_that_cannot_be_compared_hold_up_nobody() -> None:
    async def run() -> None:
        bench = Bench()
        bench.take("leaves_nonsense", *numbered(5))
        assert all(isinstance(e, Completed) for e in await bench.until(5))

    asyncio.run(run())


def test_those_in_a_shared_thread_that_were_given_up_are_not_counted_twice() -> None:
    async def run() -> None:
        bench = Bench(places=2)
        bench.take("in_a_thread", *numbered(2))
        await bench.until(2)
        seen.clear()
        attempts = bench.take("in_a_thread", {"n": 0, "long": True}, *numbered(20))
        while not seen:
            await asyncio.sleep(0)
        for attempt in attempts[1:]:
            if attempt.tell("shutdown"):
                bench.execution.abandon(attempt)
        await asyncio.sleep(2 * LOOK_SECONDS)  # then the loop looks whether the thread hangs
        gate.set()
        await bench.until(2 + 21)
        assert bench.execution.running == 0
        bench.execution.stop()

    asyncio.run(run())


def test_who_is_told_to_stop_while_waiting_is_never_called() -> None:
    async def run() -> None:
        bench = Bench(places=1)
        bench.take("waits", {"n": 0})
        second, third = bench.take("short", *numbered(2))
        while not seen:
            await asyncio.sleep(0)
        assert second.tell("cancelled", "enough")
        GO["now"].set()
        await bench.until(3)
        ended = {ending.attempt: type(ending).__name__ for ending in bench.endings}
        assert (ended[second], ended[third]) == ("Cancelled", "Completed")
        assert [n for n, _ in seen] == [0, 1]

    asyncio.run(run())


def test_one_that_fails_or_answers_among_others_gets_its_own_ending() -> None:
    async def run() -> None:
        bench = Bench()
        bench.take("short", *numbered(3))
        bench.take("fails", {"n": 7})
        bench.take("answers", {"n": 8})
        bench.take("short", {"n": "not a number"}, {"n": 9})
        endings = {e.attempt.lease.payload["n"]: e for e in await bench.until(7)}
        failed, answered, misfit = endings[7], endings[8], endings["not a number"]
        assert isinstance(failed, Failed)
        assert failed.error["message"] == "7"
        assert isinstance(answered, Completed)
        assert answered.result == 8
        assert isinstance(misfit, Failed)
        assert isinstance(endings[9], Completed)
        assert bench.execution.running == 0

    asyncio.run(run())


def test_short_sync_handlers_share_a_thread_and_no_context() -> None:
    async def run() -> None:
        bench = Bench(places=2)
        bench.take("in_a_thread", *numbered(2))
        await bench.until(2)  # from which it learns that they are short
        bench.take("in_a_thread", *numbered(100))
        await bench.until(102)
        assert len({name for _, name, _ in seen[2:]}) == 1
        assert [n for n, _, _ in seen[2:]] == list(range(100))
        assert {kept for *_, kept in seen} == {"clean"}
        assert bench.execution.running == 0
        bench.execution.stop()

    asyncio.run(run())


def test_the_time_of_a_job_in_a_shared_thread_runs_from_its_own_start() -> None:
    async def run() -> None:
        bench = Bench(places=2)
        bench.take("in_a_thread", *numbered(2))
        await bench.until(2)
        _, second = bench.take("in_a_thread", {"n": 0, "long": True}, {"n": 1})
        while len(seen) < 3:
            await asyncio.sleep(0)
        assert second.timeout_at is None or seen[-1][0] == 1, "it waits, unless it was taken back"
        gate.set()
        await bench.until(4)
        assert second.begun
        bench.execution.stop()

    asyncio.run(run())


def test_what_waits_in_a_thread_behind_a_long_handler_is_taken_back_and_run_once() -> None:
    async def run() -> None:
        bench = Bench(places=2)
        bench.take("in_a_thread", *numbered(2))
        await bench.until(2)
        seen.clear()
        payloads = [{"n": 0}, {"n": 1, "long": True}, *({"n": n} for n in range(2, 50))]
        bench.take("in_a_thread", *payloads)
        await bench.until(2 + 49)
        assert sorted(n for n, *_ in seen) == list(range(50))
        assert bench.execution.running == 1, "all but the long one have ended"
        assert not bench.events_of("handler_abandoned")
        gate.set()
        await bench.until(2 + 50)
        assert bench.execution.running == 0
        bench.execution.stop()

    asyncio.run(run())
