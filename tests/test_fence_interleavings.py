"""Two connections against the fence: every interleaving that lets a stale write land elsewhere.

Real sessions play the workers; order is forced by open transactions and by waiting until the server
says that a session is blocked. Each verb that ends or extends an attempt goes through each of them,
in READ COMMITTED and in REPEATABLE READ, on every server version. What is asserted is always the
same: the stale attempt changed nothing, the rightful one can end the job, and no invariant is
broken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import Connection, errors

from faultline.call import Call, translated_errors
from faultline.errors import StaleLease, WrongIsolation
from faultline.protocol import Protocol
from tests.stage import Stage

pytestmark = pytest.mark.both_servers

Attempt = tuple[UUID, int]
ISOLATIONS = ("read committed", "repeatable read", "serializable")

# Every verb by which an attempt can change its job. Those that raise do so with StaleLease.
VERBS: dict[str, Callable[[Protocol, Attempt], Call[Any]]] = {
    "complete": lambda verbs, attempt: verbs.complete([attempt], [{"late": True}]),
    "complete_one": lambda verbs, attempt: verbs.complete_one(*attempt, {"late": True}),
    "fail": lambda verbs, attempt: verbs.fail([attempt], ["late"]),
    "fail_dead": lambda verbs, attempt: verbs.fail([attempt], ["late"], dead=[True]),
    "snooze": lambda verbs, attempt: verbs.snooze([attempt], [0]),
    "release": lambda verbs, attempt: verbs.release([attempt]),
    "cancel_attempt": lambda verbs, attempt: verbs.cancel_attempt([attempt]),
    "execute": lambda verbs, attempt: verbs.execute([attempt]),
    "renew": lambda verbs, attempt: verbs.renew([attempt]),
    "assert_fence": lambda verbs, attempt: verbs.assert_fence(*attempt),
    "fence": lambda verbs, attempt: verbs.fence(*attempt),
    "begin_step": lambda verbs, attempt: verbs.begin_step(*attempt, "step"),
    "record_step": lambda verbs, attempt: verbs.record_step(*attempt, "step"),
}
RAISING = {"complete_one", "assert_fence", "fence", "begin_step", "record_step"}
SHARING = RAISING - {"complete_one"}  # a key share does not conflict with a renewal
every_verb = pytest.mark.parametrize("verb", VERBS)
every_isolation = pytest.mark.parametrize("isolation", ISOLATIONS)


def refusal(call: Call[Any], conn: Connection[Any]) -> str:
    """Why the call was refused; fails if it was not."""
    try:
        answer = call.run(conn)
    except StaleLease as stale:
        return stale.reason
    assert len(answer) == 1, "the stale attempt was accepted"
    return getattr(answer[0], "reason", None) or {"lost": "lost"}[answer[0].verdict]


def lands(call: Call[Any], conn: Connection[Any]) -> bool:
    """Whether the open transaction commits after this call, for a client that heeds the answer."""
    try:
        if call.run(conn):
            return False
        with translated_errors("faultline"):
            conn.commit()
    except (StaleLease, errors.SerializationFailure, WrongIsolation):
        return False
    return True


def ends_well(stage: Stage, attempt: Attempt) -> None:
    """The rightful attempt completes, exactly once, and nothing is broken."""
    assert stage.verbs.complete([attempt], [{"by": "B"}]).run(stage.conn) == []
    job_id, token = attempt
    job = stage.job(job_id)
    assert (job["state"], job["fencing_token"], job["result"]) == ("succeeded", token, {"by": "B"})
    assert [entry["fencing_token"] for entry in stage.reading.ledger(stage.conn, job_id)] == [token]
    assert stage.violations() == []


@every_verb
def test_a_worker_that_wakes_after_a_takeover_can_change_nothing(stage: Stage, verb: str) -> None:
    stale = stage.running("A")
    rightful = stage.take_over(stale[0], "B")
    assert rightful[1] > stale[1]
    assert refusal(VERBS[verb](stage.verbs, stale), stage.conn) in ("token_mismatch", "lost")
    ends_well(stage, rightful)


@every_verb
def test_a_worker_that_wakes_after_its_successor_succeeded_can_change_nothing(
    stage: Stage, verb: str
) -> None:
    stale = stage.running("A")
    rightful = stage.take_over(stale[0], "B")
    ends_well(stage, rightful)
    assert refusal(VERBS[verb](stage.verbs, stale), stage.conn) in ("token_mismatch", "lost")
    assert stage.outcomes(stale[0]) == [(stale[1], "expired"), (rightful[1], "succeeded")]
    assert stage.state(stale[0]) == "succeeded"
    assert stage.violations() == []


@every_verb
def test_a_lease_that_has_expired_is_dead_even_if_nobody_has_reclaimed_it(
    stage: Stage, verb: str
) -> None:
    attempt = stage.running("A")
    stage.expire(attempt[0])
    assert refusal(VERBS[verb](stage.verbs, attempt), stage.conn) in ("lease_expired", "lost")
    ends_well(stage, stage.take_over(attempt[0], "B"))


@every_verb
def test_a_burnt_token_is_dead_even_if_no_higher_one_exists_yet(stage: Stage, verb: str) -> None:
    attempt = stage.running("A")
    stage.expire(attempt[0])
    stage.verbs.reclaim().run(stage.conn)
    assert refusal(VERBS[verb](stage.verbs, attempt), stage.conn) in ("lease_expired", "lost")
    assert stage.state(attempt[0]) == "queued"
    (lease,) = stage.claim("B")
    ends_well(stage, (lease.job_id, lease.token))


@every_verb
@every_isolation
def test_a_transaction_opened_before_the_takeover_cannot_carry_a_stale_write_over_it(
    stage: Stage, verb: str, isolation: str
) -> None:
    stage.execute("create table effect (job_id uuid, by text)")
    stale = stage.running("A")
    a = stage.connect(isolation=isolation)
    a.execute("insert into effect values (%s, 'A')", (stale[0],))
    a.execute("select count(*) from faultline.jobs")  # the snapshot, with A's lease alive in it
    rightful = stage.take_over(stale[0], "B")
    assert not lands(VERBS[verb](stage.verbs, stale), a)
    a.rollback()
    assert stage.execute("select * from effect") == []
    ends_well(stage, rightful)


@every_verb
def test_a_stale_write_that_waits_for_the_reclaim_in_progress_is_refused_when_it_commits(
    stage: Stage, verb: str
) -> None:
    stale = stage.running("A")
    stage.expire(stale[0])
    reclaimer = stage.connect(isolation="read committed")
    assert len(stage.verbs.reclaim().run(reclaimer)) == 1
    # It is expired, so most verbs do not even wait for the row; these lock it first.
    late = stage.background(VERBS[verb](stage.verbs, stale), stage.connect())
    if verb in ("assert_fence", "record_step"):
        late.until_blocked()
    reclaimer.commit()
    if verb in RAISING:
        with pytest.raises(StaleLease):
            late.answer()
    else:
        assert len(late.answer()) == 1
    (lease,) = stage.claim("B")
    ends_well(stage, (lease.job_id, lease.token))


@pytest.mark.parametrize("verb", sorted(VERBS.keys() - {"renew", "execute"}))
def test_a_renewal_that_commits_while_an_ending_waits_does_not_make_a_live_worker_stale(
    stage: Stage, verb: str
) -> None:
    stage.be_patient()
    attempt = stage.running("A")
    keeper = stage.connect(isolation="read committed")
    assert stage.verbs.renew([attempt]).run(keeper)[0].verdict == "renewed"
    worker = stage.connect(isolation="read committed")
    ending = stage.background(VERBS[verb](stage.verbs, attempt), worker)
    if verb not in SHARING:
        ending.until_blocked()
    keeper.commit()
    answer = ending.answer()
    assert verb in SHARING or not answer
    worker.commit()
    assert stage.refusals(attempt[0]) == []
    assert stage.violations() == []


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
@pytest.mark.parametrize("verb", sorted(VERBS.keys() - {"renew"}))
def test_a_renewal_after_the_snapshot_is_a_retry_and_never_a_stale_lease(
    stage: Stage, verb: str, isolation: str
) -> None:
    attempt = stage.running("A")
    stage.expire(attempt[0])
    worker = stage.connect(isolation=isolation)
    worker.execute("select count(*) from faultline.jobs")  # in this snapshot the lease is over
    stage.execute("update {schema}.lease set expires_at = clock_timestamp() + interval '30 s'")
    with pytest.raises(errors.SerializationFailure):
        VERBS[verb](stage.verbs, attempt).run(worker)
    worker.rollback()
    assert stage.refusals(attempt[0]) == []
    ends_well(stage, attempt)


@every_isolation
@pytest.mark.parametrize("verb", ["complete", "complete_one", "fail", "snooze", "release"])
def test_a_reclaim_cannot_slip_between_an_ending_and_its_commit(
    stage: Stage, verb: str, isolation: str
) -> None:
    attempt = stage.running("A")
    worker = stage.connect(isolation=isolation)
    assert not VERBS[verb](stage.verbs, attempt).run(worker)
    stage.expire_unlocked(attempt[0])
    assert stage.verbs.reclaim().run(stage.conn) == []  # and it did not wait
    worker.commit()
    assert stage.verbs.reclaim().run(stage.conn) == []
    assert len(stage.outcomes(attempt[0])) == 1
    assert stage.violations() == []


@pytest.mark.parametrize("verb", ["complete", "complete_one", "fail", "snooze", "release"])
def test_an_ending_that_rolls_back_leaves_the_job_to_be_reclaimed(stage: Stage, verb: str) -> None:
    attempt = stage.running("A")
    worker = stage.connect(isolation="read committed")
    assert not VERBS[verb](stage.verbs, attempt).run(worker)
    worker.rollback()
    ends_well(stage, stage.take_over(attempt[0], "B"))


@every_verb
def test_a_stale_caller_in_an_open_transaction_does_not_lock_its_successors_lease(
    stage: Stage, verb: str
) -> None:
    stale = stage.running("A")
    rightful = stage.take_over(stale[0], "B")
    a = stage.connect(isolation="read committed")
    refusal(VERBS[verb](stage.verbs, stale), a)
    stage.conn.execute("set lock_timeout = '2s'")
    ends_well(stage, rightful)  # would fail if A's open transaction held the row
    a.rollback()


@pytest.mark.parametrize("verb", ["claim", "claim_one", "renew", "reclaim"])
@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_claim_renew_and_reclaim_do_not_judge_leases_by_a_frozen_snapshot(
    stage: Stage, verb: str, isolation: str
) -> None:
    attempt = stage.running("A")
    calls: dict[str, Call[Any]] = {
        "claim": stage.verbs.claim("B", [1], max_jobs=10),
        "claim_one": stage.verbs.claim_one("B", [1]),
        "renew": stage.verbs.renew([attempt]),
        "reclaim": stage.verbs.reclaim(),
    }
    frozen = stage.connect(isolation=isolation)
    with pytest.raises(WrongIsolation, match=f"{verb.split('_')[0]} needs READ COMMITTED"):
        calls[verb].run(frozen)


def test_the_unique_pair_alone_does_not_stop_a_stale_writer_but_burning_its_token_does(
    stage: Stage,
) -> None:
    stale = stage.running("A")
    rightful = stage.take_over(stale[0], "B")
    forge = (
        "insert into {schema}.attempt (job_id, fencing_token, claimed_at, at, started, final, "
        "outcome) values (%s, %s, now(), now(), true, false, 'failed')"
    )
    with pytest.raises(psycopg.errors.UniqueViolation):
        stage.execute(forge, *stale)  # burnt: (job, 1) has its ending
    stage.execute("delete from {schema}.attempt where job_id = %s", stale[0])
    stage.execute(forge, *stale)  # not burnt: (job, 1) goes in happily beside (job, 2)
    stage.execute("delete from {schema}.attempt where job_id = %s", stale[0])
    assert stage.verbs.complete([rightful]).run(stage.conn) == []


def test_a_second_success_is_refused_by_the_constraint_whoever_writes_it(stage: Stage) -> None:
    job_id, token = stage.running("A")
    assert stage.verbs.complete([(job_id, token)]).run(stage.conn) == []
    with pytest.raises(psycopg.errors.UniqueViolation):
        stage.execute(
            "insert into {schema}.attempt (job_id, fencing_token, claimed_at, at, started, final, "
            "outcome) values (%s, %s, now(), now(), true, true, 'succeeded')",
            job_id,
            token + 1,
        )
