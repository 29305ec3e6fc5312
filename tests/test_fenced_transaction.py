"""ctx.transaction(): a handler's writes commit only while its attempt owns the job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from faultline import App, Context
from faultline.testing import Testing
from tests.charging import INSERT, app, notes, testing
from tests.stage import Stage, until
from tests.workers import Ground, Process

__all__ = ["app", "testing"]

# What a statement with its values in it might be broken by, as a result and in a step's name.
VALUES = [
    "plain",
    "O'Reilly",
    "'); commit; --",
    "back\\slash \\' \\\\",
    "ü€😀",
    "\x01\n\t",
    "100 %s %%",
]


@pytest.fixture
def ground(stage: Stage) -> Ground:
    return Ground(stage)


@pytest.fixture
def url(stage: Stage) -> Iterator[str]:
    with stage.login("worker") as url:
        yield url


def test_a_handler_waiting_in_a_fenced_transaction_is_cut_off_when_its_lease_is_lost(
    ground: Ground, url: str
) -> None:
    """Its thread hangs in a statement of an hour: only cutting its connection frees it."""
    stage = ground.stage
    job_id = stage.enqueue("inside_a_transaction", lease_seconds=4)
    with Process(url) as a:
        sleeping = (
            "select count(*) from pg_stat_activity where query = 'select pg_sleep(3600)' "
            "and datname = current_database()"
        )
        until(lambda: stage.value(sleeping) == 1, "it hangs in its statement")
        a.stall()
        with Process(url) as b:
            b.until("job_completed", job_id=job_id, token=2)
            a.wake()
            a.until("lease_lost", job_id=job_id)
            until(lambda: (1, "cut off") in ground.marks(job_id), "the handler is free again")
            until(lambda: stage.value(sleeping) == 0, "the server has given up as well")
    assert ground.effects(job_id) == [2]
    assert stage.violations() == []


def test_a_fenced_transaction_of_a_lost_attempt_is_rolled_back(ground: Ground, url: str) -> None:
    """The transaction was opened before the stall, and is left after the takeover."""
    stage = ground.stage
    job_id = stage.enqueue("inside_an_async_transaction", lease_seconds=4)
    with Process(url) as a:
        ground.until_in(job_id, 1)
        a.stall()
        ground.go(job_id, 1)
        with Process(url) as b:
            b.until("job_completed", job_id=job_id, token=2)
            a.wake()
            until(lambda: stage.refusals(job_id), "the refusal is kept")
            following = stage.enqueue("add", {"a": 1, "b": 2})
            ground.until_state(following, "succeeded")
    assert ground.effects(job_id) == [2]
    assert stage.outcomes(job_id) == [(1, "expired"), (2, "succeeded")]
    assert stage.violations() == []


def test_a_block_of_the_handlers_own_inside_a_fenced_transaction_commits_nothing(
    ground: Ground, url: str
) -> None:
    stage = ground.stage
    failing = stage.enqueue("savepoint", {"fail": True}, max_attempts=1)
    stale = stage.enqueue("savepoint", lease_seconds=4)
    with Process(url) as a:
        ground.until_state(failing, "failed")
        ground.until_in(stale, 1)
        a.stall()
        with Process(url) as b:
            b.until("job_completed", job_id=stale, token=2)
            ground.go(stale, 1)
            a.wake()
            until(lambda: stage.refusals(stale), "the refusal is kept")
            a.terminate()
            assert a.ended() == 0
    assert ground.effects(failing) == []
    assert ground.effects(stale) == [2]


def test_a_handler_that_ends_the_fenced_transaction_itself_is_told(
    ground: Ground, url: str
) -> None:
    job_id = ground.stage.enqueue("ends_its_transaction", max_attempts=1)
    with Process(url):
        ground.until_state(job_id, "failed")
    assert "leave COMMIT and ROLLBACK" in ground.stage.job(job_id)["error"]["message"]


@pytest.mark.parametrize(
    "setting", ["standard_conforming_strings = on", "standard_conforming_strings = off"]
)
@pytest.mark.parametrize("is_async", [False, True])
def test_whatever_a_value_contains_it_arrives_as_it_is(
    app: App, testing: Testing, is_async: bool, setting: str
) -> None:
    """The messages of a block have their values in the text; a handler may have changed how the
    session reads that."""

    def write(ctx: Context) -> list[Any]:
        seen = []
        for value in VALUES:
            with ctx.transaction(step=value) as tx:
                tx.execute(f"set {setting}")
                tx.record([value])
            with ctx.transaction(step=value) as tx:
                seen += tx.value if tx.done else ["lost"]
        with ctx.transaction() as tx:
            tx.execute(INSERT, (ctx.job_id, ctx.token, "written"))
            tx.complete(seen)
        return seen

    async def awrite(ctx: Context) -> list[Any]:
        seen = []
        for value in VALUES:
            async with ctx.transaction(step=value) as tx:
                await tx.execute(f"set {setting}")
                tx.record([value])
            async with ctx.transaction(step=value) as tx:
                seen += tx.value if tx.done else ["lost"]
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, (ctx.job_id, ctx.token, "written"))
            tx.complete(seen)
        return seen

    task = app.task(max_attempts=1)(awrite if is_async else write)
    status = testing.run(task.enqueue())
    assert (status.state, status.result) == ("succeeded", VALUES), status
    assert len(notes(testing)) == 1
