"""The acknowledgement of a COMMIT is lost: the engine finds out whether it happened.

Method: a real worker behind a proxy that cuts the connection exactly at the COMMIT of a fenced
transaction: after the server has answered it (it is committed), or before it is passed on (it is
rolled back). `payment` counts what the handlers wrote: one row a job, or it was lost or done twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from faultline.drills.proxy import Fate, Moment, Proxy
from faultline.launcher import Server
from faultline.migrate import migrate
from tests.conftest import OPTIONS
from tests.cutting import (
    APP,
    ONCE,
    SESSIONS,
    SHAPES,
    TWICE,
    First,
    drained,
    ends_well,
    enqueue,
    paying,
    payments,
    proxy,
)
from tests.paying import TABLES
from tests.stage import Stage, until
from tests.test_worker_outage import crash
from tests.workers import Process

__all__ = ["paying", "proxy"]


def check(stage: Stage, cuts: First, shapes: dict[object, str], committing: Fate) -> None:
    """What was committed was not done again, and what was not was: under the next token."""
    paid = payments(stage)
    for job_id, fate in cuts.cut.items():
        committed = fate is committing
        what = f"{shapes[job_id]} {fate}"
        assert paid.get(job_id) == [1 if committed else 2], what
        assert stage.outcomes(job_id) == (ONCE if committed else TWICE), what
        assert stage.job(job_id)["result"] == {"paid": True}, what


def test_no_lost_acknowledgement_duplicates_or_loses_a_write(paying: Stage, proxy: Proxy) -> None:
    """200 jobs, each cut once at its first COMMIT."""
    cuts = First("COMMIT", Fate.LOSE_ANSWER, Fate.LOSE_REQUEST)
    proxy.when(cuts)
    jobs = enqueue(paying, *SHAPES, count=22) | enqueue(paying, *SESSIONS, count=8)
    with Process(proxy.url, app=APP) as worker:
        drained(paying, worker, 200)
        ends_well(worker)
    assert set(cuts.cut) == set(jobs)
    assert min(Counter(cuts.cut.values()).values()) >= 50
    check(paying, cuts, {**jobs}, Fate.LOSE_ANSWER)
    failed = Counter(seen["job_id"] for seen in worker.told("job_failed"))
    assert failed == {str(job): 1 for job, fate in cuts.cut.items() if fate is Fate.LOSE_REQUEST}


@pytest.mark.parametrize(
    ("where", "shapes"),
    [
        ("insert into payment", [*SHAPES, *SESSIONS]),
        ("assert_fence(|record_step(|complete_one(", SESSIONS),  # the others commit with it
    ],
)
def test_a_transaction_that_is_cut_before_its_commit_is_rolled_back_and_made_again(
    paying: Stage, proxy: Proxy, where: str, shapes: list[str]
) -> None:
    """In the handler's own statement, and in the one that closes the block."""
    cuts = First(where, Fate.LOSE_ANSWER, Fate.LOSE_REQUEST)
    proxy.when(cuts)
    jobs = enqueue(paying, *shapes, count=2)
    with Process(proxy.url, app=APP) as worker:
        drained(paying, worker, len(jobs))
        ends_well(worker)
    assert set(cuts.cut) == set(jobs)
    assert set(cuts.cut.values()) == {Fate.LOSE_ANSWER, Fate.LOSE_REQUEST}
    assert payments(paying) == {job_id: [2] for job_id in jobs}
    for job_id, shape in jobs.items():
        assert paying.outcomes(job_id) == TWICE, shape


def test_a_commit_that_nobody_could_tell_about_is_looked_up_when_the_job_is_settled(
    paying: Stage, proxy: Proxy
) -> None:
    """No question about it is answered for as long as the block asks, 17 s and what asking takes:
    then the worker's own connection knows. A lease that was over by then would be lost, rightly."""
    cuts = First("COMMIT", Fate.LOSE_ANSWER, Fate.LOSE_REQUEST)
    asked: list[Moment] = []

    def decide(moment: Moment) -> Fate | None:
        if "faultline.commit_status(" not in moment.text:
            return cuts(moment)
        asked.append(moment)
        return Fate.LOSE_REQUEST

    proxy.when(decide)
    jobs = enqueue(paying, "sync_complete", "async_complete", count=3, lease_seconds=120)
    with Process(proxy.url, app=APP) as worker:
        until(lambda: len(asked) > 10 * len(jobs), "the blocks have asked ten times")
        drained(paying, worker, len(jobs))
        ends_well(worker)
    assert set(cuts.cut.values()) == {Fate.LOSE_ANSWER, Fate.LOSE_REQUEST}
    check(paying, cuts, {**jobs}, Fate.LOSE_ANSWER)
    failed = [seen["error"] for seen in worker.told("job_failed")]
    assert set(failed) == {"CommitUnknown"}


# ── the server is restarted ──────────────────────────────────────────────────────────────────────


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of this test's own, to be mistreated."""
    with Server.temporary(options=OPTIONS) as server:
        with Stage(server.url) as stage:
            migrate(stage.conn, "faultline")
            stage.execute(TABLES)
        yield server


def test_a_commit_over_a_crash_of_the_server_is_found_by_what_it_left(server: Server) -> None:
    """Transaction ids mean nothing in another life of the server: an ending or a step does. Where
    there is neither, the handler is told that nobody knows."""
    cuts = First("COMMIT", Fate.HOLD_ANSWER, Fate.HOLD_REQUEST)
    with Proxy(server.url) as proxy:
        proxy.when(cuts)
        with Stage(server.url) as stage:
            jobs = enqueue(stage, *SHAPES, count=2)
        with Process(proxy.url, app=APP) as worker:
            until(lambda: len(proxy.held) == len(jobs), "all of them are committing")
            crash(server)
            proxy.release(cut=True)
            server.restart()
            with Stage(server.url) as stage:
                drained(stage, worker, len(jobs))
                ends_well(worker)
                plain = {job_id for job_id, shape in jobs.items() if "plain" in shape}
                for job_id in plain:
                    assert stage.outcomes(job_id) == TWICE
                    assert worker.told("job_failed", job_id=job_id, error="CommitUnknown")
                    del cuts.cut[job_id]
                assert set(cuts.cut.values()) == {Fate.HOLD_ANSWER, Fate.HOLD_REQUEST}
                check(stage, cuts, {**jobs}, Fate.HOLD_ANSWER)
