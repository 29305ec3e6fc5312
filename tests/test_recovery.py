"""Many leases lost at once: each call takes 1,000, none is missed, and the callers call again.

What the calls cost is measured by `make bench-recovery`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any
from uuid import UUID, uuid4

import pytest

from faultline.call import Call
from faultline.events import Event, LeaseReclaimed
from faultline.protocol import MOST_RECOVERED
from faultline.worker.child import Spec
from faultline.worker.lost import Lost
from faultline.worker.options import WorkerOptions
from faultline.worker.parent import Parent
from faultline.worker.reconciler import Reconciler
from faultline.worker.session import Session
from tests.stage import Stage

pytestmark = pytest.mark.both_servers
JOBS = 2 * MOST_RECOVERED + 10


@pytest.fixture
def lost(stage: Stage) -> list[UUID]:
    """Jobs that worker A has begun; it is dead."""
    stage.verbs.enqueue_many("work", [uuid4() for _ in range(JOBS)], list(range(JOBS))).run(
        stage.conn
    )
    return [lease.job_id for lease in stage.claim("A", JOBS)]


def calls(stage: Stage, call: Call[list[Any]]) -> list[int]:
    """How many jobs each call takes, until one takes none."""
    sizes = []
    while found := call.run(stage.conn):
        sizes.append(len(found))
    return sizes


@pytest.mark.parametrize("verb", ["reclaim", "reclaim_dead", "release_others"])
def test_each_call_takes_at_most_1000_jobs(stage: Stage, lost: list[UUID], verb: str) -> None:
    if verb == "reclaim":
        stage.expire(*lost)
        call: Call[list[Any]] = stage.verbs.reclaim(5 * MOST_RECOVERED)
    elif verb == "reclaim_dead":
        call = stage.verbs.reclaim_dead("A")
    else:
        call = stage.verbs.release_others("A", [])
    assert calls(stage, call) == [MOST_RECOVERED, MOST_RECOVERED, 10]
    ready = stage.execute("select job_id from {schema}.ready order by seq")
    assert [row[0] for row in ready] == lost, "each is back in its own place"
    outcome = "released" if verb == "release_others" else "expired"
    endings = Counter(stage.execute("select outcome from {schema}.attempt"))
    assert endings == {(outcome,): JOBS}
    assert stage.violations() == []


def test_row_that_is_in_the_way_stops_no_other(stage: Stage, lost: list[UUID]) -> None:
    ended, queued = lost[3], lost[5]
    stage.execute(
        "insert into {schema}.attempt (job_id, fencing_token, claimed_at, at, started, final, "
        "outcome) select job_id, fencing_token, now(), now(), true, false, 'released' "
        "from {schema}.lease where job_id = %s",
        ended,
    )
    stage.execute(
        "insert into {schema}.ready (lane, job_id, lease_seconds) values (1, %s, 30)", queued
    )
    assert sum(calls(stage, stage.verbs.reclaim_dead("A"))) == JOBS
    reasons = dict(stage.execute("select job_id, reason from {schema}.quarantined"))
    assert reasons == {ended: "attempt_already_ended", queued: "already_queued"}
    assert stage.value("select count(*) from {schema}.ready") == JOBS - 1


def test_reconciler_takes_all_over_in_one_round(stage: Stage, lost: list[UUID]) -> None:
    seen: list[Event] = []

    async def play() -> None:
        reconciler = Reconciler("B", stage.url, stage.verbs, seen.append)
        try:
            await reconciler.round()
        finally:
            await reconciler.close()

    stage.expire(*lost)
    asyncio.run(play())
    assert stage.value("select count(*) from {schema}.lease") == 0
    assert sum(isinstance(event, LeaseReclaimed) for event in seen) == JOBS


def test_worker_hands_back_all_that_lost_claims_have_leased(stage: Stage, lost: list[UUID]) -> None:
    async def play() -> None:
        session = Session(stage.url, stage.schema)
        search = Lost("A", session, stage.verbs, list)
        search.look_for(0.0)
        await search.release(lambda: False)
        await session.close()

    asyncio.run(play())
    assert stage.value("select count(*) from {schema}.lease") == 0


def test_parent_ends_all_leases_of_a_dead_child(stage: Stage, lost: list[UUID]) -> None:
    async def play() -> None:
        spec = Spec("tests.playground:app", WorkerOptions())
        await Parent("parent", stage.url, stage.schema, spec, seen.append)._bury("A", -9)

    seen: list[Event] = []
    asyncio.run(play())
    assert stage.value("select count(*) from {schema}.lease") == 0
    assert stage.value("select count(*) from {schema}.ready") == len(lost)
