"""A handler is told to stop in the very middle of the COMMIT that ends its job: the job is ended
once, by whoever the database says, and nobody is accused of a stale write.

Method: a real worker behind a proxy that holds the COMMIT, or its answer, for as long as the test
needs to have the handler told.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from faultline.drills.proxy import Fate, Moment, Proxy
from tests.cutting import (
    APP,
    ONCE,
    First,
    drained,
    ends_well,
    enqueue,
    no_false_alarm,
    paying,
    payments,
    proxy,
)
from tests.stage import Stage, until
from tests.workers import Process

__all__ = ["paying", "proxy"]
KINDS = ["sync", "async"]


def committing(stage: Stage, proxy: Proxy, shape: str, fate: Fate) -> UUID:
    """A job of this shape whose COMMIT, or the answer to it, is held."""
    proxy.when(First("COMMIT", fate))
    (job_id,) = enqueue(stage, shape)
    until(lambda: proxy.held, "its COMMIT is held")
    return job_id


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fate", [Fate.HOLD_ANSWER, Fate.HOLD_REQUEST])
def test_a_job_that_is_cancelled_while_it_commits_its_success_has_succeeded(
    paying: Stage, proxy: Proxy, kind: str, fate: Fate
) -> None:
    with Process(proxy.url, app=APP) as worker:
        worker.ready()
        job_id = committing(paying, proxy, f"{kind}_watched", fate)
        (verdict,) = paying.verbs.cancel([job_id]).run(paying.conn)
        if fate is Fate.HOLD_REQUEST:
            assert verdict.verdict == "requested"
            notes = "select note from seen where job_id = %s"
            until(lambda: ("cancelled",) in paying.execute(notes, job_id), "the handler is told")
        else:
            assert verdict.verdict == "finished"
        proxy.release()
        drained(paying, worker, 1)
        ends_well(worker)
    assert payments(paying) == {job_id: [1]}
    assert paying.outcomes(job_id) == ONCE


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_is_cancelled_while_it_commits_a_step_is_cancelled_with_the_step_done(
    paying: Stage, proxy: Proxy, kind: str
) -> None:
    with Process(proxy.url, app=APP) as worker:
        worker.ready()
        job_id = committing(paying, proxy, f"{kind}_obedient", Fate.HOLD_ANSWER)
        (verdict,) = paying.verbs.cancel([job_id]).run(paying.conn)
        assert verdict.verdict == "requested"
        notes = "select note from seen where job_id = %s"
        until(lambda: ("cancelled",) in paying.execute(notes, job_id), "the handler is told")
        proxy.release()
        worker.until("job_cancelled", job_id=job_id)
        no_false_alarm(paying, worker)
        ends_well(worker)
    assert payments(paying) == {job_id: [1]}
    assert paying.outcomes(job_id) == [(1, "cancelled")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("patience", ["execution_timed_out", "handler_abandoned"])
def test_a_job_that_runs_out_of_time_while_it_commits_its_success_has_succeeded(
    paying: Stage, proxy: Proxy, kind: str, patience: str
) -> None:
    """Also when the handler has been given up before it has its answer."""
    with Process(proxy.url, app=APP) as worker:
        job_id = committing(paying, proxy, f"{kind}_hurried", Fate.HOLD_ANSWER)
        worker.until(patience, job_id=job_id)
        proxy.release()
        drained(paying, worker, 1)
        ends_well(worker)
    assert payments(paying) == {job_id: [1]}
    assert paying.outcomes(job_id) == ONCE


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_hands_back_its_jobs_keeps_one_that_has_just_ended(
    paying: Stage, proxy: Proxy, kind: str
) -> None:
    """A thread is left behind at once, in the middle of its COMMIT."""
    with Process(proxy.url, app=APP) as worker:
        job_id = committing(paying, proxy, f"{kind}_complete", Fate.HOLD_ANSWER)
        worker.terminate()
        worker.until("worker_draining")
        worker.terminate()
        if kind == "sync":
            worker.until("job_completed", job_id=job_id)
        proxy.release()
        assert worker.ended() == 0
        drained(paying, worker, 1)
    assert payments(paying) == {job_id: [1]}
    assert paying.outcomes(job_id) == ONCE


@pytest.mark.parametrize("kind", KINDS)
def test_a_success_whose_worker_heard_nothing_of_it_for_a_whole_lease_is_still_reported(
    paying: Stage, proxy: Proxy, kind: str
) -> None:
    """Neither the answer to the COMMIT comes, nor one to any question about it: the handler is
    given up, and what became of its job is asked once more."""
    commits = First("COMMIT", Fate.HOLD_ANSWER)

    def decide(moment: Moment) -> Fate | None:
        asks = "faultline.commit_status(" in moment.text
        return Fate.LOSE_REQUEST if asks else commits(moment)

    proxy.when(decide)
    with Process(proxy.url, app=APP) as worker:
        (job_id,) = enqueue(paying, f"{kind}_brief")
        worker.until("lease_lost", job_id=job_id, reason="deadline")
        worker.until("handler_abandoned", job_id=job_id)
        worker.until("job_completed", job_id=job_id, token=1)
        assert worker.told("stale_write_blocked") == []
        ends_well(worker)
    assert payments(paying) == {job_id: [1]}
    assert paying.outcomes(job_id) == ONCE
    assert paying.refusals(job_id) == paying.violations() == []


def test_a_renewal_that_finds_the_job_ended_by_its_own_commit_alarms_nobody(
    paying: Stage, proxy: Proxy
) -> None:
    """Sent before the answer to the COMMIT came, and answered after it."""
    renewals: list[Moment] = []

    def hold_one_renewal(moment: Moment) -> Fate | None:
        if "faultline.renew(" not in moment.text or renewals:
            return None
        renewals.append(moment)
        return Fate.HOLD_ANSWER

    with Process(proxy.url, app=APP) as worker:
        job_id = committing(paying, proxy, "goes_on_after_completing", Fate.HOLD_ANSWER)
        proxy.when(hold_one_renewal)
        until(lambda: len(proxy.held) == 2, "the answer to its renewal is held")
        proxy.release("; commit")
        until(lambda: paying.execute("select 1 from seen"), "the handler goes on")
        (neighbour,) = enqueue(paying, "sync_keeps_its_connection")
        worker.until("lease_acquired", job_id=neighbour)
        proxy.release("renew")
        expiry = "select expires_at from {schema}.lease where job_id = %s"
        first = paying.value(expiry, neighbour)
        until(lambda: paying.value(expiry, neighbour) > first, "the keeper has heeded the answer")
        paying.execute("insert into go values (%s), (%s)", job_id, neighbour)
        drained(paying, worker, 2)
        ends_well(worker)


def test_a_handler_that_blocks_the_worker_for_ever_after_completing_costs_the_worker_not_the_job(
    paying: Stage, proxy: Proxy
) -> None:
    """Nothing is left to be written for it: the process still has to end, or nobody ever would."""
    with Process(proxy.url, app=APP) as worker:
        (job_id,) = enqueue(paying, "blocks_after_completing")
        worker.until("handler_abandoned", job_id=job_id)
        assert worker.ended() == 75
        no_false_alarm(paying, worker)
    assert paying.outcomes(job_id) == ONCE
