"""Attempts, crashes and snoozes are counted apart, and each has its own limit and consequence."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.stage import Stage

pytestmark = pytest.mark.both_servers


def counts(stage: Stage, job_id: UUID) -> tuple[int, int, int]:
    job = stage.job(job_id)
    return job["attempts"], job["crashes"], job["snoozes"]


def come_back(stage: Stage, job_id: UUID) -> tuple[UUID, int]:
    """The job becomes due and is claimed again."""
    stage.execute("update {schema}.scheduled set run_at = now() where job_id = %s", job_id)
    stage.verbs.promote().run(stage.conn)
    (lease,) = stage.claim("A")
    return lease.job_id, lease.token


def test_tokens_on_a_fresh_server_are_one_two_three(stage: Stage) -> None:
    attempt = stage.running("A")
    tokens = [attempt[1]]
    for _ in range(2):
        stage.verbs.release([attempt]).run(stage.conn)
        (lease,) = stage.claim("A")
        attempt = (lease.job_id, lease.token)
        tokens.append(lease.token)
    assert tokens == [1, 2, 3]


def test_a_failure_a_crash_and_a_snooze_each_count_only_as_themselves(stage: Stage) -> None:
    attempt = stage.running("A")
    stage.verbs.fail([attempt], ["boom"]).run(stage.conn)
    attempt = come_back(stage, attempt[0])
    stage.verbs.snooze([attempt], [60]).run(stage.conn)
    attempt = come_back(stage, attempt[0])
    attempt = stage.take_over(attempt[0])
    assert counts(stage, attempt[0]) == (1, 1, 1)
    stage.verbs.release([attempt]).run(stage.conn)
    assert counts(stage, attempt[0]) == (1, 1, 1)
    assert [outcome for _, outcome in stage.outcomes(attempt[0])] == [
        "failed",
        "snoozed",
        "expired",
        "released",
    ]
    assert stage.violations() == []


def test_a_job_is_dead_after_its_last_attempt_and_not_before(stage: Stage) -> None:
    attempt = stage.running("A", max_attempts=2)
    stage.verbs.fail([attempt], [{"error": "first"}]).run(stage.conn)
    assert stage.state(attempt[0]) == "scheduled"
    attempt = come_back(stage, attempt[0])
    stage.verbs.fail([attempt], [{"error": "second"}]).run(stage.conn)
    job = stage.job(attempt[0])
    assert (job["state"], job["attempts"], job["error"]) == ("failed", 2, {"error": "second"})
    assert job["finished_at"] is not None


def test_a_handler_can_declare_its_job_dead_with_attempts_left(stage: Stage) -> None:
    attempt = stage.running("A", max_attempts=5)
    stage.verbs.fail([attempt], ["hopeless"], dead=[True]).run(stage.conn)
    assert stage.state(attempt[0]) == "failed"


def test_a_job_that_keeps_killing_its_workers_is_quarantined_with_the_evidence(
    stage: Stage,
) -> None:
    job_id, _ = stage.running("A")
    for crash in (1, 2):
        stage.take_over(job_id, f"worker-{crash}")
        assert counts(stage, job_id)[1] == crash
    stage.expire(job_id)
    (reclaimed,) = stage.verbs.reclaim().run(stage.conn)
    assert (reclaimed.state, reclaimed.crashes, reclaimed.worker) == ("quarantined", 3, "worker-2")
    job = stage.job(job_id)
    assert (job["state"], job["quarantine_reason"]) == ("quarantined", "crashed_too_often")
    assert job["quarantine_evidence"]["worker"] == "worker-2"
    assert stage.outcomes(job_id) == [(1, "expired"), (2, "expired"), (3, "expired")]
    assert stage.claim("B", 10) == []
    assert stage.violations() == []


def test_a_lease_lost_before_the_job_was_started_is_not_a_crash(stage: Stage) -> None:
    job_id = stage.enqueue(max_crashes=1)
    stage.claim("A", started=False)
    stage.expire(job_id)
    (reclaimed,) = stage.verbs.reclaim().run(stage.conn)
    assert (reclaimed.state, reclaimed.crashes) == ("queued", 0)


def test_a_job_that_execute_has_marked_as_started_does_crash(stage: Stage) -> None:
    job_id = stage.enqueue(max_crashes=1)
    (lease,) = stage.claim("A", started=False)
    assert stage.verbs.execute([(lease.job_id, lease.token)]).run(stage.conn) == []
    stage.expire(job_id)
    (reclaimed,) = stage.verbs.reclaim().run(stage.conn)
    assert (reclaimed.state, reclaimed.crashes) == ("quarantined", 1)


def test_requeue_gives_a_new_life_under_a_higher_token_and_keeps_the_past(stage: Stage) -> None:
    attempt = stage.running("A", max_attempts=1)
    stage.verbs.fail([attempt]).run(stage.conn)
    assert stage.verbs.requeue([attempt[0]], "fixed").run(stage.conn) == [attempt[0]]
    assert counts(stage, attempt[0]) == (0, 0, 0)
    assert stage.verbs.requeue([attempt[0]]).run(stage.conn) == []  # it waits already
    (lease,) = stage.claim("B")
    assert lease.token == 3
    stage.verbs.complete([(lease.job_id, lease.token)]).run(stage.conn)
    assert stage.outcomes(attempt[0]) == [(1, "failed"), (2, "requeued"), (3, "succeeded")]
    assert stage.violations() == []


def test_two_operators_who_requeue_one_job_at_once_queue_it_once(stage: Stage) -> None:
    attempt = stage.running("A", max_attempts=1)
    stage.verbs.fail([attempt]).run(stage.conn)
    first = stage.connect(isolation="read committed")
    assert stage.verbs.requeue([attempt[0]]).run(first) == [attempt[0]]
    second = stage.background(stage.verbs.requeue([attempt[0]]), stage.connect()).until_blocked()
    first.commit()
    assert second.answer() == []
    assert stage.value("select count(*) from {schema}.ready") == 1


def test_delays_grow_exponentially_up_to_the_cap_with_jitter(stage: Stage) -> None:
    delays = "select {schema}.backoff(%s, 2, 300) from generate_series(1, 200)"
    for failures, longest in ((1, 2), (2, 4), (5, 32), (20, 300), (1000, 300)):
        seen = [row[0] for row in stage.execute(delays, failures)]
        assert longest / 2 <= min(seen) < max(seen) <= longest


def test_a_failed_job_waits_for_its_backoff_or_for_the_delay_it_was_given(stage: Stage) -> None:
    wait = (
        "select extract(epoch from j.next_run_at - a.at) from {schema}.jobs j "
        "join {schema}.attempt a on a.job_id = j.id where j.id = %s"
    )
    backed_off, told = (stage.running("A", backoff_seconds=100) for _ in range(2))
    stage.verbs.fail([backed_off, told], delays=[None, 7000.0]).run(stage.conn)
    assert 50 <= stage.value(wait, backed_off[0]) <= 100
    assert stage.value(wait, told[0]) == 7000


def test_a_job_handed_back_or_reclaimed_keeps_its_place_before_the_backlog(stage: Stage) -> None:
    first = stage.running("A")
    second = stage.running("A")
    later = stage.enqueue()
    stage.verbs.release([second]).run(stage.conn)
    stage.expire(first[0])
    stage.verbs.reclaim().run(stage.conn)
    assert [x.job_id for x in stage.claim("B", 10)] == [first[0], second[0], later]


def test_a_running_job_is_asked_to_stop_and_its_worker_is_told_at_the_next_renewal(
    stage: Stage,
) -> None:
    attempt = stage.running("A")
    (cancelled,) = stage.verbs.cancel([attempt[0]], "customer left").run(stage.conn)
    assert cancelled.verdict == "requested"
    assert stage.verbs.renew([attempt]).run(stage.conn)[0].cancel_reason == "customer left"
    assert stage.verbs.cancel_attempt([attempt], "customer left").run(stage.conn) == []
    job = stage.job(attempt[0])
    assert (job["state"], job["error"]) == ("cancelled", {"reason": "customer left"})


def test_a_job_on_its_way_from_the_queue_to_a_worker_is_not_missed_by_a_cancel(
    stage: Stage,
) -> None:
    job_id = stage.enqueue()
    claimer = stage.connect(isolation="read committed")
    stage.claim("A", conn=claimer)
    cancel = stage.background(stage.verbs.cancel([job_id]), stage.connect()).until_blocked()
    claimer.commit()
    assert [x.verdict for x in cancel.answer()] == ["requested"]


@pytest.mark.parametrize("end", ["reclaim", "fail", "snooze", "release"])
def test_a_job_that_was_asked_to_stop_does_not_run_again_however_its_attempt_ends(
    stage: Stage, end: str
) -> None:
    asked, other = stage.running("A"), stage.running("A")
    stage.verbs.cancel([asked[0]], "customer left").run(stage.conn)
    if end == "reclaim":
        stage.expire(asked[0], other[0])
        states = {x.job_id: x.state for x in stage.verbs.reclaim().run(stage.conn)}
        assert states == {asked[0]: "cancelled", other[0]: "queued"}
    elif end == "snooze":
        assert stage.verbs.snooze([asked, other], [5, 6]).run(stage.conn) == []
    else:
        assert getattr(stage.verbs, end)([asked, other]).run(stage.conn) == []
    job = stage.job(asked[0])
    assert (job["state"], job["error"]) == ("cancelled", {"reason": "customer left"})
    assert stage.state(other[0]) in ("queued", "scheduled")
    assert stage.violations() == []


def test_counts_start_anew_at_a_requeue_and_stay_so_when_the_job_has_ended(stage: Stage) -> None:
    attempt = stage.running("A", max_attempts=1)
    stage.verbs.fail([attempt]).run(stage.conn)
    stage.verbs.requeue([attempt[0]]).run(stage.conn)
    (lease,) = stage.claim("B")
    stage.verbs.complete([(lease.job_id, lease.token)]).run(stage.conn)
    assert counts(stage, attempt[0]) == (1, 0, 0)


def test_a_job_that_is_named_twice_is_asked_to_stop_once(stage: Stage) -> None:
    attempt = stage.running("A")
    waiting = stage.enqueue()
    named = [attempt[0], waiting, attempt[0], waiting]
    verdicts = [x.verdict for x in stage.verbs.cancel(named).run(stage.conn)]
    assert sorted(verdicts) == ["cancelled", "requested"]
