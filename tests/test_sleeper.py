"""A worker that sleeps beside many: what it makes of a word for others, when it looks by itself.

Method: how often it is going to look is read from the timers of its loop; and a pump on a real
session, whose ears the test plays. Whether a word calls it is the test's to say, since that is
chance.
"""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from faultline.protocol import Protocol
from faultline.worker.ears import Word
from faultline.worker.session import Session
from faultline.worker.sleeper import FEW, LAST_SECONDS, LATE_SECONDS, LOOK_SECONDS, Sleeper, moments
from tests.ears import asleep
from tests.stage import DEADLINE_SECONDS, Stage
from tests.told import Told, play


def looks_after(*words: Word) -> int:
    """How often a sleeper is going to look who is told so, one word after the other."""

    async def told() -> int:
        sleeper = Sleeper("A", [], Protocol(), cast(Session, None), lambda: None)
        for word in words:
            sleeper.told(*word)
            sleeper.look_again()
        timers = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
        return sum(not timer.cancelled() for timer in timers)

    return asyncio.run(told())


def test_who_was_told_among_many_looks_twice_in_the_quiet_and_once_soon_after_it() -> None:
    """Twice, so that of those who sleep somebody looks every few milliseconds; and later, for a job
    whose commit takes a while."""
    for among in (5, 20, 80) * 5:
        span = among * LOOK_SECONDS
        first, second, late, last = moments(span)
        assert 0 <= first <= span <= second <= 2 * span
        assert 2 * span <= late <= 2 * span + max(span, LATE_SECONDS)
        assert 2 * span <= last <= 2 * span + LAST_SECONDS


def test_those_who_heard_one_word_do_not_look_for_the_last_time_all_at_once() -> None:
    """Their polls, five seconds after that, would come together, and a job that is committed late
    wait for these."""
    last = sorted(moments(0.1)[-1] for _ in range(100))
    assert last[50] - last[0] > 1
    assert last[-1] - last[50] > 1


def test_a_new_word_begins_anew_and_who_is_one_of_a_few_is_told_anyway() -> None:
    once = looks_after(Word("default", 20))
    assert looks_after(Word("default", 20), Word("default", 40)) == once > 0
    assert looks_after(Word("default", FEW)) == 0


@pytest.mark.parametrize("later", [Word("mail", 5), Word("default")], ids=["another queue", "all"])
def test_a_word_that_is_no_news_of_what_many_were_told_takes_no_look_back(later: Word) -> None:
    many = Word("default", 50)
    assert looks_after(many, later) == looks_after(many) + looks_after(later)


def test_a_word_to_all_before_a_claim_is_answered_takes_no_look_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The looks begin with the answer: until then it is only known that there is to be some."""
    monkeypatch.setattr(Word, "is_for_me", lambda _: True)

    async def scene(pump: Told) -> None:
        waits = await pump.listen()
        pump.hears("default", among=5)  # its claim leaves
        pump.hears("default")
        await asyncio.wait_for(waits, DEADLINE_SECONDS)
        await pump.rest()
        assert pump.looks() != []

    play(stage, scene, listens=True)


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
        await asyncio.wait_for(waits, DEADLINE_SECONDS)
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
        await asyncio.wait_for(waits, DEADLINE_SECONDS)
        for _ in range(2):
            await pump.rest()
            await pump.woken()

    play(stage, scene, listens=True)
