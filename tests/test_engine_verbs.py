"""Leases that end early, and what an operator may do to jobs that wait or run.

A dead worker's leases, leases nobody learnt of, retries, and the word to a worker that its job is
to stop. Two of everything are played by two connections, one of which holds its transaction open.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from psycopg import Connection

from faultline.call import Call
from faultline.errors import InvalidArgument, WrongIsolation
from tests.stage import Stage

pytestmark = pytest.mark.both_servers


def worker_of(stage: Stage) -> dict[UUID, str]:
    return {row["job_id"]: row["worker"] for row in stage.reading.leases(stage.conn)}


def make_due(stage: Stage, *job_ids: UUID) -> None:
    due = "update {schema}.scheduled set run_at = clock_timestamp() where job_id = any (%s)"
    stage.execute(due, list(job_ids))


# ── a worker that is known to be dead ────────────────────────────────────────────────────────────


def test_the_leases_of_a_dead_worker_end_at_once_and_nobody_elses_do(stage: Stage) -> None:
    first, second = stage.running("dead"), stage.running("dead")
    alive = stage.running("alive")
    answer = stage.verbs.reclaim_dead("dead").run(stage.conn)
    assert {(x.job_id, x.token, x.worker, x.state, x.crashes) for x in answer} == {
        (*first, "dead", "queued", 1),
        (*second, "dead", "queued", 1),
    }
    assert worker_of(stage) == {alive[0]: "alive"}
    assert stage.outcomes(first[0]) == [(1, "expired")]
    assert stage.verbs.reclaim_dead("dead").run(stage.conn) == []
    assert [x.token for x in stage.claim("B", 10)] == [2, 2]
    assert stage.violations() == []


def test_only_the_jobs_named_are_taken_from_a_dead_worker_and_only_from_it(stage: Stage) -> None:
    named, spared = stage.running("dead"), stage.running("dead")
    others = stage.running("alive")
    answer = stage.verbs.reclaim_dead("dead", [named[0], others[0]]).run(stage.conn)
    assert [x.job_id for x in answer] == [named[0]]
    assert worker_of(stage) == {spared[0]: "dead", others[0]: "alive"}
    assert stage.verbs.reclaim_dead("dead", []).run(stage.conn) == []


def test_a_dead_worker_costs_only_the_jobs_it_had_started_a_crash(stage: Stage) -> None:
    started, waiting = stage.enqueue(max_crashes=1), stage.enqueue(max_crashes=1)
    for lease in stage.claim("dead", 2, started=False):
        if lease.job_id == started:
            stage.verbs.execute([(lease.job_id, lease.token)]).run(stage.conn)
    answer = stage.verbs.reclaim_dead("dead").run(stage.conn)
    assert {(x.job_id, x.state, x.crashes) for x in answer} == {
        (started, "quarantined", 1),
        (waiting, "queued", 0),
    }
    assert stage.job(started)["quarantine_reason"] == "crashed_too_often"
    assert stage.violations() == []


def test_a_worker_that_was_taken_for_dead_and_is_not_can_end_nothing(stage: Stage) -> None:
    attempt = stage.running("dead")
    stage.verbs.reclaim_dead("dead").run(stage.conn)
    (stale,) = stage.verbs.complete([attempt], ["late"]).run(stage.conn)
    assert (stale.job_id, stale.token, stale.reason) == (*attempt, "lease_expired")
    stage.claim("B")
    (stale,) = stage.verbs.complete([attempt], ["later"]).run(stage.conn)
    assert (stale.current_token, stale.reason) == (2, "token_mismatch")
    assert stage.refusals(attempt[0]) == [
        ("complete", 1, 1, "lease_expired"),
        ("complete", 1, 2, "token_mismatch"),
    ]
    assert all(r["late_seconds"] > 0 for r in stage.reading.refusals(stage.conn, attempt[0]))
    assert stage.state(attempt[0]) == "running"
    assert stage.violations() == []


def test_a_job_of_a_dead_worker_that_was_asked_to_stop_does_not_run_again(stage: Stage) -> None:
    job_id, _ = stage.running("dead")
    stage.verbs.cancel([job_id]).run(stage.conn)
    (reclaimed,) = stage.verbs.reclaim_dead("dead").run(stage.conn)
    assert reclaimed.state == stage.state(job_id) == "cancelled"


def test_a_transaction_that_the_dead_left_open_does_not_hold_up_the_rest(stage: Stage) -> None:
    held, free = stage.running("dead"), stage.running("dead")
    open_transaction = stage.connect(isolation="read committed")
    stage.verbs.assert_fence(*held).run(open_transaction)
    assert [x.job_id for x in stage.verbs.reclaim_dead("dead").run(stage.conn)] == [free[0]]
    assert worker_of(stage) == {held[0]: "dead"}


# ── leases the worker never learnt of ────────────────────────────────────────────────────────────


def test_a_claim_whose_answer_was_lost_is_handed_back_and_what_the_worker_knows_is_not(
    stage: Stage,
) -> None:
    known, others = stage.running("A"), stage.running("B")
    lost = [stage.running("A", max_crashes=1) for _ in range(3)]
    answer = stage.verbs.release_others("A", [known]).run(stage.conn)
    assert sorted(answer) == sorted(job_id for job_id, _ in lost)
    assert worker_of(stage) == {known[0]: "A", others[0]: "B"}
    for job_id, token in lost:
        assert stage.outcomes(job_id) == [(token, "released")]
        assert (stage.state(job_id), stage.job(job_id)["crashes"]) == ("queued", 0)
    assert stage.verbs.release_others("A", [known]).run(stage.conn) == []
    assert stage.violations() == []


def test_an_attempt_the_worker_knows_under_another_token_is_not_the_one_it_holds(
    stage: Stage,
) -> None:
    job_id, token = stage.running("A")
    _, again = stage.take_over(job_id, "A")
    assert stage.verbs.release_others("A", [(job_id, token)]).run(stage.conn) == [job_id]
    assert stage.outcomes(job_id) == [(token, "expired"), (again, "released")]


def test_a_job_that_nobody_learnt_of_goes_back_to_its_own_place_before_the_backlog(
    stage: Stage,
) -> None:
    lost, _ = stage.running("A")
    backlog = stage.enqueue()
    stage.expire(lost)  # the worker was away for longer than the lease; still nobody ran the job
    assert stage.verbs.release_others("A", []).run(stage.conn) == [lost]
    assert stage.job(lost)["crashes"] == 0
    assert [x.job_id for x in stage.claim("B", 2)] == [lost, backlog]


def test_handing_back_does_not_wait_for_an_ending_that_is_just_being_made(stage: Stage) -> None:
    ending, lost = stage.running("A"), stage.running("A")
    open_transaction = stage.connect(isolation="read committed")
    stage.verbs.complete_one(*ending).run(open_transaction)
    assert stage.verbs.release_others("A", []).run(stage.conn) == [lost[0]]
    open_transaction.commit()
    assert stage.state(ending[0]) == "succeeded"
    assert stage.violations() == []


def test_a_lost_lease_whose_attempt_has_an_ending_already_is_quarantined(stage: Stage) -> None:
    bad, good = stage.running("A"), stage.running("A")
    stage.execute(
        "insert into {schema}.attempt (job_id, fencing_token, claimed_at, at, started, final, "
        "outcome) values (%s, %s, now(), now(), true, false, 'expired')",
        *bad,
    )
    assert stage.verbs.release_others("A", []).run(stage.conn) == [good[0]]
    assert stage.job(bad[0])["quarantine_reason"] == "attempt_already_ended"


# ── from outside ─────────────────────────────────────────────────────────────────────────────────


def test_a_retry_makes_only_scheduled_jobs_due_and_keeps_their_counts_and_tokens(
    stage: Stage,
) -> None:
    failed = stage.running("A", max_attempts=1)
    waiting = stage.running("A")
    stage.verbs.fail([failed, waiting], delays=[None, 3600]).run(stage.conn)
    running, later = stage.running("A"), stage.enqueue(delay_seconds=3600)
    queued = stage.enqueue()
    every = [failed[0], waiting[0], running[0], later, queued, waiting[0]]
    moved = stage.verbs.retry(every).run(stage.conn)
    assert sorted(moved) == sorted([waiting[0], later])
    assert stage.verbs.retry(every).run(stage.conn) == []
    job = stage.job(waiting[0])
    assert (job["state"], job["attempts"], job["fencing_token"]) == ("queued", 1, 1)
    states = [stage.state(job) for job in (failed[0], running[0], later, queued)]
    assert states == ["failed", "running", "queued", "queued"]
    assert [x.job_id for x in stage.claim("B", 3)] == [queued, *sorted([waiting[0], later])]
    assert stage.violations() == []


def test_of_a_retry_and_a_promote_of_one_job_only_one_queues_it(stage: Stage) -> None:
    job_id = stage.enqueue(delay_seconds=60)
    make_due(stage, job_id)
    promoter = stage.connect(isolation="read committed")
    assert stage.verbs.promote().run(promoter) == 1
    retry = stage.background(stage.verbs.retry([job_id]), stage.connect()).until_blocked()
    promoter.commit()
    assert retry.answer() == []
    assert stage.state(job_id) == "queued"
    assert stage.violations() == []


def heard(ear: Connection[Any]) -> list[str]:
    """What was said on the channel up to now; a word of the test's own ends it."""
    ear.execute("select pg_notify('faultline', 'end')")
    said = []
    for notify in ear.notifies(timeout=60):
        if notify.payload == "end":
            break
        said.append(notify.payload)
    return said


def test_the_worker_of_a_running_job_hears_at_once_that_it_is_to_stop(stage: Stage) -> None:
    ear = stage.connect()
    ear.execute("listen faultline")
    running, queued = stage.running("A"), stage.enqueue()
    stage.verbs.cancel([running[0], queued]).run(stage.conn)
    assert heard(ear) == [f"cancel {running[0]}"]
    stage.verbs.cancel_attempt([running]).run(stage.conn)
    stage.verbs.cancel([running[0], queued]).run(stage.conn)
    assert heard(ear) == []


# ── what is refused ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("verb", ["reclaim_dead", "release_others", "reconcile"])
def test_the_verbs_that_judge_leases_do_not_do_so_by_a_frozen_snapshot(
    stage: Stage, verb: str
) -> None:
    calls: dict[str, Call[Any]] = {
        "reclaim_dead": stage.verbs.reclaim_dead("A"),
        "release_others": stage.verbs.release_others("A", []),
        "reconcile": stage.verbs.reconcile(),
    }
    with pytest.raises(WrongIsolation, match=f"{verb} needs READ COMMITTED"):
        calls[verb].run(stage.connect(isolation="repeatable read"))


@pytest.mark.parametrize(
    "call",
    [
        "reclaim_dead('')",
        "reclaim_dead(null)",
        "release_others(null, '{}', '{}')",
        "release_others('A', null, null)",
        "release_others('A', '{}', '{1}')",
        "reconcile(-1)",
        "reconcile(null)",
    ],
)
def test_a_null_or_a_name_left_out_is_not_taken_for_everything(stage: Stage, call: str) -> None:
    attempt = stage.running("A")
    with pytest.raises(InvalidArgument):
        Call("faultline", call, f"select * from faultline.{call}", (), list).run(stage.conn)
    assert worker_of(stage) == {attempt[0]: "A"}


# ── adopt and the last chance ────────────────────────────────────────────────────────────────────


def test_an_adopted_lease_is_its_new_owners_alone(stage: Stage) -> None:
    kept, adopted = stage.running("A"), stage.running("A")
    assert stage.verbs.adopt("A+1", [adopted]).run(stage.conn) == []
    assert [r.job_id for r in stage.verbs.reclaim_dead("A").run(stage.conn)] == [kept[0]]
    assert stage.state(adopted[0]) == "running"
    assert stage.verbs.complete([adopted]).run(stage.conn) == []
    assert stage.violations() == []


def test_a_lease_that_was_lost_cannot_be_adopted(stage: Stage) -> None:
    job_id, token = stage.running("A")
    _, current = stage.take_over(job_id, "B")
    [stale] = stage.verbs.adopt("A+1", [(job_id, token)]).run(stage.conn)
    assert (stale.job_id, stale.token, stale.current_token) == (job_id, token, current)
    assert stage.refusals(job_id) == [("adopt", token, current, "token_mismatch")]
    assert stage.value("select worker from {schema}.lease") == "B"


@pytest.mark.parametrize("batch", [1, 10], ids=["single", "batch"])
def test_a_claim_says_which_jobs_one_more_crash_would_put_into_quarantine(
    stage: Stage, batch: int
) -> None:
    jobs = {stage.enqueue(max_crashes=limit): limit for limit in (1, 2, 3)}
    seen = []
    for _ in range(3):
        leases = [lease for _ in range(3) for lease in stage.claim("A", batch)]
        seen.append({jobs[lease.job_id] for lease in leases if lease.last_chance})
        stage.expire(*jobs)
        stage.verbs.reclaim().run(stage.conn)
        stage.verbs.retry(list(jobs)).run(stage.conn)  # without a pause
    # With a limit of 1 the first claim is the last chance, but nothing is suspected yet.
    assert seen == [set(), {2}, {3}]


def test_a_lease_adopted_before_its_job_began_is_no_crash(stage: Stage) -> None:
    job_id, token = stage.running("A", max_crashes=1)
    assert stage.verbs.adopt("A+1", [(job_id, token)], started=False).run(stage.conn) == []
    stage.expire(job_id)
    [reclaimed] = stage.verbs.reclaim().run(stage.conn)
    assert (reclaimed.state, reclaimed.crashes) == ("queued", 0)
