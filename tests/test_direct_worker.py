"""A worker's calls past psycopg's cursor: batches both ways, and how their answers are awaited.

Method: a real session that makes the same call again and again, so that the first ones are sent
with a cursor and the later ones without; and a call that waits for a table which the test holds.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from faultline.direct import USES, AsyncDirect
from faultline.ids import Ids
from faultline.jobs import Lease
from faultline.worker.session import Session, Unavailable
from tests.stage import BLOCKED, DEADLINE_SECONDS, Stage, until, unwatched

OFTEN = USES + 3
PREPARED = "select count(*) from pg_prepared_statements where name like 'faultline_%'"
WAITS = f"select count(*) from {BLOCKED}"
ARGUMENTS: list[Any] = [{}, {"name": "O'Reilly ü\\ $1 %s"}, {"many": [None, True, -1.5, 2**62]}]


def lanes(stage: Stage) -> list[int]:
    return [lane.lane for lane in stage.verbs.lanes(stage.queues()).run(stage.conn)]


def alike(leases: list[Lease]) -> list[Any]:
    """But for what differs from one job to the next."""
    return [lease._replace(job_id=None, seq=None) for lease in leases]  # type: ignore[arg-type]


async def prepared(session: Session) -> int:
    rows = await (await (await session.connection()).execute(PREPARED)).fetchall()
    return int(rows[0][0])


def test_batches_are_settled_and_claimed_the_same_with_a_cursor_and_without(stage: Stage) -> None:
    gone = stage.running()
    assert stage.verbs.complete([gone]).run(stage.conn) == []

    async def play() -> list[Any]:
        session, held, seen = Session(stage.url, stage.schema), [gone], []
        for number in range(OFTEN):
            for arguments in ARGUMENTS:
                stage.enqueue("charge", arguments, headers={"ü": [1]}, lease_seconds=60.5)
            results = [{"of": "nobody"}, *[{"turn": number}] * (len(held) - 1)]
            call = stage.verbs.swap(held, results, "A", lanes(stage), max_jobs=10)
            stale, leases = await session.run(call, 10)
            seen.append((stale, alike(leases)))
            held = [gone, *[(lease.job_id, lease.token) for lease in leases]]
        assert await prepared(session) == 1
        await session.close()
        return seen

    first, *others = asyncio.run(play())
    assert [item.job_id for item in first[0]] == [gone[0]]
    assert [lease.payload for lease in first[1]] == ARGUMENTS
    assert others == [first] * (OFTEN - 1)
    results = stage.execute("select result -> 'turn' from {schema}.attempt order by result, at")
    turns = [turn for turn in range(1, OFTEN) for _ in ARGUMENTS]
    assert sorted(turn for (turn,) in results if turn is not None) == turns
    assert stage.violations() == []


def test_an_answer_that_comes_in_many_pieces_is_read_whole(stage: Stage) -> None:
    arguments = [{"long": str(number) * 20_000} for number in range(100)]
    stage.verbs.enqueue_many("work", Ids().many(100), arguments).run(stage.conn)

    async def play() -> None:
        session = Session(stage.url, stage.schema)
        for _ in range(OFTEN):
            call = stage.verbs.claim("A", lanes(stage), max_jobs=500)
            leases = await session.run(call, 10)
            assert [lease.payload for lease in leases] == arguments
            attempts = [(lease.job_id, lease.token) for lease in leases]
            assert await session.run(stage.verbs.release(attempts), 10) == []
        await session.close()

    asyncio.run(play())


class Slow:
    """A way to the server on which nothing is read for as long as the test says."""

    def __init__(self, server: str) -> None:
        self._server = urlsplit(server)
        self.reads = asyncio.Event()
        self.reads.set()
        self._has_ended = asyncio.Event()

    async def open(self) -> str:
        self._relay = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port = self._relay.sockets[0].getsockname()[1]
        login = self._server.netloc.rpartition("@")[0]
        return urlunsplit(self._server._replace(netloc=f"{login}@127.0.0.1:{port}"))

    async def _connected(self, here: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        answers, there = await asyncio.open_connection(self._server.hostname, self._server.port)
        await asyncio.gather(self._pass_on(here, there), self._pass_on(answers, back))
        self._has_ended.set()

    async def _pass_on(self, from_: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while data := await from_.read(65536):
            await self.reads.wait()
            to.write(data)
            await to.drain()
        to.close()
        await to.wait_closed()

    async def close(self) -> None:
        await self._has_ended.wait()
        self._relay.close()
        await self._relay.wait_closed()


def test_what_is_more_than_a_socket_takes_at_once_is_sent_whole(stage: Stage) -> None:
    async def play() -> None:
        slow = Slow(stage.url)
        session = Session(await slow.open(), stage.schema)

        async def complete(result: Any) -> Any:
            attempt = stage.running()
            assert await session.run(stage.verbs.complete([attempt], [result]), 20) == []
            stored = "select result from {schema}.attempt where job_id = %s"
            return stage.value(stored, attempt[0])

        for _ in range(OFTEN):
            await complete("small")
        assert await prepared(session) == 1
        large = "x" * 15_000_000
        slow.reads.clear()
        stored = asyncio.ensure_future(complete(large))
        for _ in range(20):
            await asyncio.sleep(0)
        slow.reads.set()
        assert await stored == large
        await session.close()
        await slow.close()

    asyncio.run(play())


# ── while it waits for the answer ────────────────────────────────────────────────────────────────


def test_nothing_is_arriving_once_a_call_is_answered(stage: Stage) -> None:
    """Otherwise the next call would get twice its time."""

    async def play() -> None:
        session = Session(stage.url, stage.schema)
        for _ in range(USES + 1):
            await session.run(stage.verbs.claim_one("A", [1]), 10)
        conn = await session.connection()
        assert isinstance(conn, AsyncDirect)
        assert not conn.is_arriving
        await session.close()

    asyncio.run(play())


class Waiting:
    """A claim past a cursor, which waits for a table as long as the test holds that."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.session = Session(unwatched(stage.url), stage.schema)
        self._claim = stage.verbs.claim("A", lanes(stage), max_jobs=10)

    async def begin(self, seconds: float = 30.0) -> asyncio.Task[list[Lease]]:
        for _ in range(USES + 1):
            await self.session.run(self._claim, 10)
        assert await prepared(self.session) == 1
        self._holder = self._stage.connect(isolation="read committed")
        self._holder.execute("lock table faultline.ready in access exclusive mode")
        task = asyncio.create_task(self.session.run(self._claim, seconds))
        await self.until(1)
        return task

    async def until(self, waiting: int) -> None:
        what = f"{waiting} wait"
        await asyncio.to_thread(until, lambda: self._stage.value(WAITS) == waiting, what)

    def let_go(self) -> None:
        self._holder.rollback()


@pytest.fixture
def waiting(stage: Stage) -> Waiting:
    stage.running()  # so that there is a lane
    return Waiting(stage)


def test_what_is_said_with_an_answer_is_passed_on(stage: Stage, waiting: Waiting) -> None:
    async def play() -> list[str]:
        heard: list[str] = []
        conn = await waiting.session.connection()
        conn.add_notify_handler(lambda word: heard.append(word.payload))
        await conn.execute("listen faultline")
        task = await waiting.begin()
        stage.conn.execute("notify faultline, 'a word'")
        waiting.let_go()
        assert await task == []
        await waiting.session.close()
        return heard

    assert asyncio.run(play()) == ["a word"]


def test_an_answer_that_came_while_the_loop_was_blocked_costs_no_connection(
    waiting: Waiting,
) -> None:
    """Its time is over then. The loop reads it, looks at the clock, and wakes who awaits it."""

    async def play() -> None:
        task = await waiting.begin(seconds=3.0)
        waiting.let_go()
        over_at = time.monotonic() + 3.2
        until(lambda: time.monotonic() > over_at, "a handler that blocks has come to its end")
        assert await task == []
        assert await waiting.session.run(waiting._claim, 10) == [], "on the same connection"
        await waiting.session.close()

    asyncio.run(play())


def test_a_call_that_is_cancelled_is_given_up_by_the_server_too(waiting: Waiting) -> None:
    async def play() -> None:
        task = await waiting.begin()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await waiting.until(0)  # and the table is still held
        waiting.let_go()
        assert await waiting.session.run(waiting._claim, 10) == [], "by another connection"
        await waiting.session.close()

    asyncio.run(play())


def test_a_call_that_is_cancelled_twice_leaves_no_connection_that_is_stuck(
    waiting: Waiting,
) -> None:
    """The second time while the server is being asked to give it up."""

    async def play() -> None:
        task = await waiting.begin()
        task.cancel()
        await asyncio.sleep(0)  # it has begun to ask
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        waiting.let_go()
        assert await waiting.session.run(waiting._claim, 10) == [], "by another connection"
        await waiting.session.close()

    asyncio.run(play())


def test_what_a_server_says_before_it_hangs_up_is_what_is_told(
    stage: Stage, waiting: Waiting
) -> None:
    async def play() -> None:
        task = await waiting.begin()
        pid = (await waiting.session.connection()).info.backend_pid
        stage.value("select pg_terminate_backend(%s)", pid)
        with pytest.raises(Unavailable, match=r"^terminating connection") as caught:
            await task
        assert caught.value.unknown
        assert isinstance(caught.value.__cause__, psycopg.errors.AdminShutdown)
        waiting.let_go()

    asyncio.run(play())


def test_who_waits_for_an_answer_hears_that_the_connection_was_closed(waiting: Waiting) -> None:
    async def play() -> None:
        task = await waiting.begin()
        await waiting.session.close()
        with pytest.raises(Unavailable) as caught:
            await asyncio.wait_for(task, DEADLINE_SECONDS)
        assert caught.value.unknown
        assert isinstance(caught.value.__cause__, psycopg.OperationalError)
        waiting.let_go()

    asyncio.run(play())


def test_a_file_that_is_closed_is_not_looked_out_for_any_more(
    stage: Stage, waiting: Waiting
) -> None:
    """Its number may be another's in the same turn of the loop."""

    async def play() -> None:
        task = await waiting.begin()
        conn, loop = await waiting.session.connection(), asyncio.get_running_loop()
        descriptor = conn.fileno()
        stage.value("select pg_terminate_backend(%s)", conn.info.backend_pid)
        async with asyncio.timeout(20):
            while is_open(descriptor):
                await asyncio.sleep(0)  # looks before whoever awaits the answer does
        assert not loop.remove_reader(descriptor)
        with pytest.raises(Unavailable):
            await task
        waiting.let_go()

    asyncio.run(play())


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
