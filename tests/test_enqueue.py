"""Enqueue: accepted once, in the caller's own transaction, and handed out in the promised order.

Two connections play two producers; which of them waits for which is read from the server.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import AsyncConnection

from faultline.errors import IdempotencyConflict, KeyInFlight
from tests.stage import Stage

pytestmark = pytest.mark.both_servers


def count(stage: Stage, table: str) -> int:
    return int(stage.value(f"select count(*) from {{schema}}.{table}"))


def new_ids(stage: Stage, how_many: int) -> list[UUID]:
    rows = stage.execute("select {schema}.new_id() from generate_series(1, %s)", how_many)
    return [row[0] for row in rows]


def claimed(stage: Stage, max_jobs: int = 1000) -> list[UUID]:
    return [lease.job_id for lease in stage.claim(max_jobs=max_jobs)]


# ── once ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_same_key_and_payload_give_the_first_job_back(stage: Stage) -> None:
    first = stage.enqueue("charge", {"order": 7, "euro": 20}, idempotency_key="o7")
    second = stage.enqueue("charge", {"euro": 20, "order": 7}, idempotency_key="o7")
    assert second == first
    assert (count(stage, "job"), count(stage, "ready")) == (1, 1)


def test_the_key_still_names_the_first_job_when_that_has_long_succeeded(stage: Stage) -> None:
    first = stage.enqueue("charge", {"order": 7}, idempotency_key="o7")
    [lease] = stage.claim()
    stage.verbs.complete([(lease.job_id, lease.token)]).run(stage.conn)
    assert stage.enqueue("charge", {"order": 7}, idempotency_key="o7") == first
    assert stage.state(first) == "succeeded"
    assert claimed(stage) == []


def test_the_same_key_with_another_payload_is_a_conflict_and_writes_nothing(stage: Stage) -> None:
    first = stage.enqueue("charge", {"order": 7}, idempotency_key="o7")
    with pytest.raises(IdempotencyConflict) as caught:
        stage.enqueue("charge", {"order": 8}, idempotency_key="o7")
    assert (caught.value.key, caught.value.job_id) == ("o7", first)
    assert (count(stage, "job"), count(stage, "ready"), count(stage, "idempotency")) == (1, 1, 1)


def test_the_same_key_of_another_task_is_another_job(stage: Stage) -> None:
    assert stage.enqueue("charge", idempotency_key="o7") != stage.enqueue(
        "mail", idempotency_key="o7"
    )
    assert count(stage, "ready") == 2


def test_one_bad_key_in_a_batch_leaves_nothing_of_the_batch(stage: Stage) -> None:
    first = stage.enqueue("charge", {"n": 1}, idempotency_key="b")
    call = stage.verbs.enqueue_many(
        "charge", new_ids(stage, 3), [{"n": 0}, {"n": 9}, {"n": 2}], idempotency_keys=list("abc")
    )
    with pytest.raises(IdempotencyConflict) as caught:
        call.run(stage.conn)
    assert caught.value.job_id == first
    assert (count(stage, "job"), count(stage, "idempotency")) == (1, 1)


def test_a_batch_answers_with_the_ids_in_force_also_for_keys_known_or_repeated(
    stage: Stage,
) -> None:
    known = stage.enqueue("charge", {"n": 1}, idempotency_key="b")
    ids = new_ids(stage, 4)
    payloads = [{"n": 0}, {"n": 1}, {"n": 0}, {"n": 3}]
    keys = ["a", "b", "a", None]
    call = stage.verbs.enqueue_many("charge", ids, payloads, idempotency_keys=keys)
    assert call.run(stage.conn) == [ids[0], known, ids[0], ids[3]]
    assert set(claimed(stage)) == {known, ids[0], ids[3]}
    assert call.run(stage.conn) == [ids[0], known, ids[0], ids[3]]
    assert count(stage, "ready") == 0


def test_a_key_held_by_an_open_transaction_is_waited_for_and_gives_its_job(stage: Stage) -> None:
    stage.enqueue()  # the lane exists: what is waited for is the key
    holder = stage.connect(isolation="read committed")
    call = stage.verbs.enqueue("charge", {"n": 1}, idempotency_key="k")
    first = call.run(holder)
    second = stage.background(call, stage.connect()).until_blocked()
    holder.commit()
    assert second.answer() == first
    assert count(stage, "job") == 2


def test_a_key_whose_holder_rolls_back_goes_to_who_waited(stage: Stage) -> None:
    stage.enqueue()
    holder = stage.connect(isolation="read committed")
    call = stage.verbs.enqueue("charge", {"n": 1}, idempotency_key="k")
    first = call.run(holder)
    second = stage.background(call, stage.connect()).until_blocked()
    holder.rollback()
    assert second.answer() != first
    assert stage.state(second.answer()) == "queued"
    assert count(stage, "idempotency") == 1


def test_a_key_that_stays_in_flight_is_an_error_after_the_lock_timeout(stage: Stage) -> None:
    """Takes the five seconds that the function waits."""
    stage.enqueue()
    holder = stage.connect(isolation="read committed")
    call = stage.verbs.enqueue("charge", {"n": 1}, idempotency_key="k")
    call.run(holder)
    with pytest.raises(KeyInFlight, match="nothing was enqueued: try again"):
        call.run(stage.conn)
    holder.rollback()
    assert count(stage, "job") == 1
    assert stage.state(call.run(stage.conn)) == "queued"


def test_batches_with_the_same_keys_in_any_order_never_deadlock(stage: Stage) -> None:
    stage.enqueue()
    shuffled = random.Random(7)
    for turn in range(10):
        keys = [f"{turn}-{n}" for n in range(40)]
        under_way = []
        for _ in range(3):
            shuffled.shuffle(keys)
            ids, payloads = new_ids(stage, 40), [{"key": key} for key in keys]
            call = stage.verbs.enqueue_many("t", ids, payloads, idempotency_keys=list(keys))
            under_way.append((list(keys), stage.background(call, stage.connect())))
        answers = [dict(zip(ks, work.answer(), strict=True)) for ks, work in under_way]
        assert answers[0] == answers[1] == answers[2]
    assert count(stage, "job") == 401


def test_the_second_of_two_batches_waits_at_the_first_common_key(stage: Stage) -> None:
    """The order is forced: whoever holds the lowest key can go on to the highest."""
    stage.enqueue()
    verbs, holder = stage.verbs, stage.connect(isolation="read committed")
    verbs.enqueue("t", {}, idempotency_key="a").run(holder)
    call = verbs.enqueue_many("t", new_ids(stage, 2), [{}, {}], idempotency_keys=["z", "a"])
    waiting = stage.background(call, stage.connect()).until_blocked()
    verbs.enqueue("t", {}, idempotency_key="z").run(holder)  # would deadlock if z were held
    holder.commit()
    assert len(set(waiting.answer())) == 2
    assert count(stage, "job") == 3


def test_the_same_id_twice_is_one_job_with_one_pointer(stage: Stage) -> None:
    [job_id] = new_ids(stage, 1)
    assert stage.enqueue("t", {"n": 1}, job_id=job_id) == job_id
    assert stage.enqueue("t", {"n": 1}, job_id=job_id) == job_id
    many = stage.verbs.enqueue_many("t", [job_id, job_id], [{}, {}])
    assert many.run(stage.conn) == [job_id, job_id]
    assert claimed(stage) == [job_id]
    assert stage.enqueue("t", {"n": 1}, job_id=job_id) == job_id  # also while it runs
    assert stage.violations() == []


@pytest.mark.parametrize("days", [-400, -2, 2, 40000])
def test_an_id_from_a_clock_that_is_off_is_replaced_not_lost(stage: Stage, days: int) -> None:
    odd = stage.value("select {schema}.id_at(now() + make_interval(days => %s))", days)
    given = stage.enqueue(job_id=odd)
    assert given != odd
    assert stage.verbs.enqueue_many("t", [odd], [{}]).run(stage.conn) != [odd]
    assert len(claimed(stage)) == 2


# ── in the caller's transaction ──────────────────────────────────────────────────────────────────


def test_a_rolled_back_transaction_leaves_no_job(stage: Stage) -> None:
    conn = stage.connect(isolation="read committed")
    stage.verbs.enqueue("charge", idempotency_key="k").run(conn)
    stage.verbs.enqueue_many("charge", new_ids(stage, 2), [1, 2]).run(conn)
    assert count(stage, "job") == 0
    conn.rollback()
    for table in ("job", "ready", "scheduled", "idempotency", "queue", "lane"):
        assert count(stage, table) == 0


def test_a_job_is_there_exactly_when_the_callers_own_row_is(stage: Stage) -> None:
    stage.execute("create table invoice (n integer)")
    conn = stage.connect(isolation="repeatable read")
    conn.execute("insert into invoice values (7)")
    job_id = stage.verbs.enqueue("mail", {"invoice": 7}).run(conn)
    assert stage.reading.job(stage.conn, job_id) is None
    conn.commit()
    assert stage.state(job_id) == "queued"
    assert stage.value("select count(*) from invoice") == 1


def test_plain_sql_from_any_driver_is_enough(stage: Stage) -> None:
    job_id = stage.value("""select {schema}.enqueue('charge', '{"order_id": 7}', queue => 'vip')""")
    job = stage.job(job_id)
    assert (job["task"], job["queue"], job["payload"]) == ("charge", "vip", {"order_id": 7})


def test_the_async_form_does_the_same(stage: Stage) -> None:
    async def story() -> tuple[UUID, str | None]:
        async with await AsyncConnection.connect(stage.url, autocommit=True) as conn:
            job_id = await stage.verbs.enqueue("work", {"n": 1}).arun(conn)
            lanes = [lane.lane for lane in await stage.verbs.lanes(["default"]).arun(conn)]
            [lease] = await stage.verbs.claim("A", lanes).arun(conn)
            assert (lease.job_id, lease.payload) == (job_id, {"n": 1})
            assert await stage.verbs.complete([(job_id, lease.token)], [42]).arun(conn) == []
            await stage.verbs.enqueue("t", 1, idempotency_key="k").arun(conn)
            with pytest.raises(IdempotencyConflict):
                await stage.verbs.enqueue("t", 2, idempotency_key="k").arun(conn)
            return job_id, await stage.verbs.outcome(job_id, lease.token).arun(conn)

    job_id, outcome = asyncio.run(story())
    assert outcome == "succeeded"
    assert stage.job(job_id)["result"] == 42


# ── in order ─────────────────────────────────────────────────────────────────────────────────────


def test_higher_priority_first_then_oldest_first(stage: Stage) -> None:
    low = [stage.enqueue(priority=-1) for _ in range(2)]
    usual = [stage.enqueue() for _ in range(2)]
    high = [stage.enqueue(priority=5) for _ in range(2)]
    assert claimed(stage, 5) == [*high, *usual, low[0]]
    assert claimed(stage) == [low[1]]


def test_lanes_are_served_in_the_order_given(stage: Stage) -> None:
    jobs = {queue: stage.enqueue(queue=queue, priority=n) for n, queue in enumerate("abc")}
    by_queue = {
        lane.queue: lane.lane for lane in stage.verbs.lanes(["a", "b", "c"]).run(stage.conn)
    }
    lanes = [by_queue[queue] for queue in "bac"]
    leases = stage.verbs.claim("A", lanes, max_jobs=3).run(stage.conn)
    assert [lease.job_id for lease in leases] == [jobs[queue] for queue in "bac"]


def test_lanes_come_by_priority_and_then_in_the_order_of_the_queues_asked_for(
    stage: Stage,
) -> None:
    for queue, priority in (("a", 0), ("b", 0), ("b", 9), ("c", 1)):
        stage.enqueue(queue=queue, priority=priority)
    lanes = stage.verbs.lanes(["b", "a", "nobody"]).run(stage.conn)
    assert [(lane.queue, lane.priority) for lane in lanes] == [("b", 9), ("b", 0), ("a", 0)]


def test_a_job_committed_late_with_a_lower_place_is_found_without_the_cursor(stage: Stage) -> None:
    stage.enqueue()
    late = stage.connect(isolation="read committed")
    missed = stage.verbs.enqueue("late").run(late)
    stage.enqueue()
    [_, second] = stage.claim(max_jobs=10)
    late.commit()
    lanes = [second.lane]
    assert stage.verbs.claim("A", lanes, cursors=[second.seq]).run(stage.conn) == []
    assert [lease.job_id for lease in stage.verbs.claim("A", lanes).run(stage.conn)] == [missed]


def test_a_paused_queue_is_not_claimed_and_holds_up_no_other(stage: Stage) -> None:
    held = stage.enqueue(queue="slow", priority=9)
    free = stage.enqueue(queue="quick")
    stage.verbs.pause("slow").run(stage.conn)
    assert claimed(stage) == [free]
    assert stage.state(held) == "queued"
    stage.verbs.pause("slow", False).run(stage.conn)
    assert claimed(stage) == [held]


def test_a_delayed_job_is_not_claimed_before_it_is_due(stage: Stage) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    jobs = [stage.enqueue(delay_seconds=3600), stage.enqueue(run_at=soon)]
    jobs += stage.verbs.enqueue_many("t", new_ids(stage, 1), [{}], run_at=soon).run(stage.conn)
    later = stage.enqueue(run_at=soon, delay_seconds=3600)
    assert stage.job(jobs[1])["next_run_at"] == soon
    assert stage.job(later)["next_run_at"] == soon + timedelta(hours=1)
    assert stage.verbs.promote().run(stage.conn) == 0
    assert claimed(stage) == []
    stage.execute("update {schema}.scheduled set run_at = now() where job_id = any (%s)", jobs)
    assert stage.verbs.promote().run(stage.conn) == 3
    assert set(claimed(stage)) == set(jobs)
    assert stage.state(later) == "scheduled"


def test_a_run_at_in_the_past_means_now(stage: Stage) -> None:
    job_id = stage.enqueue(run_at=datetime(2020, 1, 1, tzinfo=UTC))
    assert claimed(stage) == [job_id]


def test_five_thousand_jobs_at_once_come_out_in_the_order_they_went_in(stage: Stage) -> None:
    ids = sorted(new_ids(stage, 5000))
    random.Random(5).shuffle(ids)
    payloads = [{"n": n} for n in range(5000)]
    assert stage.verbs.enqueue_many("t", ids, payloads).run(stage.conn) == ids
    leases = stage.claim(max_jobs=3000) + stage.claim(max_jobs=3000)
    assert [lease.job_id for lease in leases] == ids
    assert [lease.payload for lease in leases] == payloads
    assert [lease.token for lease in leases] == [1] * 5000


@pytest.mark.parametrize(
    "value",
    [{"trace": "00-ab-01"}, [], "text", 0, False, {"ü": "\u20ac \U0001f600", "n": 2**53 + 1}],
    ids=str,
)
def test_payload_and_headers_come_back_as_they_went_in(stage: Stage, value: Any) -> None:
    stage.enqueue(payload=value, headers=value)
    stage.enqueue(payload=value)
    with_headers, without = stage.claim(max_jobs=2)
    assert (with_headers.payload, with_headers.headers) == (value, value)
    assert (without.payload, without.headers) == (value, None)


@pytest.mark.parametrize("headers", [None, {}, {"trace": "x"}, {"faultline-due": "mine"}], ids=str)
def test_a_job_that_has_to_wait_carries_the_moment_it_is_due_and_no_other_does(
    stage: Stage, headers: dict[str, Any] | None
) -> None:
    own = None if headers is None else {k: v for k, v in headers.items() if k == "trace"}
    at = datetime.now(UTC) + timedelta(days=2)
    later = [
        *stage.verbs.enqueue_many("t", new_ids(stage, 2), [{}, {}], run_at=at, headers=headers).run(
            stage.conn
        ),
        stage.enqueue(run_at=at, headers=headers),
    ]
    for job_id in later:
        job = stage.job(job_id)
        assert job["headers"] == {**(own or {}), "faultline-due": pytest.approx(at.timestamp())}
        assert job["next_run_at"] == at
    past = stage.enqueue(run_at=at - timedelta(days=9), headers=headers)
    (many,) = stage.verbs.enqueue_many("t", new_ids(stage, 1), [{}], headers=headers).run(
        stage.conn
    )
    for job_id in (past, many):
        assert stage.job(job_id)["headers"] == own


def test_headers_that_are_no_object_stay_as_they_are_also_on_a_job_that_waits(
    stage: Stage,
) -> None:
    for headers in ([1], "text", 7):
        job_id = stage.enqueue(headers=headers, delay_seconds=60)
        assert stage.job(job_id)["headers"] == headers


def test_what_a_job_was_told_is_what_its_attempts_get(stage: Stage) -> None:
    backoff = {"backoff_seconds": 1000, "backoff_cap_seconds": 2000}
    job_id = stage.enqueue(max_attempts=2, max_crashes=7, lease_seconds=90, **backoff)
    [lease] = stage.claim()
    assert lease.lease_seconds == 90
    assert 45 < stage.reading.leases(stage.conn)[0]["remaining_seconds"] <= 90
    stage.verbs.fail([(job_id, lease.token)]).run(stage.conn)
    waits = stage.job(job_id)["next_run_at"] - datetime.now(UTC)
    assert timedelta(seconds=400) < waits < timedelta(seconds=1001)
    assert (stage.job(job_id)["max_attempts"], stage.job(job_id)["max_crashes"]) == (2, 7)


def test_a_job_names_its_producer_and_only_that_one_sees_it(stage: Stage) -> None:
    conn = stage.connect(role="producer")
    job_id = stage.verbs.enqueue("t").run(conn)
    others = stage.enqueue()
    status = stage.verbs.status(job_id).run(conn)
    assert status is not None
    assert status.state == "queued"
    assert stage.verbs.status(others).run(conn) is None
    assert stage.job(job_id)["producer"] == "faultline_producer"
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        conn.execute("insert into faultline.job select * from faultline.job")


def test_ids_made_by_the_database_are_of_version_7_and_of_now(stage: Stage) -> None:
    made = stage.enqueue()
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    age = stage.value("select clock_timestamp() - {schema}.id_time(%s)", made)
    assert abs(age) < timedelta(minutes=1)
