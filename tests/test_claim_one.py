"""A claim of one job: the same as a claim of many, for who waits for a job; and which of the two a
worker makes.

Method: the same jobs claimed both ways and compared; a pump on a real session that is told of work
as its ears would tell it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from faultline.direct import USES, AsyncDirect
from faultline.errors import InvalidArgument
from faultline.jobs import Lease, Unreadable
from faultline.worker.pump import FEW_LANES
from faultline.worker.session import Session, Unavailable
from tests.stage import Stage
from tests.told import ASLEEP, Told, play

pytestmark = pytest.mark.both_servers


def lanes(stage: Stage) -> list[int]:
    return [lane.lane for lane in stage.verbs.lanes(stage.queues()).run(stage.conn)]


def one(stage: Stage, **more: Any) -> list[Lease]:
    return stage.verbs.claim_one("A", lanes(stage), **more).run(stage.conn)


def given_back(stage: Stage, leases: list[Lease]) -> None:
    assert stage.verbs.release([(x.job_id, x.token) for x in leases]).run(stage.conn) == []


def test_it_is_the_lease_that_a_claim_of_many_would_have_made(stage: Stage) -> None:
    stage.enqueue("charge", {"a": [1, "ü"]}, headers={"b": 2}, lease_seconds=7.5)
    many = stage.claim("A", 10)
    given_back(stage, many)
    (lease,) = one(stage)
    assert lease == many[0]._replace(token=2)
    held = "select fencing_token, seq, lane, started, worker, expires_at - claimed_at from {schema}"
    assert stage.execute(held + ".lease")[0][:5] == (2, lease.seq, lease.lane, True, "A")
    given_back(stage, [lease])
    assert [x._replace(token=2) for x in stage.claim("A", 1)] == [lease]


def test_with_nothing_to_do_it_answers_with_nothing(stage: Stage) -> None:
    stage.enqueue()
    (lease,) = one(stage)
    assert one(stage) == []
    assert stage.verbs.claim_one("A", []).run(stage.conn) == []
    assert stage.state(lease.job_id) == "running"


def test_a_paused_queue_is_passed_over_and_each_cursor_stays_with_its_lane(stage: Stage) -> None:
    first, second = stage.enqueue(queue="first"), stage.enqueue(queue="second")
    numbers = [lane.lane for lane in stage.verbs.lanes(["first", "second"]).run(stage.conn)]
    stage.verbs.pause("first").run(stage.conn)
    past = [0, 10**9]  # the second lane has nothing there
    call = stage.verbs.claim_one("A", numbers, cursors=past)
    assert call.run(stage.conn) == []
    assert [x.job_id for x in stage.verbs.claim_one("A", numbers).run(stage.conn)] == [second]
    stage.verbs.pause("first", False).run(stage.conn)
    assert [x.job_id for x in call.run(stage.conn)] == [first]


def test_what_python_cannot_read_costs_neither_the_job_nor_its_headers(stage: Stage) -> None:
    deep = "[" * 5_000 + "]" * 5_000
    stage.execute("select {schema}.enqueue('work', %s::jsonb, headers => '{\"a\": 1}')", deep)
    (lease,) = one(stage)
    assert isinstance(lease.payload, Unreadable)
    assert lease.headers == {"a": 1}


@pytest.mark.parametrize("worker", [None, "", "w" * 256])
def test_who_has_no_name_that_a_lease_can_hold_gets_nothing(stage: Stage, worker: Any) -> None:
    stage.enqueue()
    with pytest.raises(InvalidArgument, match="1 to 255 characters"):
        stage.verbs.claim_one(worker, lanes(stage)).run(stage.conn)
    assert len(one(stage)) == 1


# ── whether the transaction goes on ──────────────────────────────────────────────────────────────


def is_bounded(conn: psycopg.Connection[Any]) -> bool:
    row = conn.execute("select current_setting('faultline.bounded_until', true)").fetchone()
    return row not in ((None,), ("",))


def test_what_an_open_transaction_holds_is_bounded_unless_the_caller_says_that_it_ends(
    stage: Stage,
) -> None:
    for by_itself in (False, True):
        stage.enqueue()
        conn = stage.connect(isolation="read committed")
        call = stage.verbs.claim_one("A", lanes(stage), by_itself=by_itself)
        assert len(call.run(conn)) == 1
        assert is_bounded(conn) is not by_itself


# ── a worker's connection ────────────────────────────────────────────────────────────────────────


def test_past_a_cursor_the_answer_is_the_same_as_with_one(stage: Stage) -> None:
    async def play() -> list[Lease]:
        session, found = Session(stage.url, stage.schema), []
        for number in range(USES + 3):
            cursors = None if number % 2 else [0]
            call = stage.verbs.claim_one("A", lanes(stage), cursors=cursors)
            (lease,) = await session.run(call, 10)
            given_back(stage, [lease])
            found.append(lease._replace(token=1))
        conn = await session.connection()
        assert isinstance(conn, AsyncDirect)
        names = "select name from pg_prepared_statements where name like 'faultline_%'"
        assert len(await (await conn.execute(names)).fetchall()) == 1
        await session.close()
        return found

    stage.enqueue("charge", {"a": None}, headers={"b": [True, 1.5]}, lease_seconds=0.25)
    first, *others = asyncio.run(play())
    assert others == [first] * (USES + 2)


# ── which of the two ─────────────────────────────────────────────────────────────────────────────


def test_a_worker_at_rest_takes_the_one_job_that_it_is_told_of_and_then_all_there_are(
    stage: Stage,
) -> None:
    async def scene(pump: Told) -> None:
        for _ in range(2):
            for _ in range(9):
                stage.enqueue()
            assert await pump.told("default") == 1
            assert await pump.told("default") == 8, "though it was told of one more"
            await pump.rest()
        stage.enqueue()
        stage.enqueue()
        assert await pump.told(None) == 2, "it was told of no queue in particular"

    play(stage, scene)


def test_a_worker_that_gets_all_it_asks_for_is_told_no_more(stage: Stage) -> None:
    """Though it was told again and again: while it is busy, a word is a cost and nothing else."""

    async def scene(pump: Told) -> None:
        for _ in range(9):
            stage.enqueue()
        assert [await pump.told("default") for _ in range(4)] == [1, 2, 2, 2]
        assert stage.value(ASLEEP) == 0

    play(stage, scene, room=2)


def test_a_worker_with_room_for_one_is_told_no_more_when_it_has_it(stage: Stage) -> None:
    async def scene(pump: Told) -> None:
        stage.enqueue()
        assert await pump.told("default") == 1
        assert stage.value(ASLEEP) == 0

    play(stage, scene, room=1)


def test_where_there_are_many_lanes_all_are_read_at_once(stage: Stage) -> None:
    async def scene(pump: Told) -> None:
        stage.enqueue()
        stage.enqueue()
        assert await pump.told("default") == 2

    for priority in range(1, FEW_LANES + 1):
        stage.enqueue(priority=priority)
    # Lanes in use, of which nothing can be claimed.
    stage.execute("update {schema}.ready set fencing_token = 9007199254740991")
    play(stage, scene)


@pytest.mark.parametrize("forgets", ["deallocate all", "discard all"])
def test_a_session_that_has_forgotten_what_it_prepared_is_replaced(
    stage: Stage, forgets: str
) -> None:
    async def play() -> None:
        session = Session(stage.url, stage.schema)
        call = stage.verbs.claim_one("A", [1])
        for _ in range(USES + 1):
            assert await session.run(call, 10) == []
        await (await session.connection()).execute(forgets)
        with pytest.raises(Unavailable) as failed:
            await session.run(call, 10)
        assert not failed.value.unknown
        assert await session.run(call, 10) == []
        await session.close()

    asyncio.run(play())
