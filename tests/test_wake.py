"""Waking sleeping workers: a NOTIFY is sent when somebody is recorded as asleep, and only then."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.ears import Ear, asleep
from tests.stage import Stage


@pytest.fixture
def ear(stage: Stage) -> Ear:
    return Ear(stage)


def oversleep(stage: Stage) -> None:
    """The recorded sleeps are over: now, by moving the rows."""
    stage.execute("update {schema}.sleeper set until = clock_timestamp() - interval '1 second'")


# ── when a job arrives ───────────────────────────────────────────────────────────────────────────


@pytest.mark.both_servers
def test_an_enqueue_pays_for_no_notification_when_nobody_sleeps(stage: Stage, ear: Ear) -> None:
    stage.enqueue()
    assert ear.heard() == []
    asleep(stage)
    stage.enqueue()
    assert ear.heard() == ["default"]


def test_a_worker_asleep_on_another_queue_is_left_asleep(stage: Stage, ear: Ear) -> None:
    asleep(stage, "mail")
    stage.enqueue(queue="default")
    assert ear.heard() == []
    stage.enqueue(queue="mail")
    assert ear.heard() == ["mail"]


def test_the_first_job_of_a_new_queue_or_priority_wakes_who_waits_for_it(
    stage: Stage, ear: Ear
) -> None:
    asleep(stage, "new")
    stage.enqueue(queue="new")
    stage.enqueue(queue="new", priority=7)
    assert ear.heard() == ["new", "new"]


@pytest.mark.parametrize("options", [{"idempotency_key": "one"}, {"queue": "new"}])
def test_who_falls_asleep_while_an_enqueue_waits_for_another_hears_of_its_job(
    stage: Stage, ear: Ear, options: dict[str, Any]
) -> None:
    stage.enqueue()  # the lane of the first is there: what is waited for is the key
    queue = options.get("queue", "default")
    holder = stage.connect(isolation="read committed")
    call = stage.verbs.enqueue("work", **options)
    call.run(holder)
    waiting = stage.background(call, stage.connect()).until_blocked()
    asleep(stage, queue)
    holder.rollback()
    waiting.answer()
    assert ear.heard() == [queue]


def test_a_sleeper_whose_time_is_over_causes_no_notification(stage: Stage, ear: Ear) -> None:
    stage.enqueue()  # the first of a lane is announced otherwise
    asleep(stage)
    oversleep(stage)
    stage.enqueue()
    assert ear.heard() == []


def test_a_sleeper_whose_time_is_over_is_not_woken_by_a_batch(stage: Stage, ear: Ear) -> None:
    asleep(stage)
    oversleep(stage)
    stage.verbs.enqueue_many("work", [uuid4()], [{}]).run(stage.conn)
    assert ear.heard() == []


def test_expired_sleepers_are_not_counted_among_many(stage: Stage, ear: Ear) -> None:
    stage.enqueue()
    for number in range(4):
        asleep(stage, worker=f"dead {number}")
    oversleep(stage)
    asleep(stage, worker="alive")
    stage.enqueue()
    assert ear.heard() == ["default"]


def test_an_expired_sleeper_does_not_hide_one_that_still_sleeps(stage: Stage, ear: Ear) -> None:
    stage.enqueue()
    asleep(stage, worker="dead")
    oversleep(stage)
    asleep(stage, worker="alive")
    stage.enqueue()
    assert ear.heard() == ["default"]


def test_many_sleepers_on_one_queue_cost_one_notification(stage: Stage, ear: Ear) -> None:
    stage.enqueue()
    for worker in "ABC":
        asleep(stage, "default", "mail", worker=worker)
    stage.enqueue()
    assert ear.heard() == ["default"]


def test_a_producer_that_prepares_its_transactions_can_keep_notify_out_of_them(
    stage: Stage, ear: Ear
) -> None:
    asleep(stage)
    stage.enqueue(notify=False)
    stage.verbs.enqueue_many("work", [uuid4()], [{}], notify=False).run(stage.conn)
    assert ear.heard() == []


def test_a_job_for_later_wakes_nobody_now(stage: Stage, ear: Ear) -> None:
    asleep(stage)
    stage.enqueue(delay_seconds=3600)
    many = stage.verbs.enqueue_many("work", [uuid4()], [{}], delay_seconds=3600)
    many.run(stage.conn)
    assert ear.heard() == []


def test_a_job_that_was_accepted_before_wakes_nobody_again(stage: Stage, ear: Ear) -> None:
    known = stage.enqueue(idempotency_key="k")
    asleep(stage)
    assert stage.enqueue(idempotency_key="k") == known
    assert stage.enqueue(job_id=known) == known
    assert stage.verbs.enqueue_many("work", [known], [{}]).run(stage.conn) == [known]
    assert ear.heard() == []


def test_a_batch_of_jobs_sends_one_notification_and_not_one_a_job(stage: Stage, ear: Ear) -> None:
    asleep(stage)
    ids = [uuid4() for _ in range(50)]
    stage.verbs.enqueue_many("work", ids, [{}] * 50).run(stage.conn)
    assert ear.heard() == ["default"]


@pytest.mark.parametrize("many", [False, True], ids=["enqueue", "enqueue_many"])
def test_a_rolled_back_enqueue_wakes_nobody_and_a_committed_one_only_at_its_commit(
    stage: Stage, ear: Ear, many: bool
) -> None:
    asleep(stage)
    conn = stage.connect(isolation="read committed")

    def enqueue() -> None:
        verbs = stage.verbs
        call = verbs.enqueue_many("work", [uuid4()], [{}]) if many else verbs.enqueue("work")
        call.run(conn)

    enqueue()
    conn.rollback()
    assert ear.heard() == []
    enqueue()
    assert ear.heard() == []
    conn.commit()
    assert ear.heard() == ["default"]


# ── when a job comes back ────────────────────────────────────────────────────────────────────────


def before_promote(stage: Stage) -> UUID:
    job_id = stage.enqueue(delay_seconds=3600)
    stage.execute("update {schema}.scheduled set run_at = now() where job_id = %s", job_id)
    return job_id


def before_reclaim(stage: Stage) -> UUID:
    job_id, _ = stage.running()
    stage.expire(job_id)
    return job_id


def before_requeue_of_the_dead(stage: Stage) -> UUID:
    job_id, token = stage.running(max_attempts=1)
    stage.verbs.fail([(job_id, token)]).run(stage.conn)
    return job_id


def before_requeue_of_the_quarantined(stage: Stage) -> UUID:
    job_id, _ = stage.running(max_crashes=1)
    stage.expire(job_id)
    stage.verbs.reclaim().run(stage.conn)
    return job_id


def before_resume(stage: Stage) -> UUID:
    job_id = stage.enqueue()
    stage.verbs.pause("default").run(stage.conn)
    return job_id


COMES_BACK: dict[str, tuple[Callable[[Stage], UUID], Callable[[Stage, UUID], Any]]] = {
    "promote": (before_promote, lambda stage, _: stage.verbs.promote()),
    "reclaim": (before_reclaim, lambda stage, _: stage.verbs.reclaim()),
    "release": (
        lambda stage: stage.running()[0],
        lambda stage, job_id: stage.verbs.release([(job_id, 1)]),
    ),
    "requeue of the dead": (
        before_requeue_of_the_dead,
        lambda stage, job_id: stage.verbs.requeue([job_id]),
    ),
    "requeue of the quarantined": (
        before_requeue_of_the_quarantined,
        lambda stage, job_id: stage.verbs.requeue([job_id]),
    ),
    "resume": (before_resume, lambda stage, _: stage.verbs.pause("default", False)),
}


@pytest.mark.both_servers
@pytest.mark.parametrize("how", COMES_BACK)
def test_whoever_sleeps_on_a_queue_hears_of_a_job_that_comes_back_to_it(
    stage: Stage, ear: Ear, how: str
) -> None:
    prepare, come_back = COMES_BACK[how]
    job_id = prepare(stage)
    asleep(stage)
    come_back(stage, job_id).run(stage.conn)
    assert ear.heard() == ["default"]
    assert [lease.job_id for lease in stage.claim("A")] == [job_id]


def test_a_verb_that_makes_no_job_due_wakes_nobody(stage: Stage, ear: Ear) -> None:
    job_id, token = stage.running(max_crashes=1)
    done, done_token = stage.running()
    asleep(stage)
    stage.verbs.promote().run(stage.conn)
    stage.verbs.reclaim().run(stage.conn)
    stage.verbs.requeue([done]).run(stage.conn)
    stage.verbs.release([(job_id, token + 1)]).run(stage.conn)
    stage.verbs.complete([(done, done_token)]).run(stage.conn)
    stage.verbs.pause("default").run(stage.conn)
    stage.expire(job_id)
    assert [r.state for r in stage.verbs.reclaim().run(stage.conn)] == ["quarantined"]
    assert ear.heard() == []


def test_one_promote_wakes_the_sleepers_of_every_queue_it_fills(stage: Stage, ear: Ear) -> None:
    for queue in ("default", "mail", "nobody"):
        stage.enqueue(queue=queue, delay_seconds=3600)
    asleep(stage, "default", worker="A")
    asleep(stage, "mail", worker="B")
    stage.execute("update {schema}.scheduled set run_at = now()")
    assert stage.verbs.promote().run(stage.conn) == 3
    assert sorted(ear.heard()) == ["default", "mail"]


# ── who is there ─────────────────────────────────────────────────────────────────────────────────


def worker(stage: Stage, name: str = "A") -> dict[str, Any] | None:
    rows = {row["worker"]: row for row in stage.reading.workers(stage.conn)}
    return rows.get(name)


@pytest.mark.parametrize("verb", ["awake", "leave"])
def test_a_worker_that_woke_up_or_left_is_not_notified_and_others_still_are(
    stage: Stage, ear: Ear, verb: str
) -> None:
    asleep(stage, "default", "mail", worker="A")
    asleep(stage, "mail", worker="B")
    getattr(stage.verbs, verb)("A").run(stage.conn)
    stage.enqueue(queue="default")
    stage.enqueue(queue="mail")
    assert ear.heard() == ["mail"]


def test_a_worker_that_sleeps_again_is_asleep_until_the_later_time(stage: Stage, ear: Ear) -> None:
    asleep(stage)
    oversleep(stage)
    asleep(stage)
    stage.enqueue()
    assert ear.heard() == ["default"]
    assert stage.value("select count(*) from {schema}.sleeper") == 1


@pytest.mark.both_servers
def test_the_workers_view_tells_who_sleeps_by_the_databases_clock(stage: Stage) -> None:
    stage.verbs.beat("A", ["default"]).run(stage.conn)
    assert worker(stage)["asleep"] is False
    asleep(stage)
    assert worker(stage)["asleep"] is True
    oversleep(stage)
    assert worker(stage)["asleep"] is False
    asleep(stage)
    stage.verbs.awake("A").run(stage.conn)
    assert worker(stage)["asleep"] is False


def test_a_beat_keeps_when_the_worker_started_and_moves_when_it_was_seen(stage: Stage) -> None:
    stage.verbs.beat("A", ["default"], {"pid": 1}).run(stage.conn)
    stage.execute(
        "update {schema}.worker set started_at = started_at - interval '1 hour', "
        "seen_at = seen_at - interval '1 hour'"
    )
    before = worker(stage)
    assert before["silent_seconds"] >= 3600
    stage.verbs.beat("A", ["default", "mail"], {"pid": 2}).run(stage.conn)
    after = worker(stage)
    assert after["started_at"] == before["started_at"]
    assert after["seen_at"] - before["seen_at"] >= timedelta(hours=1)
    assert after["silent_seconds"] < 3600
    assert (after["queues"], after["details"]) == (["default", "mail"], {"pid": 2})


@pytest.mark.parametrize("hours", [-2, 0, 3])
def test_a_workers_odd_clock_is_reported_and_decides_nothing(stage: Stage, hours: int) -> None:
    clock = datetime.now(UTC) + timedelta(hours=hours)
    stage.verbs.beat("A", ["default"], clock=clock).run(stage.conn)
    assert worker(stage)["clock_difference_seconds"] == pytest.approx(hours * 3600, abs=60)
    assert worker(stage)["silent_seconds"] < 60
    stage.verbs.beat("A", ["default"]).run(stage.conn)
    assert worker(stage)["clock_difference_seconds"] is None


def test_the_workers_view_counts_each_workers_own_leases(stage: Stage) -> None:
    for name in "AB":
        stage.verbs.beat(name, ["default"]).run(stage.conn)
    attempts = [stage.running("A"), stage.running("A"), stage.running("B")]
    assert (worker(stage, "A")["leases"], worker(stage, "B")["leases"]) == (2, 1)
    stage.verbs.complete(attempts[:1]).run(stage.conn)
    assert (worker(stage, "A")["leases"], worker(stage, "B")["leases"]) == (1, 1)


def test_a_worker_that_leaves_is_forgotten_and_its_leases_are_not(stage: Stage) -> None:
    for name in "AB":
        stage.verbs.beat(name, ["default"]).run(stage.conn)
    job_id, token = stage.running("A")
    asleep(stage)
    stage.verbs.leave("A").run(stage.conn)
    assert worker(stage, "A") is None
    assert worker(stage, "B") is not None
    assert stage.state(job_id) == "running"
    assert stage.verbs.complete([(job_id, token)]).run(stage.conn) == []
