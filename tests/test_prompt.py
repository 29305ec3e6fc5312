"""A claim that leaves with the word, and what it brings.

Method: a pump on a real session. In the first part the test plays its ears; in the second it hears
by itself, and a lock holds up its claim for as long as something else is looked at.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from faultline.observer import Observer
from faultline.worker.session import Unavailable
from tests.stage import BLOCKED, DEADLINE_SECONDS, Stage, until
from tests.told import Told, play

pytestmark = pytest.mark.both_servers

WAITS = f"select count(*) from {BLOCKED}"
LEASES = "select count(*) from {schema}.lease where fencing_token = 1"
PLAYED = 1  # the lease that `play` has made


def claimed(stage: Stage) -> bool:
    return bool(stage.value(LEASES) > PLAYED)


async def turns(count: int = 20) -> None:
    """So many of the loop's."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_worker_that_waits_sends_its_claim_before_the_loop_turns(stage: Stage) -> None:
    async def scene(pump: Told) -> None:
        waits = await pump.wait()
        for _ in range(3):
            stage.enqueue()
        pump.hears("default")
        until(lambda: claimed(stage), "the claim was sent, though nothing was awaited")
        await turns()
        assert waits.done(), "nobody else looks out for the answer"
        await pump.step()
        assert pump.begun == [1], "and what it brought begins before the next is asked for"
        await pump.step()
        assert pump.begun == [1, 2]

    play(stage, scene)


def test_a_worker_that_is_to_drain_claims_nothing_more_at_a_word(stage: Stage) -> None:
    async def scene(pump: Told) -> None:
        waits = await pump.wait()
        stage.enqueue()
        pump.drain()
        pump.hears("default")
        await waits
        await pump.step()
        assert not claimed(stage)

    play(stage, scene)


def test_what_a_word_brought_is_handed_back_if_its_worker_is_cancelled(stage: Stage) -> None:
    async def scene(pump: Told) -> None:
        waits = await pump.wait()
        job_id = stage.enqueue()
        pump.hears("default")
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        await pump.close()
        assert stage.state(job_id) == "queued"

    play(stage, scene)


def test_what_a_word_brought_is_handed_back_if_its_answer_is_lost(stage: Stage) -> None:
    async def scene(pump: Told) -> None:
        waits = await pump.wait()
        job_id = stage.enqueue()
        holder = stage.connect(isolation="read committed")
        holder.execute("lock table faultline.epoch in access exclusive mode")
        pump.hears("default")
        until(lambda: stage.value(WAITS) == 1, "the claim waits")
        await pump.cut()
        holder.rollback()
        until(lambda: claimed(stage), "it was claimed")
        await waits
        with pytest.raises(Unavailable) as lost:
            await pump.step()
        assert lost.value.unknown
        await pump.step()
        assert pump.begun == [2], "with the lease of `play`, of which it does not know either"
        assert stage.outcomes(job_id) == [(1, "released")]

    play(stage, scene)


def test_an_answer_to_what_a_word_has_sent_is_not_waited_for_without_end(stage: Stage) -> None:
    async def scene(pump: Told) -> None:
        waits = await pump.wait()
        stage.enqueue()
        holder = stage.connect(isolation="read committed")
        holder.execute("lock table faultline.epoch in access exclusive mode")
        pump.hears("default")
        await waits
        calmed = asyncio.ensure_future(pump.calm())  # as who is going to end the worker does
        with pytest.raises(Unavailable) as lost:
            await pump.step()
        assert lost.value.unknown
        assert not calmed.done(), "nothing is under way any more, it said too soon"
        await calmed
        holder.rollback()

    play(stage, scene)


# ── heard by itself ──────────────────────────────────────────────────────────────────────────────


class Held:
    """A claim that a pump has sent at a word; it waits for as long as this is held."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._holder = stage.connect(isolation="read committed")

    async def begin(self, pump: Told) -> asyncio.Task[None]:
        """Until it waits; the pump does, too."""
        waits = await pump.listen()
        self._holder.execute("lock table faultline.epoch in access exclusive mode")
        self.job_id = self._stage.enqueue()
        async with asyncio.timeout(10):
            while self._stage.value(WAITS) == 0:
                await asyncio.sleep(0)
        return waits

    def end(self, how: str) -> None:
        """The server ends it so."""
        self._stage.execute(f"select {how}(pid) from {BLOCKED}")

    def let_go(self) -> None:
        self._holder.rollback()


@pytest.fixture
def held(stage: Stage) -> Held:
    return Held(stage)


def test_a_job_begins_with_the_answer_and_the_pump_goes_on_after_that(stage: Stage) -> None:
    async def scene(pump: Told) -> None:
        waits = await pump.listen()
        had_its_turn: list[bool] = []
        pump.on_start = lambda _: had_its_turn.append(waits.done())
        stage.enqueue()
        await asyncio.wait_for(waits, DEADLINE_SECONDS)
        assert (pump.begun, had_its_turn) == ([1], [False])
        for _ in range(2):
            stage.enqueue()
        await pump.step()
        assert pump.begun == [1], "what was heard is not heard again"
        await pump.step()
        assert pump.begun == [1, 2]

    play(stage, scene, listens=True)


def test_a_call_takes_until_its_answer_is_there_and_not_until_somebody_has_the_time(
    stage: Stage,
) -> None:
    """Though the handler that begins with the answer blocks the loop."""
    called: list[tuple[str, float]] = []
    began_at: list[float] = []

    class Calls(Observer):
        def called(self, verb: str, seconds: float, *, failed: bool) -> None:
            assert not failed
            called.append((verb, seconds))

    async def scene(pump: Told) -> None:
        waits = await pump.listen()

        def block(over_at: float) -> None:
            until(lambda: time.monotonic() > over_at, "a handler that blocks ends")

        def start(_: object) -> None:
            began_at.append(time.monotonic())
            asyncio.get_running_loop().call_soon(block, time.monotonic() + 1.0)

        pump.on_start = start
        called.clear()
        before = time.monotonic()
        stage.enqueue()
        await asyncio.wait_for(waits, DEADLINE_SECONDS)
        await pump.step()
        ((verb, seconds),) = called
        assert verb == "claim_one"
        assert seconds <= began_at[0] - before

    play(stage, scene, listens=True, observer=Calls())


def test_until_the_answer_is_there_nothing_else_is_done(stage: Stage, held: Held) -> None:
    """It would keep a core from the server's process, which the same word has just woken."""

    async def scene(pump: Told) -> None:
        waits = await held.begin(pump)
        await turns()
        assert not waits.done()
        held.let_go()
        await asyncio.wait_for(waits, DEADLINE_SECONDS)
        assert pump.begun == [1]

    play(stage, scene, listens=True)


def test_who_has_to_go_on_before_the_answer_is_there_waits_for_it(stage: Stage, held: Held) -> None:
    async def scene(pump: Told) -> None:
        waits = await held.begin(pump)
        pump.wake()
        await asyncio.wait_for(waits, DEADLINE_SECONDS)
        step = asyncio.ensure_future(pump.step())
        await turns()
        assert not step.done()
        held.let_go()
        await asyncio.wait_for(step, DEADLINE_SECONDS)
        assert pump.begun == [1]

    play(stage, scene, listens=True)


def test_what_is_said_while_the_answer_is_awaited_is_heard_too(stage: Stage, held: Held) -> None:
    async def scene(pump: Told) -> None:
        waits = await held.begin(pump)
        for _ in range(2):
            stage.enqueue()
        await asyncio.sleep(0)
        held.let_go()
        await asyncio.wait_for(waits, DEADLINE_SECONDS)
        while sum(pump.begun) < 3:
            await pump.step()
        assert pump.begun == [1, 2]

    play(stage, scene, listens=True)


def test_a_claim_that_was_cut_off_while_nobody_awaited_it_is_looked_for(
    stage: Stage, held: Held
) -> None:
    async def scene(pump: Told) -> None:
        waits = await held.begin(pump)
        await pump.cut()
        held.let_go()
        until(lambda: claimed(stage), "it was claimed")
        await asyncio.wait_for(waits, DEADLINE_SECONDS)
        with pytest.raises(Unavailable) as lost:
            await pump.step()
        assert lost.value.unknown
        await pump.step()
        assert stage.outcomes(held.job_id) == [(1, "released")]

    play(stage, scene, listens=True)


@pytest.mark.parametrize(
    ("how", "unknown", "says"),
    [
        ("pg_terminate_backend", True, "terminating connection due to administrator command"),
        ("pg_cancel_backend", False, "canceling statement due to user request"),
    ],
)
def test_what_the_server_says_instead_of_an_answer_is_what_is_told(
    stage: Stage, held: Held, how: str, unknown: bool, says: str
) -> None:
    async def scene(pump: Told) -> None:
        waits = await held.begin(pump)
        held.end(how)
        await asyncio.wait_for(waits, DEADLINE_SECONDS)
        with pytest.raises(Unavailable, match=says) as failed:
            await pump.step()
        assert failed.value.unknown is unknown
        assert pump.begun == []
        held.let_go()
        while not pump.begun:
            await pump.step()

    play(stage, scene, listens=True)


def test_a_start_that_fails_is_told_and_what_was_claimed_is_handed_back(stage: Stage) -> None:
    async def scene(pump: Told) -> None:
        def fail(leases: object) -> None:
            pump.on_start = lambda _: None
            raise MemoryError(leases)

        waits = await pump.listen()
        pump.on_start = fail
        job_id = stage.enqueue()
        await asyncio.wait_for(waits, DEADLINE_SECONDS)
        with pytest.raises(MemoryError):
            await pump.step()
        await pump.step()
        assert pump.begun == [1, 2], "once by the answer, and again with the lease of `play`"
        assert stage.outcomes(job_id) == [(1, "released")]

    play(stage, scene, listens=True)


def test_a_suspect_is_given_away_before_it_begins(stage: Stage) -> None:
    async def scene(pump: Told) -> None:
        waits = await pump.listen()
        owners: list[str] = []
        owner = "select worker from {schema}.lease where job_id = %s"
        pump.on_start = lambda leases: owners.append(stage.value(owner, leases[0].job_id))
        stage.expire(job_id)
        assert len(stage.verbs.reclaim().run(stage.conn)) == 1
        await asyncio.wait_for(waits, DEADLINE_SECONDS)
        assert pump.begun == []
        await pump.step()
        assert owners == ["A.alone"]

    job_id, _ = stage.running("B", max_crashes=2)
    play(stage, scene, listens=True, apart="A.alone")


def test_what_has_begun_is_not_handed_back_if_its_worker_is_cancelled(stage: Stage) -> None:
    async def scene(pump: Told) -> None:
        waits = await pump.listen()

        def cancel(_: object) -> None:
            waits.cancel()

        pump.on_start = cancel
        job_id = stage.enqueue()
        await asyncio.gather(waits, return_exceptions=True)
        assert pump.begun == [1]
        await pump.close()
        assert stage.state(job_id) == "running"

    play(stage, scene, listens=True)


def test_what_has_not_begun_does_not_begin_any_more_if_its_worker_is_cancelled(
    stage: Stage,
    held: Held,
) -> None:
    async def scene(pump: Told) -> None:
        waits = await held.begin(pump)
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        closed = asyncio.ensure_future(pump.close())
        await turns()
        held.let_go()
        await closed
        assert pump.begun == []
        assert stage.state(held.job_id) == "queued"

    play(stage, scene, listens=True)
