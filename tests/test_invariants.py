"""The invariants can fail: each is broken by force and names the job. A lively crowd breaks none.

The force is a superuser's: rows are changed behind the functions, and constraints are dropped where
they stand in the way (they are a layer of their own). Every break is made beside a lively crowd of
jobs, of which none may be reported.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from uuid import UUID, uuid4

import pytest

from faultline.states import State
from tests.stage import Stage

I1 = "1_one_ending_per_token"
I2 = "2_success_is_last"
I3 = "3_no_stale_transition"
I4 = "4_tokens_only_grow"
I5 = "5_running_is_one_lease"
I6 = "6_every_attempt_ends_once"
I7 = "7_nothing_is_lost"
I8 = "8_no_duplicate_commit"


# ── jobs in every state, by the verbs ────────────────────────────────────────────────────────────


def succeeded(stage: Stage) -> UUID:
    job_id, token = stage.running()
    stage.verbs.complete([(job_id, token)]).run(stage.conn)
    return job_id


def retrying(stage: Stage) -> UUID:
    job_id, token = stage.running()
    stage.verbs.fail([(job_id, token)], delays=[3600]).run(stage.conn)
    return job_id


def snoozed(stage: Stage) -> UUID:
    job_id, token = stage.running()
    stage.verbs.snooze([(job_id, token)], [3600]).run(stage.conn)
    return job_id


def released(stage: Stage) -> UUID:
    job_id, token = stage.running()
    stage.verbs.release([(job_id, token)]).run(stage.conn)
    return job_id


def dead(stage: Stage) -> UUID:
    job_id, token = stage.running(max_attempts=1)
    stage.verbs.fail([(job_id, token)]).run(stage.conn)
    return job_id


def crashed(stage: Stage, **options: object) -> UUID:
    job_id, _ = stage.running(**options)
    stage.expire(job_id)
    stage.verbs.reclaim().run(stage.conn)
    return job_id


def taken_over(stage: Stage) -> UUID:
    """Running under token 2; the owner of token 1 was refused on every path."""
    job_id, stale = stage.running()
    stage.take_over(job_id)
    for call in (stage.verbs.complete([(job_id, stale)]), stage.verbs.fail([(job_id, stale)])):
        assert len(call.run(stage.conn)) == 1
    return job_id


def cancelled(stage: Stage) -> UUID:
    job_id = stage.enqueue()
    stage.verbs.cancel([job_id]).run(stage.conn)
    return job_id


def requeued(stage: Stage) -> UUID:
    job_id = dead(stage)
    stage.verbs.requeue([job_id]).run(stage.conn)
    return job_id


def succeeded_after_everything(stage: Stage) -> UUID:
    """Released, crashed, snoozed, failed, dead, requeued, and in a new epoch at last succeeded."""
    verbs, conn = stage.verbs, stage.conn
    job_id, token = stage.running(max_attempts=2)
    verbs.release([(job_id, token)]).run(conn)
    stage.claim(max_jobs=1000)
    job_id, token = stage.take_over(job_id)
    for settle in (verbs.snooze([(job_id, token)], [0]), verbs.fail([(job_id, token + 1)])):
        assert settle.run(conn) == []
        stage.execute("update {schema}.scheduled set run_at = now() where job_id = %s", job_id)
        verbs.promote().run(conn)
        stage.claim(max_jobs=1000)
    verbs.fail([(job_id, token + 2)]).run(conn)
    assert verbs.requeue([job_id]).run(conn) == [job_id]
    verbs.epoch_bump().run(conn)
    last = next(lease for lease in stage.claim(max_jobs=1000) if lease.job_id == job_id)
    assert verbs.complete([(job_id, last.token)]).run(conn) == []
    return job_id


def crowd(stage: Stage) -> dict[str, UUID]:
    """One job of each kind. Those that stay queued come last: to claim one is to claim all."""
    return {
        "succeeded after everything": succeeded_after_everything(stage),
        "succeeded": succeeded(stage),
        "retrying": retrying(stage),
        "snoozed": snoozed(stage),
        "dead": dead(stage),
        "quarantined": crashed(stage, max_crashes=1),
        "cancelled": cancelled(stage),
        "cancelled in quarantine": cancel(stage, crashed(stage, max_crashes=1)),
        "scheduled": stage.enqueue(delay_seconds=3600),
        "running": stage.running()[0],
        "taken over": taken_over(stage),
        "crashed": crashed(stage),
        "released": released(stage),
        "requeued": requeued(stage),
        "queued": stage.enqueue(),
    }


def cancel(stage: Stage, job_id: UUID) -> UUID:
    stage.verbs.cancel([job_id]).run(stage.conn)
    return job_id


@pytest.mark.both_servers
def test_a_lively_database_breaks_no_invariant(stage: Stage) -> None:
    jobs = crowd(stage)
    states = {stage.state(job_id) for job_id in jobs.values()}
    assert states == set(State)
    outcomes = {row[0] for row in stage.execute("select outcome from {schema}.attempt")}
    assert outcomes == {
        "succeeded", "failed", "snoozed", "released", "expired", "cancelled", "requeued",
    }  # fmt: skip
    assert stage.value("select count(*) from {schema}.refusal") == 2
    assert stage.violations() == []


@pytest.mark.both_servers
def test_a_lively_database_stays_free_of_violations_when_everything_left_is_run(
    stage: Stage,
) -> None:
    crowd(stage)
    verbs, conn = stage.verbs, stage.conn
    stage.execute("update {schema}.lease set expires_at = clock_timestamp()")
    stage.execute("update {schema}.scheduled set run_at = clock_timestamp()")
    verbs.reclaim().run(conn)
    verbs.promote().run(conn)
    leases = stage.claim("B", 1000)
    assert verbs.complete([(lease.job_id, lease.token) for lease in leases]).run(conn) == []
    assert stage.value("select count(*) from {schema}.ledger") == len(leases) + 2
    assert stage.violations() == []


# ── broken by force ──────────────────────────────────────────────────────────────────────────────


def add_attempt(
    stage: Stage, job_id: UUID, token: int, outcome: str, *, final: bool = False
) -> None:
    """An ending from nowhere, claimed and ended now."""
    stage.execute(
        "insert into {schema}.attempt "
        "(job_id, fencing_token, claimed_at, at, started, final, outcome, worker) "
        "values (%s, %s, clock_timestamp(), clock_timestamp(), true, %s, %s, 'force')",
        job_id, token, final, outcome,
    )  # fmt: skip


def add_ready(stage: Stage, job_id: UUID, token: int) -> None:
    stage.execute(
        "insert into {schema}.ready (lane, job_id, fencing_token, lease_seconds) "
        "select min(lane), %s, %s, 30 from {schema}.lane",
        job_id, token,
    )  # fmt: skip


def drop_constraint(stage: Stage, table: str, name: str) -> None:
    """On the partitioned table, and so on every partition."""
    stage.execute(f"alter table {{schema}}.{table} drop constraint {name}")


def two_endings_of_one_token(stage: Stage) -> UUID:
    job_id = retrying(stage)
    drop_constraint(stage, "attempt", "an_attempt_ends_once")
    add_attempt(stage, job_id, stage.job(job_id)["fencing_token"], "snoozed")
    return job_id


def a_success_with_a_later_token(stage: Stage) -> UUID:
    job_id = succeeded(stage)
    token = stage.job(job_id)["fencing_token"]
    add_attempt(stage, job_id, token + 1, "requeued")
    add_ready(stage, job_id, token + 1)
    return job_id


def a_success_that_is_queued_again(stage: Stage) -> UUID:
    job_id = succeeded(stage)
    add_ready(stage, job_id, stage.job(job_id)["fencing_token"])
    return job_id


def two_successes(stage: Stage) -> UUID:
    job_id = succeeded(stage)
    token = stage.job(job_id)["fencing_token"]
    stage.execute("drop index {schema}.a_job_succeeds_at_most_once")
    add_attempt(stage, job_id, token + 1, "succeeded", final=True)
    return job_id


def a_stale_ending_while_the_successor_runs(stage: Stage) -> UUID:
    """What a check without the lock would let happen."""
    job_id = taken_over(stage)
    stage.execute("update {schema}.attempt set at = clock_timestamp() where job_id = %s", job_id)
    return job_id


def a_stale_ending_after_the_successors_end(stage: Stage) -> UUID:
    job_id = taken_over(stage)
    token = stage.job(job_id)["fencing_token"]
    stage.verbs.complete([(job_id, token)]).run(stage.conn)
    stage.execute(
        "update {schema}.attempt set at = clock_timestamp() where job_id = %s and not final",
        job_id,
    )
    return job_id


def a_lower_token_claimed_later(stage: Stage) -> UUID:
    job_id = taken_over(stage)
    token = stage.job(job_id)["fencing_token"]
    stage.verbs.complete([(job_id, token)]).run(stage.conn)
    stage.execute(
        "update {schema}.attempt set claimed_at = clock_timestamp() "
        "where job_id = %s and not final",
        job_id,
    )
    return job_id


def a_pointer_behind_its_attempts(stage: Stage) -> UUID:
    """The next claim would hand out a token that was used before."""
    job_id = released(stage)
    stage.execute("update {schema}.ready set fencing_token = 0 where job_id = %s", job_id)
    return job_id


def a_lease_under_a_token_that_has_ended(stage: Stage) -> UUID:
    job_id, token = stage.running()
    add_attempt(stage, job_id, token, "snoozed")
    return job_id


def running_and_queued(stage: Stage) -> UUID:
    job_id, _ = stage.running()
    add_ready(stage, job_id, 0)
    return job_id


def lease_with(assignment: str, constraint: str | None) -> Callable[[Stage], UUID]:
    def a_lease_without_owner_token_or_expiry(stage: Stage) -> UUID:
        job_id, _ = stage.running()
        if constraint is not None:
            drop_constraint(stage, "lease", constraint)
        stage.execute(f"update {{schema}}.lease set {assignment} where job_id = %s", job_id)
        return job_id

    return a_lease_without_owner_token_or_expiry


def a_pointer_to_no_job(stage: Stage) -> UUID:
    stage.enqueue()
    job_id = uuid4()
    add_ready(stage, job_id, 0)
    return job_id


def a_waiting_job_whose_attempt_never_ended(stage: Stage) -> UUID:
    job_id = released(stage)
    stage.execute("delete from {schema}.attempt where job_id = %s", job_id)
    return job_id


def a_token_without_an_ending(stage: Stage) -> UUID:
    job_id = taken_over(stage)
    token = stage.job(job_id)["fencing_token"]
    stage.verbs.complete([(job_id, token)]).run(stage.conn)
    stage.execute("delete from {schema}.attempt where job_id = %s and not final", job_id)
    return job_id


def a_queued_job_without_its_pointer(stage: Stage) -> UUID:
    job_id = stage.enqueue()
    stage.execute("delete from {schema}.ready where job_id = %s", job_id)
    return job_id


def a_retry_without_its_pointer(stage: Stage) -> UUID:
    job_id = retrying(stage)
    stage.execute("delete from {schema}.scheduled where job_id = %s", job_id)
    return job_id


def a_cancelled_job_that_went_on(stage: Stage) -> UUID:
    job_id = cancelled(stage)
    token = stage.job(job_id)["fencing_token"]
    add_attempt(stage, job_id, token + 1, "failed", final=True)
    return job_id


# What is done by force → the invariants that must notice, and no others.
BREAKS: list[tuple[Callable[[Stage], UUID], set[str]]] = [
    (two_endings_of_one_token, {I1}),
    (a_success_with_a_later_token, {I2}),
    (a_success_that_is_queued_again, {I2}),
    (two_successes, {I2, I8}),
    (a_stale_ending_while_the_successor_runs, {I3}),
    (a_stale_ending_after_the_successors_end, {I3}),
    (a_lower_token_claimed_later, {I4}),
    (a_pointer_behind_its_attempts, {I4}),
    (a_lease_under_a_token_that_has_ended, {I4}),
    (running_and_queued, {I5}),
    (lease_with("worker = ''", "a_lease_has_an_owner"), {I5}),
    (lease_with("fencing_token = 0", "a_lease_has_a_token"), {I5}),
    (lease_with("expires_at = 'infinity'", None), {I5}),
    (a_pointer_to_no_job, {I5}),
    (a_waiting_job_whose_attempt_never_ended, {I6}),
    (a_token_without_an_ending, {I6}),
    (a_queued_job_without_its_pointer, {I7}),
    (a_retry_without_its_pointer, {I7}),
    (a_cancelled_job_that_went_on, {I8}),
]


@pytest.mark.parametrize(
    ("force", "expected"),
    [pytest.param(force, expected, id=force.__name__) for force, expected in BREAKS],
)
def test_what_was_broken_by_force_is_reported_for_that_job_and_no_other(
    stage: Stage, force: Callable[[Stage], UUID], expected: set[str]
) -> None:
    crowd(stage)
    job_id = force(stage)
    assert set(stage.violations()) == {(invariant, job_id) for invariant in expected}


def test_every_invariant_has_been_seen_to_fail_alone_or_together() -> None:
    files = {
        item.name.removesuffix(".sql")
        for item in resources.files("faultline").joinpath("sql", "invariants").iterdir()
    }
    assert files == set().union(*(expected for _, expected in BREAKS))
    assert len(files) == 8


def test_a_violation_says_in_words_what_is_wrong(stage: Stage) -> None:
    a_queued_job_without_its_pointer(stage)
    (row,) = stage.reading.violations(stage.conn)
    assert row["detail"] == "no pointer, and no attempt"
