"""A worker hears on the connection that it claims on: while it waits, in the middle of a call, and
after the connection was lost.

Method: a real connection, and words said by another one. That bytes have been read and nobody has
looked at them is played by reading them.
"""

from __future__ import annotations

import asyncio
import select
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from faultline.connect import readable_url
from faultline.direct import USES
from faultline.worker.ears import MOST, Ears, Word, pass_on
from faultline.worker.session import Session
from faultline.worker.sleeper import FEW
from tests.stage import DEADLINE_SECONDS, Stage, until
from tests.workers import Ground, Process

SAY = "select pg_notify('faultline', %s)"


class Listener:
    """Ears on a session of their own, and what they heard."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._news = asyncio.Event()
        self.work: list[Word | None] = []
        self.cancels: list[uuid.UUID] = []
        self.session = Session(stage.url, stage.schema)
        self.answered = asyncio.Event()
        hear = self._heard, self.cancels.append, self.answered.set
        self.ears = Ears(self.session, stage.schema, *hear)

    def _heard(self, word: Word | None) -> None:
        self.work.append(word)
        self._news.set()

    async def begin(self) -> Any:
        conn = await self.session.connection()
        await self.ears.listen()
        assert self.work == [None], "something may have come before it listened"
        self._news.clear()
        return conn

    async def news(self) -> Word | None:
        await asyncio.wait_for(self._news.wait(), DEADLINE_SECONDS)
        self._news.clear()
        return self.work[-1]

    def say(self, word: str) -> None:
        self._stage.execute(SAY, word)


def play(stage: Stage, scene: Callable[[Listener], Awaitable[None]]) -> None:
    async def run() -> None:
        listener = Listener(stage)
        try:
            await scene(listener)
        finally:
            listener.ears.rest()
            await listener.session.close()

    asyncio.run(run())


def test_what_is_said_while_it_waits_is_passed_on_at_once(stage: Stage) -> None:
    async def scene(listener: Listener) -> None:
        await listener.begin()
        listener.ears.watch()
        listener.say("default")
        assert await listener.news() == Word("default")
        job = uuid.uuid4()
        listener.say(f"cancel {job}")
        await listener.news()
        assert listener.cancels == [job]
        listener.say("cancel me")  # a queue may be called so
        assert await listener.news() == Word("cancel me")
        assert listener.cancels == [job]

    play(stage, scene)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("among 50 default", [Word("default", 50), Word("among 50 default")]),
        ("among 7 among 7 dwarfs", [Word("among 7 dwarfs", 7), Word("among 7 among 7 dwarfs")]),
        ("among dwarfs", [Word("among dwarfs")]),  # queues may be called so
        ("among 1e9 dwarfs", [Word("among 1e9 dwarfs")]),
        (f"among {'9' * 30} q", [Word("q", MOST), Word(f"among {'9' * 30} q")]),
        (f"among {'9' * 5000} q", [Word(f"among {'9' * 5000} q")]),  # more than Python reads
    ],
    ids=["many", "a name like a word", "no number", "not one", "too many", "far too many"],
)
def test_a_word_may_say_how_many_were_told_and_a_queue_be_called_like_a_word(
    said: str, words: list[Word]
) -> None:
    heard: list[Word] = []
    pass_on(said, heard.append, lambda _: None)
    assert heard == words


def test_of_many_who_are_told_a_few_look_at_once_and_of_a_few_all() -> None:
    for among in (1, FEW):
        assert all(Word("default", among).is_for_me() for _ in range(1_000))
    called = sum(Word("default", 50).is_for_me() for _ in range(1_000))
    assert 20 < called < 160, "four of fifty are 80 of a thousand"


def test_what_was_read_together_with_an_answer_is_not_left_lying(stage: Stage) -> None:
    async def scene(listener: Listener) -> None:
        conn = await listener.begin()
        listener.say("default")
        select.select([conn.fileno()], [], [], 10)
        conn.pgconn.consume_input()
        assert not select.select([conn.fileno()], [], [], 0)[0], "nothing will wake the loop"
        listener.ears.watch()
        assert await listener.news() == Word("default")

    play(stage, scene)


def test_what_is_said_during_a_call_is_passed_on_with_its_answer(stage: Stage) -> None:
    async def scene(listener: Listener) -> None:
        conn = await listener.begin()
        listener.say("default")
        async with asyncio.timeout(10):
            while len(listener.work) == 1:
                await conn.execute("select 1")
        assert listener.work == [None, Word("default")]

    play(stage, scene)


def test_a_connection_that_breaks_while_it_is_watched_is_told_once_and_let_go(
    stage: Stage,
) -> None:
    async def scene(listener: Listener) -> None:
        conn = await listener.begin()
        listener.ears.watch()
        pid = conn.info.backend_pid
        stage.execute("select pg_terminate_backend(%s)", pid)
        assert await listener.news() is None
        await asyncio.sleep(0)
        assert listener.work == [None, None], "it does not go on telling"
        assert not listener.ears.listening
        await listener.session.connection()
        await listener.ears.listen()
        assert listener.ears.listening

    play(stage, scene)


def test_a_connection_that_breaks_at_listen_raises_nothing_and_the_next_one_is_tried(
    stage: Stage,
) -> None:
    async def scene(listener: Listener) -> None:
        conn = await listener.session.connection()
        stage.execute("select pg_terminate_backend(%s)", conn.info.backend_pid)
        await listener.ears.listen()
        assert not listener.ears.listening
        assert listener.work == [], "nothing that would make a worker ask again and again"
        listener.ears.watch()
        await listener.ears.listen()  # a poll later
        assert listener.ears.listening

    play(stage, scene)


def test_an_answer_that_is_heard_when_its_time_is_over_costs_no_connection(stage: Stage) -> None:
    """A handler blocked the loop. It takes the answer in, and then looks at the clock."""

    async def scene(listener: Listener) -> None:
        conn = await listener.begin()
        call = stage.verbs.claim("A", [])
        for _ in range(USES + 1):
            await listener.session.run(call, 10)
        ready = listener.session.ready(call, 1.0)
        assert ready is not None
        listener.ears.watch()
        assert listener.session.send(ready)
        over_at = time.monotonic() + 1.2
        until(lambda: time.monotonic() > over_at, "a handler that blocks has come to its end")
        await asyncio.wait_for(listener.answered.wait(), DEADLINE_SECONDS)
        listener.ears.rest()
        assert await listener.session.answer(ready) == []
        assert await listener.session.run(call, 10) == []
        assert await listener.session.connection() is conn

    play(stage, scene)


def test_a_server_that_cannot_be_listened_to_is_asked_once(stage: Stage) -> None:
    async def scene(listener: Listener) -> None:
        conn = await listener.session.connection()
        await conn.execute("begin")
        with suppress(psycopg.Error):
            await conn.execute("select 1 / 0")
        await listener.ears.listen()  # refused: the transaction has failed
        await conn.execute("rollback")
        await listener.ears.listen()
        assert listener.work == [], "or a worker would ask at every turn"
        assert not listener.ears.listening
        listener.ears.watch()

    play(stage, scene)


def test_a_worker_that_lost_its_connection_while_it_slept_hears_of_the_next_job(
    stage: Stage,
) -> None:
    Ground(stage)
    theirs = "datname = current_database() and usename = %s"
    with stage.login("worker") as url, Process(url, "--poll-seconds", "60") as worker:
        warm = stage.enqueue("add", {"a": 1, "b": 2})
        worker.until("job_completed", job_id=warm)
        asleep = "select count(*) from {schema}.workers where asleep"
        until(lambda: stage.value(asleep) == 1, "the worker waits")
        user = readable_url(url)["user"]
        connected = f"select count(*) from pg_stat_activity where {theirs}"
        until(lambda: stage.value(connected, user) >= 3, "its other parts are connected, too")
        stage.execute(
            f"select pg_terminate_backend(pid) from pg_stat_activity where {theirs}", user
        )
        job = stage.enqueue("add", {"a": 1, "b": 2})
        worker.until("job_completed", job_id=job)
    assert stage.violations() == []


def test_a_worker_without_a_free_place_hears_of_a_cancel_also_on_a_new_connection(
    stage: Stage,
) -> None:
    """Nothing but listening has use for that connection."""
    ground = Ground(stage)
    listening = (
        "select pid from pg_stat_activity where usename = %s and query = 'listen faultline' "
        "and datname = current_database()"
    )
    with stage.login("worker") as url, Process(url, "--concurrency", "1") as worker:
        job = stage.enqueue("held_long", lease_seconds=3000)
        worker.until("execution_started", job_id=job)
        user = readable_url(url)["user"]
        ((pid,),) = until(lambda: stage.execute(listening, user), "it listens")
        stage.execute("select pg_terminate_backend(%s)", pid)
        until(lambda: stage.execute(listening, user) not in ([], [(pid,)]), "it listens again")
        stage.verbs.cancel([job], "enough").run(stage.conn)
        ground.until_state(job, "cancelled")  # not after a third of its lease
    assert stage.violations() == []
