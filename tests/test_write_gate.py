"""The fence on a user's own table: assert_fence, fence and complete_one inside the user's
transaction.

Method: a table `charge` that no queue owns; A's transaction writes to it; B takes the job over at
the worst moment. In the end there is at most one charge, and it is the one of the attempt that
succeeded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import Connection

from faultline.call import translated_errors
from faultline.errors import StaleLease
from tests.stage import Stage, until

pytestmark = pytest.mark.both_servers
BRIEF_SECONDS = 3.0  # of a lease that shall run out, but not before the session is behind its gate
every_isolation = pytest.mark.parametrize(
    "isolation", ["read committed", "repeatable read", "serializable"]
)


@pytest.fixture
def shop(stage: Stage) -> Stage:
    stage.execute("create table charge (job_id uuid, token bigint)")
    return stage


def charge(conn: Connection[Any], attempt: tuple[UUID, int]) -> None:
    conn.execute("insert into charge values (%s, %s)", attempt)


def charges(stage: Stage) -> list[tuple[UUID, int]]:
    return stage.execute("select * from charge")


def commit(conn: Connection[Any]) -> None:
    with translated_errors("faultline"):
        conn.commit()


@every_isolation
def test_a_charge_and_the_success_commit_together(shop: Stage, isolation: str) -> None:
    attempt = shop.running("A")
    a = shop.connect(isolation=isolation)
    charge(a, attempt)
    shop.verbs.complete_one(*attempt, {"charged": True}).run(a)
    a.commit()
    assert charges(shop) == [attempt]
    assert shop.job(attempt[0])["result"] == {"charged": True}


def test_a_charge_of_a_stale_worker_is_rolled_back_and_the_refusal_reported(shop: Stage) -> None:
    stale = shop.running("A")
    a = shop.connect(isolation="read committed")
    charge(a, stale)
    rightful = shop.take_over(stale[0], "B")
    with pytest.raises(StaleLease) as refused:
        shop.verbs.complete_one(*stale).run(a)
    assert (refused.value.token, refused.value.current_token) == (stale[1], rightful[1])
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        a.execute("select 1")  # whatever the client does now, nothing of this commits
    a.commit()
    assert charges(shop) == []
    reported = shop.verbs.report_refusal(*stale, "complete_one").run(shop.conn)
    assert reported is not None
    assert reported.reason == "token_mismatch"
    assert shop.refusals(stale[0]) == [("complete_one", stale[1], rightful[1], "token_mismatch")]
    (evidence,) = shop.reading.refusals(shop.conn, stale[0])
    assert evidence["worker"] == "A"
    assert evidence["late_seconds"] > 0


def test_a_refusal_of_a_live_lease_cannot_be_reported(shop: Stage) -> None:
    attempt = shop.running("A")
    assert shop.verbs.report_refusal(*attempt, "slander").run(shop.conn) is None
    assert shop.refusals(attempt[0]) == []


@every_isolation
def test_nobody_reclaims_between_the_gate_and_the_commit(shop: Stage, isolation: str) -> None:
    attempt = shop.running("A")
    a = shop.connect(isolation=isolation)
    charge(a, attempt)
    shop.verbs.assert_fence(*attempt).run(a)
    shop.execute("update {schema}.lease set expires_at = clock_timestamp() - interval '1 s'")
    assert shop.verbs.reclaim().run(shop.conn) == []
    a.commit()
    assert charges(shop) == [attempt]
    assert [x.job_id for x in shop.verbs.reclaim().run(shop.conn)] == [attempt[0]]


def test_the_gate_does_not_stand_in_the_way_of_a_renewal(shop: Stage) -> None:
    attempt = shop.running("A")
    a = shop.connect(isolation="read committed")
    shop.verbs.assert_fence(*attempt).run(a)
    assert shop.verbs.renew([attempt]).run(shop.conn)[0].verdict == "renewed"


def test_a_lease_that_dies_inside_the_transaction_is_not_kept_alive_by_a_frozen_clock(
    shop: Stage,
) -> None:
    attempt = shop.running("A")
    a = shop.connect(isolation="read committed")
    charge(a, attempt)  # now() stands still from here on
    shop.execute("update {schema}.lease set expires_at = clock_timestamp()")
    with pytest.raises(StaleLease, match="lease_expired"):
        shop.verbs.assert_fence(*attempt).run(a)
    a.rollback()
    assert charges(shop) == []


def test_a_session_that_stalls_behind_the_gate_is_cut_off_when_its_lease_runs_out(
    shop: Stage,
) -> None:
    a = shop.connect(isolation="read committed")
    attempt = shop.running("A", lease_seconds=BRIEF_SECONDS)
    charge(a, attempt)
    shop.verbs.assert_fence(*attempt).run(a)
    reclaimed = until(lambda: shop.verbs.reclaim().run(shop.conn), "the reclaim gets through")
    assert reclaimed[0].job_id == attempt[0]
    assert charges(shop) == []
    with pytest.raises(psycopg.Error, match="terminating connection"):
        a.execute("select 1")


def test_a_session_that_stalls_after_completing_is_cut_off_when_its_lease_runs_out(
    shop: Stage,
) -> None:
    a = shop.connect(isolation="read committed")
    attempt = shop.running("A", lease_seconds=BRIEF_SECONDS)
    charge(a, attempt)
    shop.verbs.complete_one(*attempt).run(a)
    until(lambda: shop.verbs.reclaim().run(shop.conn), "the reclaim gets through")
    assert charges(shop) == []
    assert shop.state(attempt[0]) == "queued"


STALLING: dict[str, Any] = {
    "complete": lambda verbs, attempt: verbs.complete([attempt]),
    "fail": lambda verbs, attempt: verbs.fail([attempt]),
    "snooze": lambda verbs, attempt: verbs.snooze([attempt], [1]),
    "release": lambda verbs, attempt: verbs.release([attempt]),
    "cancel_attempt": lambda verbs, attempt: verbs.cancel_attempt([attempt]),
    "execute": lambda verbs, attempt: verbs.execute([attempt]),
    "renew": lambda verbs, attempt: verbs.renew([attempt]),
}


def test_a_session_that_stalls_inside_any_verb_is_cut_off_when_its_lease_runs_out(
    shop: Stage,
) -> None:
    """One session for each verb, and all of them stall at the same time."""
    sessions = {verb: shop.connect(isolation="read committed") for verb in STALLING}
    attempts = {}
    for verb, session in sessions.items():
        attempts[verb] = shop.running("A", lease_seconds=BRIEF_SECONDS)
        charge(session, attempts[verb])
        STALLING[verb](shop.verbs, attempts[verb]).run(session)
    reclaimed = set[UUID]()

    def held() -> set[str]:
        reclaimed.update(x.job_id for x in shop.verbs.reclaim().run(shop.conn))
        return {verb for verb, (job_id, _) in attempts.items() if job_id not in reclaimed}

    until(lambda: not held(), "the reclaim gets through to each of them")
    assert charges(shop) == []


def test_a_claim_that_is_never_committed_is_cut_off_and_somebody_else_gets_the_job(
    shop: Stage,
) -> None:
    job_id = shop.enqueue(lease_seconds=BRIEF_SECONDS)
    alive = "select count(*) from pg_stat_activity where pid = %s"
    for many in (1, 10):
        session = shop.connect(isolation="read committed")
        assert [x.job_id for x in shop.claim("A", many, session)] == [job_id]
        pid = session.info.backend_pid
        until(lambda pid=pid: shop.value(alive, pid) == 0, "the session was cut off")
        assert shop.value("select count(*) from {schema}.ready where job_id = %s", job_id) == 1


def bounding(conn: psycopg.Connection[Any]) -> str:
    """The setting that bounds a hold: before 17, only a session that idles."""
    if conn.info.server_version >= 170000:
        return "transaction_timeout"
    return "idle_in_transaction_session_timeout"


def catch_an_error(shop: Stage, a: Connection[Any]) -> None:
    """In a savepoint, as a handler does that expects a duplicate; the server's timer ends."""
    shop.verbs.assert_fence(*shop.running("A", lease_seconds=BRIEF_SECONDS)).run(a)
    with pytest.raises(psycopg.errors.DivisionByZero), a.transaction():
        a.execute("select 1 / 0")


def roll_a_gate_back(shop: Stage, a: Connection[Any]) -> None:
    with a.transaction(force_rollback=True):
        shop.verbs.assert_fence(*shop.running("A", lease_seconds=600)).run(a)
    shop.verbs.assert_fence(*shop.running("A", lease_seconds=BRIEF_SECONDS)).run(a)


def set_and_roll_back(shop: Stage, a: Connection[Any]) -> None:
    with a.transaction(force_rollback=True):
        a.execute(f"set local {bounding(a)} = '1h'")
    shop.verbs.assert_fence(*shop.running("A", lease_seconds=BRIEF_SECONDS)).run(a)


def pass_two_gates(shop: Stage, a: Connection[Any]) -> None:
    """The second one for longer: what the first has bounded stays so."""
    for seconds in (BRIEF_SECONDS, 600):
        shop.verbs.assert_fence(*shop.running("A", lease_seconds=seconds)).run(a)


def set_one_later(shop: Stage, a: Connection[Any]) -> None:
    """A timeout of the user's, which is set anew inside and so is not what it was."""
    a.execute(f"set {bounding(a)} = '1h'")
    a.commit()
    a.execute(f"set local {bounding(a)} = '{BRIEF_SECONDS}s'")
    shop.verbs.assert_fence(*shop.running("A", lease_seconds=600)).run(a)


@pytest.mark.parametrize(
    "way", [catch_an_error, roll_a_gate_back, set_and_roll_back, pass_two_gates, set_one_later]
)
def test_a_hold_is_bounded_whatever_the_transaction_did_before(
    shop: Stage, way: Callable[[Stage, Connection[Any]], None]
) -> None:
    a = shop.connect(isolation="read committed")
    way(shop, a)
    alive, pid = "select count(*) from pg_stat_activity where pid = %s", a.info.backend_pid
    if a.info.server_version >= 170000 and way is not catch_an_error:
        shop.background("select pg_sleep(3600)", a)  # an idle session has a bound of its own
    until(lambda: shop.value(alive, pid) == 0, "the session was cut off")


def test_a_bound_that_is_switched_off_is_set_again_by_the_next_gate(shop: Stage) -> None:
    a = shop.connect(isolation="read committed")
    attempt = shop.running("A", lease_seconds=BRIEF_SECONDS)
    for _ in range(2):
        shop.verbs.assert_fence(*attempt).run(a)
        assert a.execute(f"show {bounding(a)}").fetchone() != ("0",)
        a.execute(f"set local {bounding(a)} = 0")


def test_a_second_gate_for_longer_keeps_the_moment_of_the_first(shop: Stage) -> None:
    """Not only its length: otherwise a session that passes gates again and again has no bound."""
    a = shop.connect(isolation="read committed")
    bounds = []
    for seconds in (60, 600):
        attempt = shop.running("A", lease_seconds=seconds)
        shop.verbs.assert_fence(*attempt).run(a)
        asked = "select setting::int from pg_settings where name = %s"
        (bound,) = a.execute(asked, (bounding(a),)).fetchone()
        bounds.append(bound)
        a.execute("select pg_sleep(0.01)")
    assert bounds[1] < bounds[0]


def test_a_second_gate_with_less_time_left_lowers_the_bound_again(shop: Stage) -> None:
    a = shop.connect(isolation="read committed")
    long = shop.running("A", lease_seconds=30)
    short = shop.running("A", lease_seconds=BRIEF_SECONDS)
    shop.verbs.assert_fence(*long).run(a)
    shop.verbs.assert_fence(*short).run(a)
    milliseconds = "select setting::int from pg_settings where name = %s"
    bound = a.execute(milliseconds, (bounding(a),)).fetchone()
    assert bound is not None
    assert 0 < bound[0] <= 1000 * BRIEF_SECONDS
    if bounding(a) == "transaction_timeout":
        with pytest.raises(psycopg.errors.TransactionTimeout):
            a.execute("select pg_sleep(10)")


def test_the_bound_on_the_hold_ends_with_the_transaction_and_never_raises_the_users_own(
    shop: Stage,
) -> None:
    attempt = shop.running("A")
    a = shop.connect(isolation="read committed")
    a.execute(f"set local {bounding(a)} = '20s'")
    shop.verbs.assert_fence(*attempt).run(a)
    setting = f"show {bounding(a)}"
    milliseconds = "select setting::int from pg_settings where name = %s"
    bound = a.execute(milliseconds, (bounding(a),)).fetchone()
    assert bound is not None
    assert 0 < bound[0] <= 20_001
    a.commit()
    assert a.execute(setting).fetchone() == ("0",)


def test_a_rolled_back_savepoint_gives_the_gate_back(shop: Stage) -> None:
    """Why the documents say: call the gate last, outside savepoints that may be rolled back."""
    attempt = shop.running("A")
    a = shop.connect(isolation="read committed")
    with a.transaction(force_rollback=True):
        shop.verbs.assert_fence(*attempt).run(a)
    shop.take_over(attempt[0], "B")
    with pytest.raises(StaleLease):
        shop.verbs.assert_fence(*attempt).run(a)


@every_isolation
def test_a_fence_opened_before_the_takeover_stops_the_commit(shop: Stage, isolation: str) -> None:
    stale = shop.running("A")
    a = shop.connect(isolation=isolation)
    shop.verbs.fence(*stale).run(a)
    charge(a, stale)
    shop.take_over(stale[0], "B")  # the fence alone does not hold off a reclaim
    with pytest.raises((StaleLease, psycopg.errors.SerializationFailure)):
        commit(a)
    assert charges(shop) == []
    assert shop.value("select count(*) from {schema}.fence_tx") == 0


@pytest.mark.parametrize("ending", ["complete_one", "fail"])
def test_a_fence_accepts_the_ending_that_its_own_transaction_wrote(
    shop: Stage, ending: str
) -> None:
    attempt = shop.running("A")
    a = shop.connect(isolation="read committed")
    shop.verbs.fence(*attempt).run(a)
    charge(a, attempt)
    with a.transaction():  # a savepoint: the txid has to be the whole transaction's
        if ending == "fail":
            assert shop.verbs.fail([attempt]).run(a) == []
        else:
            shop.verbs.complete_one(*attempt).run(a)
    commit(a)
    assert charges(shop) == [attempt]
    assert shop.value("select count(*) from {schema}.fence_tx") == 0


def test_a_write_that_commits_after_the_job_was_completed_elsewhere_is_refused(
    shop: Stage,
) -> None:
    attempt = shop.running("A")
    a = shop.connect(isolation="read committed")
    shop.verbs.fence(*attempt).run(a)
    charge(a, attempt)
    assert shop.verbs.complete([attempt]).run(shop.conn) == []
    with pytest.raises(StaleLease):
        commit(a)
    assert charges(shop) == []


def test_a_stale_worker_cannot_pass_its_fence_by_reclaiming_its_own_lease(shop: Stage) -> None:
    stale = shop.running("A")
    a = shop.connect(isolation="read committed")
    shop.verbs.fence(*stale).run(a)
    charge(a, stale)
    shop.expire(stale[0])
    assert len(shop.verbs.reclaim().run(a)) == 1
    with pytest.raises(StaleLease):
        commit(a)
    assert charges(shop) == []


def test_a_fence_checked_early_holds_off_the_reclaim_until_the_commit(shop: Stage) -> None:
    attempt = shop.running("A")
    a = shop.connect(isolation="read committed")
    shop.verbs.fence(*attempt).run(a)
    charge(a, attempt)
    a.execute("set constraints all immediate")
    shop.execute("update {schema}.lease set expires_at = clock_timestamp() - interval '1 s'")
    assert shop.verbs.reclaim().run(shop.conn) == []
    commit(a)
    assert charges(shop) == [attempt]


def test_a_fence_opened_when_constraints_are_immediate_is_checked_at_once_and_holds(
    shop: Stage,
) -> None:
    attempt = shop.running("A")
    a = shop.connect(isolation="read committed")
    a.execute("set constraints all immediate")
    shop.verbs.fence(*attempt).run(a)
    charge(a, attempt)
    shop.execute("update {schema}.lease set expires_at = clock_timestamp() - interval '1 s'")
    assert shop.verbs.reclaim().run(shop.conn) == []
    commit(a)
    assert charges(shop) == [attempt]


def test_a_session_that_stalls_after_an_early_check_is_cut_off_too(shop: Stage) -> None:
    a = shop.connect(isolation="read committed")
    attempt = shop.running("A", lease_seconds=BRIEF_SECONDS)
    shop.verbs.fence(*attempt).run(a)
    charge(a, attempt)
    a.execute("set constraints all immediate")
    until(lambda: shop.verbs.reclaim().run(shop.conn), "the reclaim gets through")
    assert charges(shop) == []


def test_a_fence_for_a_job_leased_to_somebody_else_is_refused_at_once(shop: Stage) -> None:
    stale = shop.running("A")
    shop.take_over(stale[0], "B")
    with pytest.raises(StaleLease):
        shop.verbs.fence(*stale).run(shop.conn)
