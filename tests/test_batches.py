"""Many at once: overlapping batches, and one bad row in the middle of a good batch."""

from __future__ import annotations

import random
import threading
from typing import Any
from uuid import UUID

import psycopg
import pytest

from faultline.protocol import Protocol
from tests.stage import Stage

pytestmark = pytest.mark.both_servers
TOP = 2**53 - 1
CALLERS = 6
ROUNDS = 25


def test_one_open_transaction_does_not_cost_the_worker_its_other_leases(stage: Stage) -> None:
    first, second = stage.running("A"), stage.running("A")
    open_transaction = stage.connect(isolation="read committed")
    stage.verbs.complete_one(*first).run(open_transaction)
    verdicts = {x.job_id: x.verdict for x in stage.verbs.renew([first, second]).run(stage.conn)}
    assert verdicts == {first[0]: "busy", second[0]: "renewed"}
    assert stage.refusals(first[0]) == []


def test_one_open_transaction_does_not_stop_the_rescue_of_the_others(stage: Stage) -> None:
    held, free = stage.running("A"), stage.running("A")
    open_transaction = stage.connect(isolation="read committed")
    stage.verbs.assert_fence(*held).run(open_transaction)
    stage.execute("update {schema}.lease set expires_at = clock_timestamp() - interval '1 s'")
    assert [x.job_id for x in stage.verbs.reclaim().run(stage.conn)] == [free[0]]


def test_how_attempts_ended_is_answered_in_the_order_of_the_question(stage: Stage) -> None:
    again, dead = stage.running("A", max_attempts=2), stage.running("A", max_attempts=1)
    done, going_on = stage.running("A"), stage.running("A")
    assert stage.verbs.fail([dead, again]).run(stage.conn) == []
    assert stage.verbs.complete([done]).run(stage.conn) == []
    asked = [done, going_on, dead, again, (done[0], done[1] + 1)]
    assert stage.verbs.outcomes(asked).run(stage.conn) == [
        ("succeeded", True),
        (None, None),
        ("failed", True),
        ("failed", False),
        (None, None),
    ]
    assert stage.verbs.outcomes([]).run(stage.conn) == []


@pytest.mark.parametrize("at_once", [1, 6])
def test_two_claims_never_wait_for_each_other_and_never_share_a_job(
    stage: Stage, at_once: int
) -> None:
    ids = [stage.enqueue() for _ in range(2 * at_once)]
    first, second = (stage.connect(isolation="read committed") for _ in range(2))
    second.execute("set lock_timeout = '1s'")
    ours = stage.claim("A", at_once, first)
    theirs = stage.claim("B", at_once, second)
    first.commit()
    second.commit()
    assert [x.job_id for x in ours + theirs] == ids
    assert len(ours) == len(theirs) == at_once


def test_a_reclaim_and_a_renewal_of_one_lease_agree_on_who_has_it(stage: Stage) -> None:
    attempt = stage.running("A")
    keeper = stage.connect(isolation="read committed")
    assert stage.verbs.renew([attempt]).run(keeper)[0].verdict == "renewed"
    stage.expire_unlocked(attempt[0])
    assert stage.verbs.reclaim().run(stage.conn) == []  # skipped, not waited for
    keeper.commit()
    assert stage.verbs.reclaim().run(stage.conn) == []  # and alive


WAITING: dict[str, Any] = {
    "complete": lambda verbs, batch: verbs.complete(batch),
    "fail": lambda verbs, batch: verbs.fail(batch),
    "snooze": lambda verbs, batch: verbs.snooze(batch, [0.0] * len(batch)),
    "release": lambda verbs, batch: verbs.release(batch),
    "cancel_attempt": lambda verbs, batch: verbs.cancel_attempt(batch),
    "execute": lambda verbs, batch: verbs.execute(batch),
}


@pytest.mark.parametrize("verb", WAITING)
def test_a_verb_that_may_wait_takes_the_leases_in_the_order_of_the_jobs(
    stage: Stage, verb: str
) -> None:
    stage.be_patient()
    low, high = sorted(stage.running("A") for _ in range(2))
    row = "select 1 from {schema}.lease where job_id = %s for update"
    holder = stage.connect(isolation="read committed")
    holder.execute(row.replace("{schema}", stage.schema), (high[0],))
    call = WAITING[verb](stage.verbs, [high, low])
    waiting = stage.background(call, stage.connect()).until_blocked()
    assert stage.execute(row + " skip locked", low[0]) == [], "the lower job was not taken first"
    holder.rollback()
    waiting.answer()


def storm(stage: Stage, seed: int, attempts: list[tuple[UUID, int]], found: list[str]) -> None:
    """One caller: overlapping batches in random order, against all the others."""
    chance = random.Random(seed)
    verbs: Protocol = stage.verbs
    with psycopg.connect(stage.url, autocommit=True) as conn:
        for _ in range(ROUNDS):
            batch = chance.sample(attempts, 40)
            call: Any = chance.choice(
                [
                    verbs.complete(batch[:3]),
                    verbs.fail(batch[:3], delays=[0.0] * 3),
                    verbs.snooze(batch[:2], [0.0] * 2),
                    verbs.release(batch[:2]),
                    verbs.renew(batch),
                    verbs.execute(batch),
                    verbs.reclaim(40),
                    verbs.cancel([job_id for job_id, _ in batch[:2]]),
                    verbs.promote(),
                ]
            )
            try:
                call.run(conn)
            except psycopg.Error as error:
                found.append(f"{call.statement}: {error}")


def test_overlapping_batches_from_six_connections_never_deadlock(stage: Stage) -> None:
    for _ in range(200):
        stage.enqueue(max_attempts=100)
    attempts = [(x.job_id, x.token) for x in stage.claim("A", 200)]
    stage.execute(
        "update {schema}.lease set expires_at = clock_timestamp() - interval '1 s' "
        "where hashtext(job_id::text) %% 5 = 0 and %s",
        True,
    )
    found: list[str] = []
    callers = [
        threading.Thread(target=storm, args=(stage, seed, attempts, found))
        for seed in range(CALLERS)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert found == []
    assert stage.violations() == []
    ended = stage.value("select count(*) from {schema}.attempt")
    assert ended > 50, "the storm hardly touched anything"


@pytest.mark.parametrize("at_once", [1, 10])
def test_a_token_at_the_top_is_parked_and_its_neighbours_are_claimed(
    stage: Stage, at_once: int
) -> None:
    before, stone, after = (stage.enqueue() for _ in range(3))
    stage.execute("update {schema}.ready set fencing_token = %s where job_id = %s", TOP, stone)
    assert claimed(stage, at_once) == [before, after]
    assert stage.verbs.promote().run(stage.conn) == 0
    job = stage.job(stone)
    assert (job["state"], job["quarantine_reason"]) == ("quarantined", "token_exhausted")
    assert job["fencing_token"] == TOP
    assert stage.verbs.requeue([stone]).run(stage.conn) == []  # it has no token left to run under


def test_the_last_token_of_the_range_can_still_be_used_and_is_never_passed(stage: Stage) -> None:
    job_id = stage.enqueue()
    stage.execute("update {schema}.ready set fencing_token = %s", TOP - 1)
    (lease,) = stage.claim("A")
    assert lease.token == TOP
    stage.expire(job_id)
    stage.verbs.reclaim().run(stage.conn)
    assert stage.claim("B") == []
    stage.verbs.promote().run(stage.conn)
    assert stage.state(job_id) == "quarantined"
    assert stage.outcomes(job_id) == [(TOP, "expired")]


SETTLE: dict[str, Any] = {
    "complete": lambda verbs, batch: verbs.complete(batch),
    "fail": lambda verbs, batch: verbs.fail(batch),
    "snooze": lambda verbs, batch: verbs.snooze(batch, [0.0] * len(batch)),
    "release": lambda verbs, batch: verbs.release(batch),
    "cancel_attempt": lambda verbs, batch: verbs.cancel_attempt(batch),
    "reclaim": lambda verbs, _: verbs.reclaim(),
}


@pytest.mark.parametrize("verb", SETTLE)
def test_an_attempt_that_already_has_an_ending_is_quarantined_and_its_neighbours_settle(
    stage: Stage, verb: str
) -> None:
    before, bad, after = batch = [stage.running("A") for _ in range(3)]
    stage.execute(
        "insert into {schema}.attempt (job_id, fencing_token, claimed_at, at, started, final, "
        "outcome) values (%s, %s, now(), now(), true, false, 'failed')",
        *bad,
    )
    if verb == "reclaim":
        stage.expire(*(job_id for job_id, _ in batch))
    SETTLE[verb](stage.verbs, batch).run(stage.conn)
    job = stage.job(bad[0])
    assert (job["state"], job["quarantine_reason"]) == ("quarantined", "attempt_already_ended")
    assert job["quarantine_evidence"]["worker"] == "A"
    assert {stage.state(job_id) for job_id, _ in (before, after)}.isdisjoint({"running"})
    assert len(stage.outcomes(before[0])) == len(stage.outcomes(after[0])) == 1


def claimed(stage: Stage, at_once: int) -> list[UUID]:
    """Everything that can be claimed, so many at a time; one takes another path than many."""
    found: list[UUID] = []
    while leases := stage.claim("A", at_once):
        found += [lease.job_id for lease in leases]
    return found


one_or_many = pytest.mark.parametrize("at_once", [1, 10])


@one_or_many
def test_a_forged_lease_is_quarantined_and_its_neighbours_are_claimed(
    stage: Stage, at_once: int
) -> None:
    before, forged, after = (stage.enqueue() for _ in range(3))
    stage.execute(
        "insert into {schema}.lease select %s, 1, 1, clock_timestamp() + interval '1 h', "
        "clock_timestamp(), 1, 0, 0, 0, 30, true, 'intruder'",
        forged,
    )
    assert claimed(stage, at_once) == [before, after]
    job = stage.job(forged)
    assert (job["state"], job["quarantine_reason"]) == ("quarantined", "lease_already_held")
    assert job["quarantine_evidence"]["lease"]["worker"] == "intruder"
    assert job["fencing_token"] == 1
    assert stage.violations() == []  # the intruder's lease has its ending, the job one place
    assert stage.verbs.requeue([forged]).run(stage.conn) == [forged]
    assert [(x.job_id, x.token) for x in stage.claim("A", 10)] == [(forged, 3)]


@one_or_many
def test_a_pointer_to_a_job_that_is_gone_is_quarantined_and_its_neighbours_are_claimed(
    stage: Stage, at_once: int
) -> None:
    before, gone, after = (stage.enqueue() for _ in range(3))
    stage.execute("delete from {schema}.job where id = %s", gone)
    assert claimed(stage, at_once) == [before, after]
    reason = stage.value("select reason from {schema}.quarantine where job_id = %s", gone)
    assert reason == "job_missing"
    assert stage.value("select count(*) from {schema}.lease where job_id = %s", gone) == 0


def test_a_job_queued_twice_by_force_is_quarantined_and_its_neighbours_are_promoted(
    stage: Stage,
) -> None:
    due = [stage.enqueue(delay_seconds=60) for _ in range(2)]
    twice = stage.enqueue()
    stage.execute(
        "insert into {schema}.scheduled (job_id, run_at, lane, lease_seconds) "
        "values (%s, now(), 1, 30)",
        twice,
    )
    stage.execute("update {schema}.scheduled set run_at = now()")
    assert stage.verbs.promote().run(stage.conn) == 2
    assert {stage.state(job_id) for job_id in due} == {"queued"}
    reason = stage.value("select reason from {schema}.quarantine where job_id = %s", twice)
    assert reason == "already_queued"


@pytest.mark.parametrize("verb", ["fail", "snooze", "release", "reclaim"])
def test_a_job_that_is_elsewhere_already_is_quarantined_and_its_neighbours_settle(
    stage: Stage, verb: str
) -> None:
    before, bad, after = batch = [stage.running("A") for _ in range(3)]
    place = "scheduled (job_id, lane, lease_seconds, run_at)"
    values = "%s, 1, 30, now() + interval '1 h'"
    if verb in ("release", "reclaim"):
        place, values = "ready (job_id, lane, lease_seconds)", "%s, 1, 30"
    stage.execute(f"insert into {{schema}}.{place} values ({values})", bad[0])
    if verb == "reclaim":
        stage.expire(*(job_id for job_id, _ in batch))
    SETTLE[verb](stage.verbs, batch).run(stage.conn)
    reason = stage.value("select reason from {schema}.quarantine where job_id = %s", bad[0])
    assert reason == "already_queued"
    assert {stage.state(job_id) for job_id, _ in (before, after)} <= {"scheduled", "queued"}
    assert stage.value("select count(*) from {schema}.lease") == 0


def test_a_dead_job_that_is_queued_already_by_force_does_not_stop_a_requeue(stage: Stage) -> None:
    dead = [stage.running("A", max_attempts=1) for _ in range(3)]
    stage.verbs.fail(dead).run(stage.conn)
    stage.execute(
        "insert into {schema}.ready (job_id, lane, lease_seconds) values (%s, 1, 30)", dead[1][0]
    )
    assert len(stage.verbs.requeue([job_id for job_id, _ in dead]).run(stage.conn)) == 3
    assert {stage.state(job_id) for job_id, _ in dead} == {"queued"}


def test_a_thousand_bad_rows_do_not_stop_the_claim_of_one_good_job(stage: Stage) -> None:
    ids = [stage.value("select {schema}.new_id()") for _ in range(1000)]
    stage.verbs.enqueue_many("work", ids, [{} for _ in ids]).run(stage.conn)
    stage.execute("delete from {schema}.job")
    good = stage.enqueue()
    assert [lease.job_id for lease in stage.claim("A", 1)] == [good]


def test_a_token_out_of_range_cannot_even_be_forged(stage: Stage) -> None:
    stage.enqueue()
    with pytest.raises(psycopg.errors.CheckViolation, match="a_queued_token_is_in_range"):
        stage.execute("update {schema}.ready set fencing_token = %s", TOP + 1)


def test_a_job_that_has_used_up_its_tokens_can_still_be_cancelled(stage: Stage) -> None:
    job_id = stage.enqueue()
    stage.execute("update {schema}.ready set fencing_token = %s", TOP)
    stage.verbs.promote().run(stage.conn)
    assert stage.verbs.cancel([job_id]).run(stage.conn)[0].verdict == "cancelled"
    assert stage.state(job_id) == "cancelled"


def test_a_renewal_that_comes_after_the_attempts_own_ending_is_no_evidence_of_staleness(
    stage: Stage,
) -> None:
    attempt = stage.running("A")
    stage.verbs.complete([attempt]).run(stage.conn)
    assert stage.verbs.renew([attempt]).run(stage.conn)[0].verdict == "lost"
    assert stage.refusals(attempt[0]) == []


def test_a_worker_does_not_wait_for_an_open_transaction_that_asks_it_to_stop(
    stage: Stage,
) -> None:
    attempt = stage.running("A")
    producer = stage.connect(isolation="read committed")
    stage.verbs.cancel([attempt[0]]).run(producer)
    stage.conn.execute("set lock_timeout = '2s'")
    assert stage.verbs.renew([attempt]).run(stage.conn)[0].verdict == "renewed"
    assert stage.verbs.complete([attempt]).run(stage.conn) == []


def test_a_stale_row_in_a_batch_does_not_cost_its_neighbours_their_commit(stage: Stage) -> None:
    before, stale, after = batch = [stage.running("A") for _ in range(3)]
    rightful = stage.take_over(stale[0], "B")
    refused = stage.verbs.complete(batch, [1, 2, 3]).run(stage.conn)
    assert [(x.job_id, x.token, x.current_token) for x in refused] == [(*stale, rightful[1])]
    assert stage.job(before[0])["result"] == 1
    assert stage.job(after[0])["result"] == 3
    assert stage.state(stale[0]) == "running"


def test_a_stale_and_a_live_attempt_of_one_job_in_one_batch_are_told_apart(stage: Stage) -> None:
    stale = stage.running("A")
    rightful = stage.take_over(stale[0], "A")
    refused = stage.verbs.complete([stale, rightful], ["old", "new"]).run(stage.conn)
    assert stage.job(stale[0])["result"] == "new"
    assert [x.token for x in refused] == [stale[1]]
    assert stage.violations() == []


def test_a_swap_completes_refuses_and_claims_in_one_commit(stage: Stage) -> None:
    done, stale = stage.running("A"), stage.running("A")
    rightful = stage.take_over(stale[0], "B")
    waiting = stage.enqueue(payload={"n": 3})
    lanes = [lane.lane for lane in stage.verbs.lanes(["default"]).run(stage.conn)]
    session = stage.connect(isolation="read committed")
    call = stage.verbs.swap([done, stale], ["yes", "no"], "A", lanes, max_jobs=10)
    refused, leases = call.run(session)
    assert [(x.job_id, x.token, x.current_token) for x in refused] == [(*stale, rightful[1])]
    assert [(x.job_id, x.token, x.payload) for x in leases] == [(waiting, 1, {"n": 3})]
    assert stage.state(done[0]) == "running"  # nothing before the commit
    session.commit()
    assert (stage.state(done[0]), stage.state(waiting)) == ("succeeded", "running")
    assert stage.refusals(stale[0]) == [("complete", *stale[1:], rightful[1], "token_mismatch")]
    assert stage.verbs.swap([], None, "A", lanes).run(stage.conn) == ([], [])


def test_endings_of_different_jobs_under_serializable_do_not_abort_each_other(
    stage: Stage,
) -> None:
    for _ in range(4):
        stage.enqueue()
    leases = stage.claim("A", 4)
    sessions = [stage.connect(isolation="serializable") for _ in range(2)]
    for conn, lease in zip(sessions * 2, leases, strict=True):  # each after the other has begun
        assert stage.verbs.complete([(lease.job_id, lease.token)]).run(conn) == []
    for conn in sessions:
        conn.commit()
    assert [stage.state(lease.job_id) for lease in leases] == ["succeeded"] * 4
