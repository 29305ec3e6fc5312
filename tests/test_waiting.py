"""What waits for a place does not wait for long, and where it may cost others a crash, not at all.

Method: the part of a worker that runs handlers, on a real event loop, without a database; one
handler holds the only place. How long a job has waited is moved in its attempt, not by sleeping.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from faultline.worker.attempt import Attempt
from faultline.worker.endings import Ending, Released
from tests.shorts import GO, Bench, attempt_of, gate, numbered, seen
from tests.stage import DEADLINE_SECONDS

LONG = 2.0  # seconds, longer than anything is to wait
HOUR = 3600.0


def play(scene: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scene, DEADLINE_SECONDS))


async def knows_short_jobs(bench: Bench) -> None:
    """From so many, which have ended."""
    bench.take("short", *numbered(100))
    await bench.until(100)
    bench.endings.clear()
    seen.clear()
    assert bench.execution.room > 100


async def held(bench: Bench) -> None:
    """Its only place is, by a thread, which nobody has waited for: nothing is to be looked at."""
    before = len(seen)
    bench.take("in_a_thread", {"n": 0, "long": True})
    while len(seen) == before:
        await asyncio.sleep(0)
    assert bench.execution.running == 1


async def let_go(bench: Bench, count: int) -> None:
    """So many have ended in all."""
    gate.set()
    await bench.until(count)
    bench.execution.stop()


def shorts(count: int, seconds_ago: float, **facts: Any) -> list[Attempt]:
    return [attempt_of("short", payload, seconds_ago, **facts) for payload in numbered(count)]


def handed_back(endings: list[Ending]) -> list[Attempt]:
    assert all(isinstance(ending, Released) and ending.reason == "no place" for ending in endings)
    return [ending.attempt for ending in endings]


def test_what_has_waited_for_long_is_handed_back_while_the_place_is_still_held() -> None:
    async def scene() -> None:
        bench = Bench(places=1)
        await held(bench)
        waiting = shorts(5, LONG)
        bench.execution.take(waiting)
        assert handed_back(await bench.until(5)) == waiting
        assert not bench.execution.waiting
        await let_go(bench, 6)

    play(scene())


def test_with_a_short_lease_it_waits_less_than_with_a_long_one() -> None:
    async def scene() -> None:
        endings: list[Ending] = []
        benches = [Bench(1, endings), Bench(1, endings)]
        for bench in benches:
            await held(bench)
        (short,) = shorts(1, seconds_ago=0.2, lease_seconds=0.4)
        (long,) = shorts(1, seconds_ago=0.5, lease_seconds=60.0)
        for bench, attempt in zip(benches, (short, long), strict=True):
            bench.execution.take([attempt])
        assert handed_back(await bench.until(2)) == [short, long]
        await let_go(bench, 4)
        benches[0].execution.stop()

    play(scene())


@pytest.mark.parametrize("together", [True, False], ids=["together", "later"])
def test_a_short_lease_does_not_wait_as_long_as_the_long_one_before_it(together: bool) -> None:
    async def scene() -> None:
        endings: list[Ending] = []
        bench, other = Bench(1, endings), Bench(1, endings)
        for one in (bench, other):
            await held(one)
        (alone,) = shorts(1, seconds_ago=0.5)
        (long,) = shorts(1, seconds_ago=0)
        (short,) = shorts(1, seconds_ago=0, lease_seconds=0.4)
        other.execution.take([alone])
        for attempts in ([long, short],) if together else ([long], [short]):
            bench.execution.take(attempts)
        assert handed_back(await bench.until(3)) == [long, short, alone]
        await let_go(bench, 5)
        other.execution.stop()

    play(scene())


def test_who_has_handed_something_back_does_not_read_ahead_until_it_knows_better() -> None:
    async def scene() -> None:
        bench = Bench(places=1)
        await knows_short_jobs(bench)
        await held(bench)
        bench.execution.take(shorts(5, LONG))
        await bench.until(5)
        assert bench.execution.room == 0
        await let_go(bench, 6)

    play(scene())


def test_what_is_looked_at_before_its_time_goes_on_waiting() -> None:
    async def scene() -> None:
        bench = Bench(places=1)
        await held(bench)
        waiting = shorts(2, seconds_ago=-HOUR)
        bench.execution.take(waiting)
        bench.execution._look_at_waiting()
        assert list(bench.execution.waiting) == waiting
        await let_go(bench, 3)
        assert not [ending for ending in bench.endings if isinstance(ending, Released)]

    play(scene())


def test_what_has_come_to_the_front_meanwhile_is_looked_at_when_its_own_time_is_over() -> None:
    async def scene() -> None:
        bench = Bench(places=1)
        await held(bench)
        first, (second,) = attempt_of("waits", {"n": 1}, -HOUR), shorts(1, 0.8)
        bench.execution.take([first, second])
        gate.set()
        while len(seen) == 1:
            await asyncio.sleep(0)
        bench.execution._look_at_waiting()  # as it was going to for the first
        assert handed_back((await bench.until(2))[1:]) == [second]
        assert not first.done, "it has had its place, and still has it"
        GO["now"].set()
        await let_go(bench, 3)

    play(scene())


def test_of_jobs_that_may_kill_their_worker_none_waits_in_the_hands_of_one() -> None:
    async def scene() -> None:
        bench = Bench(places=2)
        await knows_short_jobs(bench)
        suspects = [attempt_of("waits", payload, crashes=1) for payload in numbered(20)]
        bench.execution.take(suspects)
        assert handed_back(bench.endings) == suspects[2:]
        while len(seen) < 2:
            await asyncio.sleep(0)
        assert bench.execution.room == 0, "and it claims no more than it has places"
        GO["now"].set()
        await bench.until(20)
        assert bench.execution.room == 2
        bench.take("short", *numbered(20))
        await bench.until(40)
        assert bench.execution.room > 2, "with others it reads ahead again"

    play(scene())
