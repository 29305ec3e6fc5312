"""`app.testing()` takes leases away: a handler meets its own take-over, as a user would test it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from faultline import App, Context, InvalidArgument, LockedOut, StaleLease, assert_fence
from faultline.testing import Testing
from tests.stage import until


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
def testing(app: App, server_url: str) -> Iterator[Testing]:
    with app.testing(server_url) as testing:
        testing.connection.execute("create table effect (token bigint)")
        yield testing
        broken = testing.connection.execute("select * from faultline.violations").fetchall()
        assert broken == []


def effects(testing: Testing) -> list[int]:
    return [row[0] for row in testing.connection.execute("select token from effect order by 1")]


def outcomes(testing: Testing, job: Any) -> list[tuple[int, str]]:
    return testing.connection.execute(
        "select fencing_token, outcome from faultline.attempts where job_id = %s order by 1",
        (job.id,),
    ).fetchall()


def test_a_handler_that_was_taken_over_writes_nothing(app: App, testing: Testing) -> None:
    refused = []

    @app.task
    def charge(ctx: Context) -> None:
        try:
            with ctx.transaction() as tx:
                tx.execute("insert into effect values (%s)", (ctx.token,))
                testing.take_over(ctx.job_id)
        except StaleLease as error:
            refused.append(error.reason)
            raise

    job = charge.enqueue()
    status = testing.run(job)
    assert (status.state, status.token) == ("running", 2)  # in the other worker's hands
    assert refused == ["token_mismatch"]
    assert effects(testing) == []
    [refusal] = testing.refusals(job)
    assert (refusal["stale_token"], refusal["current_token"]) == (1, 2)


def test_an_async_handler_that_was_taken_over_writes_nothing(app: App, testing: Testing) -> None:
    @app.task
    async def charge(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute("insert into effect values (%s)", (ctx.token,))
            testing.take_over(ctx.job_id, "B")

    job = charge.enqueue()
    assert testing.run(job).state == "running"
    assert testing.jobs()[0]["lease_owner"] == "B"
    assert (effects(testing), len(testing.refusals(job))) == ([], 1)


def test_a_second_attempt_can_run_to_its_end_inside_the_first(app: App, testing: Testing) -> None:
    @app.task
    def charge(ctx: Context) -> str:
        if ctx.token == 1:
            testing.expire_lease(ctx.job_id)
            assert testing.run(ctx.job_id).result == "token 2"
        with ctx.transaction() as tx:
            tx.execute("insert into effect values (%s)", (ctx.token,))
        return f"token {ctx.token}"

    job = charge.enqueue()
    status = testing.run(job)
    assert (status.state, status.result) == ("succeeded", "token 2")
    assert effects(testing) == [2]
    assert outcomes(testing, job) == [(1, "expired"), (2, "succeeded")]
    assert len(testing.refusals(job)) == 1


def test_a_result_that_comes_after_the_lease_is_refused(app: App, testing: Testing) -> None:
    @app.task
    async def late(ctx: Context) -> str:
        if ctx.token == 1:
            testing.expire_lease(ctx.job_id)
            assert not ctx.cancelled  # as in a process that has stalled
        return f"token {ctx.token}"

    job = late.enqueue()
    assert testing.run(job).state == "running"  # nobody has reclaimed it yet
    [refusal] = testing.refusals(job)
    assert (refusal["operation"], refusal["reason"]) == ("complete", "lease_expired")
    assert testing.drain() == [(job.id, "succeeded")]
    assert job.result(1) == "token 2"


def test_a_handler_can_be_told_that_its_lease_is_lost(app: App, testing: Testing) -> None:
    told: list[Any] = []

    @app.task
    async def on_the_loop(ctx: Context) -> None:
        testing.expire_lease(ctx.job_id, told=True)
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            told.append(ctx.cancel_reason)
            raise

    @app.task
    def in_a_thread(ctx: Context) -> None:
        with ctx.transaction() as tx:
            testing.expire_lease(ctx.job_id, told=True)
            told.append((ctx.cancelled, ctx.cancel_reason))
            tx.execute("select 1")  # its connection was cut

    for task in (on_the_loop, in_a_thread):
        assert testing.run(task.enqueue()).state == "running"
    assert told == ["lease lost", (True, "lease lost")]


def test_a_short_lease_is_kept_while_its_handler_runs(app: App, testing: Testing) -> None:
    @app.task(lease_seconds=3)
    def long(ctx: Context) -> None:
        ask = "select claimed_at + interval '3.1 seconds' < expires_at from faultline.leases"
        until(lambda: testing.connection.execute(ask).fetchone() == (True,), "it was renewed")

    assert testing.run(long.enqueue()).state == "succeeded"


def test_a_lease_that_a_transaction_holds_cannot_be_taken_over(app: App, testing: Testing) -> None:
    @app.task
    def work(ctx: Context) -> None:
        with testing.connection.transaction():
            assert_fence(testing.connection, ctx.job_id, ctx.token)
            with pytest.raises(InvalidArgument, match="an open transaction has passed its fence"):
                testing.take_over(ctx.job_id)
        assert testing.take_over(ctx.job_id) == 2

    assert testing.run(work.enqueue()).state == "running"


def test_a_test_that_waits_for_its_own_transaction_does_not_wait_for_ever(
    app: App, testing: Testing
) -> None:
    @app.task
    def work(ctx: Context) -> None:
        with testing.connection.transaction():
            testing.connection.execute("select from faultline.lease for update")
            with pytest.raises(LockedOut, match="expire_lease needs a lock"):
                testing.expire_lease(ctx.job_id)

    assert testing.run(work.enqueue()).state == "succeeded"
