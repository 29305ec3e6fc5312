"""A success waits for others only while a claim is near that can take it along.

Method: a pump on a real session, one step at a time. The moment that successes may wait for is made
an hour long, so that only those are written that do not wait at all.
"""

from __future__ import annotations

import asyncio

import pytest

from faultline.jobs import Lease
from faultline.observer import Observer
from tests.stage import DEADLINE_SECONDS, Stage
from tests.told import Told, play

pytestmark = pytest.mark.both_servers

LINGER = "faultline.worker.pump.LINGER_SECONDS"
HOUR = 3600.0
DONE = "select count(*) from {schema}.ledger"


class Verbs(Observer):
    """By which verbs the pump has asked the database."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def called(self, verb: str, _: float, *, failed: bool) -> None:
        assert not failed
        self.asked.append(verb)


@pytest.fixture
def an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LINGER, HOUR)


def taken(stage: Stage) -> list[Lease]:
    """A job that the pump's worker has."""
    stage.enqueue()
    return stage.claim("A")


@pytest.mark.usefixtures("an_hour")
@pytest.mark.parametrize("room", [0, 100])
@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_lone_success_of_a_worker_at_rest_does_not_wait(
    stage: Stage, room: int, is_ahead: bool
) -> None:
    async def scene(pump: Told) -> None:
        pump.room, pump.is_ahead = room, is_ahead
        pump.ends(taken(stage))
        await pump.woken()  # by nobody
        await pump.step()
        assert stage.value(DONE) == 1

    play(stage, scene)


@pytest.mark.usefixtures("an_hour")
def test_a_lone_success_does_not_wait_for_a_claim_that_nobody_has_room_for(stage: Stage) -> None:
    """There is work, but not for a worker that drains, or has all its places taken."""

    async def scene(pump: Told) -> None:
        pump.hears(None)
        pump.room = 0
        pump.ends(taken(stage))
        await pump.woken()
        await pump.step()
        assert stage.value(DONE) == 1

    play(stage, scene)


@pytest.mark.usefixtures("an_hour")
@pytest.mark.parametrize("why", ["there are enough here for now", "a claim is under way"])
def test_where_a_claim_is_near_successes_go_out_with_it_and_not_one_by_one(
    stage: Stage, why: str
) -> None:
    verbs, room = Verbs(), 100

    async def scene(pump: Told) -> None:
        is_beside = why == "a claim is under way"
        pump.hears(None)
        pump.is_ahead = not is_beside
        pump.asks_beside(room * is_beside)
        for _ in range(3):
            pump.ends(taken(stage))
            await pump.step()
        assert stage.value(DONE) == 0
        assert pump.begun == [], "nor does it claim"
        pump.is_ahead = False
        pump.asks_beside(-room * is_beside)
        verbs.asked.clear()
        await pump.step()
        assert stage.value(DONE) == 3
        assert "swap" in verbs.asked
        assert "complete" not in verbs.asked

    play(stage, scene, room, observer=verbs)


def test_a_success_that_waits_for_a_claim_is_written_soon_though_none_comes(stage: Stage) -> None:
    async def scene(pump: Told) -> None:
        pump.hears(None)
        pump.is_ahead = True
        pump.ends(taken(stage))
        async with asyncio.timeout(DEADLINE_SECONDS):
            while stage.value(DONE) == 0:
                await pump.woken()
                await pump.step()
        assert stage.value(DONE) == 1

    play(stage, scene)
