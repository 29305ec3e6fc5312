"""A worker whose endings meet a transaction of the handler's own: one that was left open, one that
is committing, one that comes back long after its handler was given up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from faultline import App, Context, StaleLease
from faultline.drills.proxy import Fate, Moment, Proxy
from faultline.protocol import Protocol
from faultline.testing import Testing
from faultline.worker.attempt import Attempt, Hands
from faultline.worker.endings import Completed, Died
from faultline.worker.session import Session, Unavailable
from faultline.worker.settler import Settler
from tests.charging import app, events, testing
from tests.cutting import APP, ONCE, First, drained, ends_well, enqueue, paying, payments, proxy
from tests.stage import Stage, until
from tests.workers import Ground, Process

__all__ = ["app", "paying", "proxy", "testing"]


@pytest.fixture
def ground(stage: Stage) -> Ground:
    return Ground(stage)


@pytest.fixture
def worker(ground: Ground) -> Iterator[Process]:
    with ground.stage.login("worker", "producer") as url, Process(url) as worker:
        yield worker.ready()
        assert worker.process.poll() is None, f"the worker lives: {worker.errors}"
        assert ground.stage.violations() == []


def test_the_jobs_of_two_processes_that_died_at_once_are_both_given_back(stage: Stage) -> None:
    """Each ran one job alone, under a name of its own: one call cannot be about both."""
    leases = []
    for name in ("A+alone.1", "A+alone.2"):
        stage.enqueue(max_crashes=9)
        leases += [(name, lease) for lease in stage.claim(name)]

    async def settle() -> list[Died]:
        session = Session(stage.url, stage.schema)
        settler = Settler("A", stage.verbs, session, Hands(), lambda _: None)
        endings = [Died(Attempt(lease, None, time.monotonic()), name) for name, lease in leases]
        settler.add_all(endings)
        await settler.settle_all()
        await session.close()
        return endings

    endings = asyncio.run(settle())
    for ending in endings:
        assert stage.state(ending.attempt.job_id) == "queued"
        assert [taken.state for taken in ending.taken] == ["queued"]


# ── a transaction that was left open ─────────────────────────────────────────────────────────────

FORGOTTEN = "pg_stat_activity where application_name = 'forgotten' and datname = current_database()"


def test_a_handler_that_forgets_to_commit_holds_up_its_own_job_and_no_other(
    ground: Ground, worker: Process
) -> None:
    stage = ground.stage
    forgetful = [stage.enqueue("forgets_to_commit") for _ in range(3)]
    open_ones = f"select count(*) from {FORGOTTEN}"
    until(lambda: stage.value(open_ones) == 3, "they are all left open")
    for task, payload in (("add", {"a": 1, "b": 2}), ("fails", {"message": "no"})) * 2:
        other = stage.enqueue(task, payload, max_attempts=1)
        ground.until_state(other, "succeeded" if task == "add" else "failed")
    assert {stage.state(job_id) for job_id in forgetful} == {"running"}
    stage.execute(f"select pg_terminate_backend(pid) from {FORGOTTEN}")
    for job_id in forgetful:
        worker.until("job_completed", job_id=job_id)
        assert stage.outcomes(job_id) == [(1, "succeeded")]
        assert stage.refusals(job_id) == []
    assert worker.told("database_lost") == worker.told("stale_write_blocked") == []


def test_a_worker_that_is_hurried_does_not_wait_for_a_transaction_that_was_left_open(
    ground: Ground,
) -> None:
    """It ends with the process, and the lease by itself."""
    stage = ground.stage
    with stage.login("worker", "producer") as url, Process(url) as worker:
        job_id = stage.enqueue("forgets_to_commit", lease_seconds=600)
        until(lambda: stage.value(f"select count(*) from {FORGOTTEN}") == 1, "it is left open")
        worker.terminate()
        worker.until("worker_draining")
        worker.terminate()
        assert worker.ended() == 1
    assert stage.state(job_id) == "running"


def test_endings_that_cannot_be_written_now_are_all_kept(stage: Stage) -> None:
    """Together, one by one, and those that were not tried any more."""
    for _ in range(3):
        stage.enqueue()
    hands = Hands()
    attempts = [Attempt(lease, None, time.monotonic()) for lease in stage.claim("A", 3)]
    hands.take(attempts)

    async def settle(url: str) -> None:
        session = Session(url, stage.schema)
        settler = Settler("A", Protocol(stage.schema), session, hands, lambda _: None)
        for attempt in attempts:
            settler.add(Completed(attempt, None))
        stage.execute("revoke execute on function {schema}.complete from faultline_worker")
        try:
            with pytest.raises(Unavailable):
                await settler.settle()
            stage.execute("grant execute on function {schema}.complete to faultline_worker")
            await settler.settle_all()
        finally:
            await session.close()

    with stage.login("worker") as url:
        asyncio.run(settle(url))
    assert {stage.state(attempt.job_id) for attempt in attempts} == {"succeeded"}
    assert len(hands) == 0


def test_an_ending_that_comes_while_others_are_looked_up_is_kept(stage: Stage) -> None:
    for _ in range(3):
        stage.enqueue()
    hands = Hands()
    attempts = [Attempt(lease, None, time.monotonic()) for lease in stage.claim("A", 3)]
    hands.take(attempts)
    first, second, third = (Completed(attempt, None) for attempt in attempts)
    lost = Unavailable(OSError("the answer was lost"), unknown=True)
    waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"

    async def settle() -> None:
        session = Session(stage.url, stage.schema)
        settler = Settler("A", Protocol(stage.schema), session, hands, lambda _: None)
        settler.unanswered([first, second], lost)
        holder = stage.connect(isolation="read committed")
        holder.execute(f"lock table {stage.schema}.attempt")
        looking = asyncio.ensure_future(settler.resolve())
        while not await asyncio.to_thread(stage.value, waits):  # the deadline is the session's own
            assert not looking.done()
        settler.unanswered([third], lost)
        holder.rollback()
        await looking
        await settler.settle_all()
        await session.close()

    asyncio.run(settle())
    assert {stage.state(attempt.job_id) for attempt in attempts} == {"succeeded"}
    assert len(hands) == 0


# ── a commit that ends the job ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_while_a_commit_that_ends_the_job_is_under_way_nobody_else_ends_it(
    paying: Stage, proxy: Proxy, kind: str
) -> None:
    """The handler has been given up, past its timeout; the COMMIT has not come through yet."""
    cuts, failures = First("COMMIT", Fate.HOLD_REQUEST), list[Moment]()

    def decide(moment: Moment) -> Fate | None:
        if "faultline.fail(" in moment.text:
            failures.append(moment)
        return None if cuts.cut else cuts(moment)

    proxy.when(decide)
    with Process(proxy.url, app=APP) as worker:
        (job_id,) = enqueue(paying, f"{kind}_hurried")
        worker.until("handler_abandoned", job_id=job_id)
        for _ in range(3):  # it is looked at again and again, and holds nobody up
            (neighbour,) = enqueue(paying, "sync_complete")
            worker.until("job_completed", job_id=neighbour)
        assert paying.state(job_id) == "running"
        proxy.release()
        drained(paying, worker, 4)
        assert failures == []
        assert not worker.told("database_lost")
        ends_well(worker)
    assert payments(paying)[job_id] == [1]
    assert paying.outcomes(job_id) == ONCE


@pytest.mark.parametrize("raises", [False, True])
def test_a_job_that_its_handler_completed_by_itself_is_complete_whatever_the_handler_says(
    app: App, testing: Testing, database: str, raises: bool
) -> None:
    @app.task
    def charge(ctx: Context) -> str:
        with psycopg.connect(database) as conn:
            conn.execute("select faultline.complete_one(%s, %s)", (ctx.job_id, ctx.token))
        if raises:
            raise ValueError("after the end")
        return "after the end"

    job = charge.enqueue()
    assert testing.run(job).state == "succeeded"
    assert testing.refusals(job) == []
    assert events(testing).count("job_completed") == 1
    assert not {"stale_write_blocked", "job_failed"} & set(events(testing))


# ── a refusal ────────────────────────────────────────────────────────────────────────────────────


def test_a_handler_that_somebody_else_called_stale_has_failed_and_is_tried_again(
    app: App, testing: Testing
) -> None:
    """A sink outside that knows of a higher token, as after a restore of the database."""

    @app.task(max_attempts=2)
    def charge(ctx: Context) -> None:
        operation = "redis, in a sink with a name that is as long as a name can be " * 3
        raise StaleLease(ctx.job_id, ctx.token, ctx.token + 5, "token_mismatch", operation)

    job = charge.enqueue()
    status = testing.run(job)
    assert (status.state, status.error["type"]) == ("scheduled", "StaleLease")
    assert "its token is now 6" in status.error["message"]
    assert testing.refusals(job) == []
    assert {"job_failed"} <= set(events(testing))
    assert "stale_write_blocked" not in events(testing)


@pytest.mark.parametrize("task", ["goes_on_when_given_up", "goes_on_when_given_up_async"])
def test_what_a_handler_that_was_given_up_still_writes_is_refused_and_the_refusal_kept(
    ground: Ground, worker: Process, task: str
) -> None:
    stage = ground.stage
    job_id = stage.enqueue(task, max_attempts=1)
    worker.until("job_failed", job_id=job_id, error="TimeoutError")
    assert stage.refusals(job_id) == []
    ground.go(job_id, 1)
    worker.until("stale_write_blocked", job_id=job_id, operation="assert_fence")
    assert stage.refusals(job_id) == [("assert_fence", 1, 1, "token_mismatch")]
    assert ground.effects(job_id) == []
    assert stage.outcomes(job_id) == [(1, "failed")]
    following = stage.enqueue("add", {"a": 1, "b": 2})
    worker.until("job_completed", job_id=following)
    assert len(worker.told("job_failed")) == 1


def test_a_lost_lease_is_renewed_once_and_the_refusal_reported_as_it_is_recorded(
    ground: Ground, worker: Process
) -> None:
    stage = ground.stage
    job_id = stage.enqueue("held_sync", lease_seconds=3)
    ground.until_in(job_id, 1)
    with stage.conn.transaction():  # or the worker itself might be faster
        stage.take_over(job_id, "B")
    other = stage.enqueue("held", lease_seconds=3)
    ground.until_in(other, 1)
    worker.until("stale_write_blocked", job_id=job_id, operation="renew")
    worker.until("lease_lost", job_id=job_id, reason="refused")
    expiry = "select expires_at from {schema}.lease where job_id = %s"
    for _ in range(4):  # longer than a lease
        before = stage.value(expiry, other)
        until(lambda before=before: stage.value(expiry, other) > before, "its neighbour is renewed")
    ground.go(job_id, 1)
    worker.until("stale_write_blocked", job_id=job_id, operation="complete")
    ground.go(other, 1)
    worker.until("job_completed", job_id=other)
    fields = ("stale_token", "current_token", "reason", "operation", "late_seconds")
    told: list[dict[str, Any]] = worker.told("stale_write_blocked")
    rows = stage.reading.refusals(stage.conn, job_id)
    assert [row["operation"] for row in rows] == ["renew", "complete"]
    assert [[seen[f] for f in fields] for seen in told] == [
        [row[f] for f in fields] for row in rows
    ]
