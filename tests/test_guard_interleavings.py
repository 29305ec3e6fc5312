"""Two connections against a guarded table: a takeover at every moment of the worker's transaction.

A opens a fence and writes; B takes the job over before, between and after. Order is forced by open
transactions and by waiting until the server says that a session is blocked. In the end the stale
attempt has written nothing, and the rightful one can.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg import Connection

from faultline.errors import StaleLease, Unfenced
from tests.guarded import ISOLATIONS, LATE, Attempt, charge, charges, commit, guarded, unfenced
from tests.stage import Stage

pytestmark = pytest.mark.both_servers
every_isolation = pytest.mark.parametrize("isolation", ISOLATIONS)


@pytest.fixture
def till(stage: Stage) -> Stage:
    return guarded(stage)


def begin(stage: Stage, isolation: str) -> Connection[Any]:
    """A worker's session, in a transaction whose snapshot is taken."""
    conn = stage.connect(isolation=isolation)
    conn.execute("select count(*) from faultline.jobs")
    return conn


def ends_well(stage: Stage, attempt: Attempt) -> None:
    """The rightful attempt charges and completes, and is the only one that has charged."""
    conn = stage.connect(isolation="read committed")
    stage.verbs.fence(*attempt).run(conn)
    charge(conn, attempt)
    stage.verbs.complete_one(*attempt).run(conn)
    commit(conn)
    assert charges(stage) == [attempt]
    assert stage.violations() == []


@every_isolation
def test_a_takeover_before_the_fence_lets_no_fence_open(till: Stage, isolation: str) -> None:
    stale = till.running("A")
    a = begin(till, isolation)
    rightful = till.take_over(stale[0], "B")
    if isolation == "read committed":
        with pytest.raises(StaleLease):
            till.verbs.fence(*stale).run(a)
    else:  # in the frozen snapshot the lease is alive; the commit finds out
        till.verbs.fence(*stale).run(a)
        charge(a, stale)
        with pytest.raises(LATE):
            commit(a)
    a.rollback()
    ends_well(till, rightful)


@every_isolation
def test_a_takeover_between_the_fence_and_the_write_stops_the_commit(
    till: Stage, isolation: str
) -> None:
    stale = till.running("A")
    a = begin(till, isolation)
    till.verbs.fence(*stale).run(a)
    rightful = till.take_over(stale[0], "B")
    charge(a, stale)  # a fence is there; what it is worth is asked at the end
    with pytest.raises(LATE):
        commit(a)
    ends_well(till, rightful)


@every_isolation
def test_a_takeover_between_the_write_and_the_commit_stops_the_commit(
    till: Stage, isolation: str
) -> None:
    stale = till.running("A")
    a = begin(till, isolation)
    till.verbs.fence(*stale).run(a)
    charge(a, stale)
    rightful = till.take_over(stale[0], "B")
    with pytest.raises(LATE):
        commit(a)
    ends_well(till, rightful)


@every_isolation
def test_a_commit_waits_for_the_takeover_under_way_and_is_refused_after_it(
    till: Stage, isolation: str
) -> None:
    stale = till.running("A")
    a = begin(till, isolation)
    till.verbs.fence(*stale).run(a)
    charge(a, stale)
    reclaimer = till.connect(isolation="read committed")
    assert len(till.verbs.reclaim_dead("A").run(reclaimer)) == 1  # the lease is not even expired
    late = till.background("commit", a)
    late.until_blocked()
    reclaimer.commit()
    with pytest.raises(psycopg.Error) as refused:
        late.answer()
    assert refused.value.sqlstate == ("LF001" if isolation == "read committed" else "40001")
    assert charges(till) == []
    (lease,) = till.claim("B")
    ends_well(till, (lease.job_id, lease.token))


def test_a_commit_that_waited_for_a_takeover_that_came_to_nothing_goes_through(
    till: Stage,
) -> None:
    attempt = till.running("A")
    a = begin(till, "read committed")
    till.verbs.fence(*attempt).run(a)
    charge(a, attempt)
    reclaimer = till.connect(isolation="read committed")
    assert len(till.verbs.reclaim_dead("A").run(reclaimer)) == 1
    waiting = till.background("commit", a)
    waiting.until_blocked()
    reclaimer.rollback()
    waiting.answer()
    assert charges(till) == [attempt]


@every_isolation
def test_after_an_early_check_no_takeover_gets_in_before_the_commit(
    till: Stage, isolation: str
) -> None:
    attempt = till.running("A")
    a = begin(till, isolation)
    till.verbs.fence(*attempt).run(a)
    charge(a, attempt)
    a.execute("set constraints all immediate")
    assert till.verbs.reclaim_dead("A").run(till.conn) == []  # and it did not wait
    commit(a)
    assert charges(till) == [attempt]
    assert len(till.verbs.reclaim_dead("A").run(till.conn)) == 1


@every_isolation
def test_an_early_check_that_a_savepoint_took_back_is_made_again(
    till: Stage, isolation: str
) -> None:
    """With the savepoint the lock on the lease is given back; the check must be too."""
    stale = till.running("A")
    a = begin(till, isolation)
    till.verbs.fence(*stale).run(a)
    charge(a, stale)
    with a.transaction(force_rollback=True):
        a.execute("set constraints all immediate")
        assert till.verbs.reclaim_dead("A").run(till.conn) == []
    rightful = till.take_over(stale[0], "B")
    with pytest.raises(LATE):
        commit(a)
    ends_well(till, rightful)


def test_what_is_written_after_an_early_check_needs_another_fence(till: Stage) -> None:
    attempt = till.running("A")
    a = begin(till, "read committed")
    till.verbs.fence(*attempt).run(a)
    a.execute("set constraints all immediate")
    for again in (False, True):  # a fence is now checked, and used up, as it is opened
        if again:
            till.verbs.fence(*attempt).run(a)
        with pytest.raises(Unfenced), a.transaction():
            charge(a, attempt)
    a.execute("set constraints all deferred")
    with pytest.raises(Unfenced), a.transaction():
        charge(a, attempt)
    till.verbs.fence(*attempt).run(a)
    charge(a, attempt)
    commit(a)
    assert charges(till) == [attempt]


def test_a_stale_worker_cannot_pass_by_reclaiming_its_own_lease(till: Stage) -> None:
    """An ending of this very transaction counts only if it is a success or a failure."""
    stale = till.running("A")
    a = begin(till, "read committed")
    till.verbs.fence(*stale).run(a)
    charge(a, stale)
    till.expire(stale[0])
    assert len(till.verbs.reclaim().run(a)) == 1
    with pytest.raises(StaleLease):
        commit(a)
    assert charges(till) == []


@every_isolation
def test_a_worker_that_hands_its_job_back_takes_its_writes_back_too(
    till: Stage, isolation: str
) -> None:
    attempt = till.running("A")
    a = begin(till, isolation)
    till.verbs.fence(*attempt).run(a)
    charge(a, attempt)
    assert till.verbs.release([attempt]).run(a) == []
    with pytest.raises(StaleLease):
        commit(a)
    assert charges(till) == []
    assert till.state(attempt[0]) == "running"


def test_a_stalled_worker_with_an_open_fence_does_not_hold_up_the_takeover(till: Stage) -> None:
    """Why the check is deferred: until the commit the fence holds no lock."""
    stale = till.running("A")
    a = begin(till, "read committed")
    till.verbs.fence(*stale).run(a)
    charge(a, stale)
    rightful = till.take_over(stale[0], "B")
    ends_well(till, rightful)
    with pytest.raises(StaleLease) as refused:
        commit(a)
    assert (refused.value.token, refused.value.current_token) == (stale[1], rightful[1])
    assert charges(till) == [rightful]


@every_isolation
def test_a_stale_update_or_delete_of_the_rightful_rows_is_refused(
    till: Stage, isolation: str
) -> None:
    """Whose token the rows carry is no matter: a stale UPDATE may leave those columns alone."""
    stale = till.running("A")
    rightful = till.take_over(stale[0], "B")
    ends_well(till, rightful)
    for statement in ("update charge set note = 'late'", "delete from charge"):
        a = begin(till, isolation)
        with pytest.raises(StaleLease):
            till.verbs.fence(*stale).run(a)
        a.rollback()
        unfenced(a, statement)
    assert till.execute("select note from charge") == [(None,)]
