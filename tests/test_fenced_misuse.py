"""What a handler can do wrong with a fenced transaction is said, and never loses a write quietly;
what only looks odd works."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from faultline import App, Context
from faultline.testing import Testing
from tests.charging import INSERT, app, notes, testing

__all__ = ["app", "testing"]


def message(app: App, testing: Testing, handler: Callable[..., Any]) -> str:
    """Why the one attempt of a job with this handler failed; nothing of it was committed."""
    status = testing.run(app.task(max_attempts=1)(handler).enqueue())
    assert (status.state, notes(testing)) == ("failed", []), status
    assert testing.jobs(task="relay:topic") == []
    return str(status.error["message"])


def succeeds(app: App, testing: Testing, handler: Callable[..., Any]) -> Any:
    status = testing.run(app.task(max_attempts=1)(handler).enqueue())
    assert status.state == "succeeded", status
    return status.result


# ── outside its block ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("what", ["execute", "complete", "emit", "record"])
def test_a_transaction_outside_its_block_refuses_everything(
    app: App, testing: Testing, what: str, when: str
) -> None:
    """A message or a success that nobody carries out would be lost without a word."""
    arguments = {"execute": ["select 1"], "emit": ["topic", {}]}.get(what, [1])

    def handler(ctx: Context) -> None:
        tx = ctx.transaction(step="one")
        if when == "after":
            with tx:
                pass
        getattr(tx, what)(*arguments)

    assert f"tx.{what} belongs inside its block" in message(app, testing, handler)


def test_a_block_is_entered_once(app: App, testing: Testing) -> None:
    """A second time it would emit again, and inside itself forget a connection."""

    def inside_itself(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.execute(INSERT, (ctx.job_id, ctx.token, "never"))
            with tx:
                pass

    def again(ctx: Context) -> None:
        tx = ctx.transaction(step="one")
        for _ in range(2):
            with tx:
                pass

    assert "entered once" in message(app, testing, inside_itself)
    assert "entered once" in message(app, testing, again)


# ── inside it ────────────────────────────────────────────────────────────────────────────────────


def test_a_statement_that_was_not_awaited_is_not_lost_quietly(app: App, testing: Testing) -> None:
    async def handler(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, (ctx.job_id, ctx.token, "never"))
            tx.execute(INSERT, (ctx.job_id, ctx.token, "forgotten"))
            tx.complete("done")

    assert "was not awaited" in message(app, testing, handler)


def test_statements_may_be_awaited_later_and_together(app: App, testing: Testing) -> None:
    async def handler(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            first = tx.execute(INSERT, (ctx.job_id, ctx.token, "0"))
            rest = [tx.execute(INSERT, (ctx.job_id, ctx.token, str(n))) for n in range(1, 20)]
            await asyncio.gather(*rest)
            await first

    succeeds(app, testing, handler)
    assert len(notes(testing)) == 20


def test_a_pipeline_that_is_still_open_is_refused_because_its_commit_would_never_be_sent(
    app: App, testing: Testing
) -> None:
    def handler(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.execute(INSERT, (ctx.job_id, ctx.token, "never"))
            kept.append(tx.connection.pipeline())
            kept[0].__enter__()

    kept: list[Any] = []
    assert "pipeline is still open" in message(app, testing, handler)


def test_a_pipeline_that_is_closed_in_time_works(app: App, testing: Testing) -> None:
    def handler(ctx: Context) -> None:
        with ctx.transaction() as tx:
            with tx.connection.pipeline():
                for n in range(3):
                    tx.execute(INSERT, (ctx.job_id, ctx.token, str(n)))
            tx.complete()

    succeeds(app, testing, handler)
    assert notes(testing) == ["0", "1", "2"]


def test_a_statement_that_failed_fails_the_block_though_the_handler_goes_on(
    app: App, testing: Testing
) -> None:
    def handler(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.execute(INSERT, (ctx.job_id, ctx.token, "never"))
            with pytest.raises(Exception, match="nonsense"):
                tx.execute("select nonsense")
            tx.complete()

    assert "transaction is aborted" in message(app, testing, handler)


def test_the_connections_own_commit_is_forbidden(app: App, testing: Testing) -> None:
    def handler(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.execute(INSERT, (ctx.job_id, ctx.token, "never"))
            tx.connection.commit()

    assert "commit() forbidden" in message(app, testing, handler)


def test_a_savepoint_that_is_still_open_is_refused(app: App, testing: Testing) -> None:
    def handler(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.execute(INSERT, (ctx.job_id, ctx.token, "never"))
            kept.append(tx.connection.transaction())
            kept[0].__enter__()
            tx.complete()

    kept: list[Any] = []
    assert "transaction() of the handler's own is still open" in message(app, testing, handler)
    assert notes(testing) == []


@pytest.mark.parametrize("wrong", ["sync block", "complete"])
def test_await_where_there_is_nothing_to_await_fails_the_attempt(
    app: App, testing: Testing, wrong: str
) -> None:
    async def sync_block(ctx: Context) -> None:
        with ctx.transaction() as tx:
            await tx.execute(INSERT, (ctx.job_id, ctx.token, "never"))

    async def complete(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, (ctx.job_id, ctx.token, "never"))
            await tx.complete()  # type: ignore[func-returns-value]

    handler = sync_block if wrong == "sync block" else complete
    said = message(app, testing, handler)
    assert "'await' expression" in said or "can't be awaited" in said  # before 3.14; since


def test_a_result_that_is_too_large_is_refused_and_a_large_answer_is_not(
    app: App, testing: Testing
) -> None:
    def too_large(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.execute(INSERT, (ctx.job_id, ctx.token, "never"))
            tx.complete("x" * 2_000_000)

    def large(ctx: Context) -> int:
        with ctx.transaction() as tx:
            answer = tx.execute("select repeat('x', 1000) from generate_series(1, 50000)")
            return len(answer.fetchall())

    assert "more than 1048576 bytes" in message(app, testing, too_large)
    assert succeeds(app, testing, large) == 50_000


# ── several, and elsewhere ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("isolation", [None, "serializable"])
def test_transactions_of_one_job_may_be_nested_and_at_once(
    app: App, testing: Testing, isolation: Any
) -> None:
    """Each has a connection of its own, and none waits for another's end."""

    def nested(ctx: Context) -> None:
        with ctx.transaction(isolation=isolation) as outer:
            outer.execute(INSERT, (ctx.job_id, ctx.token, "outer"))
            with ctx.transaction(isolation=isolation) as inner:
                inner.execute(INSERT, (ctx.job_id, ctx.token, "inner"))

    async def at_once(ctx: Context) -> None:
        async def one(note: str) -> None:
            async with ctx.transaction(isolation=isolation) as tx:
                await tx.execute(INSERT, (ctx.job_id, ctx.token, note))

        await asyncio.gather(*(one(f"{n}") for n in range(8)))

    succeeds(app, testing, nested)
    assert notes(testing) == ["inner", "outer"]
    succeeds(app, testing, at_once)
    assert len(notes(testing)) == 10


def test_the_inner_completion_leaves_nothing_to_the_outer_one(app: App, testing: Testing) -> None:
    def handler(ctx: Context) -> None:
        with ctx.transaction() as outer:
            outer.execute(INSERT, (ctx.job_id, ctx.token, "outer"))
            with ctx.transaction() as inner:
                inner.execute(INSERT, (ctx.job_id, ctx.token, "inner"))
                inner.complete("inner")

    assert succeeds(app, testing, handler) == "inner"
    assert notes(testing) == ["inner"]
    assert testing.jobs()[0]["state"] == "succeeded"
    assert testing.refusals(testing.jobs()[0]["id"]) == []


def test_a_sync_handler_may_run_an_event_loop_of_its_own(app: App, testing: Testing) -> None:
    def handler(ctx: Context) -> None:
        async def work() -> None:
            async with ctx.transaction() as tx:
                await tx.execute(INSERT, (ctx.job_id, ctx.token, "loop"))
                tx.complete("of the loop")

        asyncio.run(work())

    assert succeeds(app, testing, handler) == "of the loop"
    assert notes(testing) == ["loop"]
