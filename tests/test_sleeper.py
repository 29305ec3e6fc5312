"""A worker that sleeps beside many: what it makes of a word for others, when it looks by itself.

Method: moments are those of the loop's own clock; a pump on a real session, whose ears the test
plays. Whether a word calls it is the test's to say, since that is chance.
"""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from faultline.protocol import Protocol
from faultline.worker.ears import Word
from faultline.worker.session import Session
from faultline.worker.sleeper import FEW, LOOK_SECONDS, LOOKS, Sleeper
from tests.ears import asleep
from tests.stage import DEADLINE_SECONDS, Stage
from tests.told import Told, play


def looks_after(*words: int) -> list[float]:
    """At which moments a sleeper looks who is told, one word after the other, among so many."""

    async def told() -> list[float]:
        loop, seen = asyncio.get_running_loop(), list[float]()
        nobody = cast(Session, None)
        sleeper = Sleeper("A", [], Protocol(), nobody, lambda: seen.append(loop.time() - began))
        began = loop.time()
        for among in words:
            sleeper.told(among)
            sleeper.look_again()
        async with asyncio.timeout(DEADLINE_SECONDS):
            while any(look.when() > loop.time() for look in sleeper._looks):
                await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        return seen

    return asyncio.run(told())


def test_who_was_told_among_many_looks_twice_in_the_quiet_and_once_after_it() -> None:
    """Twice, so that of those who sleep somebody looks every few milliseconds."""
    for _ in range(5):
        first, second, last = looks_after(20)
        assert first <= second <= last
        assert second >= 20 * LOOK_SECONDS
        assert last >= 2 * 20 * LOOK_SECONDS, "also of a job whose commit takes a while"


def test_a_new_word_begins_anew_and_who_is_one_of_a_few_is_told_anyway() -> None:
    assert len(looks_after(20, 40)) == LOOKS
    assert looks_after(FEW) == []


def test_after_a_word_for_many_it_looks_again_by_itself(stage: Stage) -> None:
    """That word does for all that comes within a moment (see Sleeper)."""

    async def scene(pump: Told) -> None:
        pump.hears("default", among=50)
        for _ in range(2):  # by the word, if it was for him, and then
            await pump.rest()
            await pump.woken()

    play(stage, scene)


def test_of_a_word_for_others_it_makes_nothing_and_looks_later(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Word, "is_for_me", lambda word: word.among == 1)

    async def scene(pump: Told) -> None:
        waits = await pump.wait()
        stage.enqueue()
        pump.hears("default", among=50)
        assert not waits.done()
        await pump.step()
        assert pump.begun == []
        await asyncio.wait_for(waits, 10)
        await pump.step()
        assert pump.begun == [1]

    play(stage, scene)


def test_who_has_just_gone_to_sleep_looks_as_if_he_had_heard_a_word(stage: Stage) -> None:
    """One of before, that does for a job of now."""

    async def scene(pump: Told) -> None:
        stage.enqueue(notify=False)
        await pump.woken()
        await pump.step()
        assert pump.begun == [1]

    play(stage, scene, looked=False)


def test_after_an_answer_it_looks_again_by_itself_too(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Word, "is_for_me", lambda _: True)

    async def scene(pump: Told) -> None:
        for number in range(FEW):
            asleep(stage, worker=f"W{number}")
        waits = await pump.listen()
        stage.enqueue()
        await asyncio.wait_for(waits, 10)
        for _ in range(2):
            await pump.rest()
            await pump.woken()

    play(stage, scene, listens=True)
