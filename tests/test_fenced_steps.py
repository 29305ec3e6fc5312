"""Steps, transactional tasks and the outbox, run by app.testing()."""

from __future__ import annotations

from typing import Any

import pytest

from faultline import App, Context, InvalidArgument, Message
from faultline.testing import Testing
from tests.charging import INSERT, app, notes, testing

__all__ = ["app", "testing"]


# ── steps ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["sync", "async", "careless"])
def test_a_step_is_committed_once_over_all_attempts_and_keeps_its_value(
    app: App, testing: Testing, kind: str
) -> None:
    seen: list[tuple[int, bool, Any]] = []

    def after(ctx: Context, tx: Any) -> None:
        seen.append((ctx.token, tx.done, tx.value))
        if ctx.token == 1:
            raise ValueError("after the step")

    @app.task(name="sync")
    def sync(ctx: Context) -> None:
        with ctx.transaction(step="reserve") as tx:
            if not tx.done:
                tx.execute(INSERT, (ctx.job_id, ctx.token, "reserved"))
                tx.record({"by": ctx.token})
        after(ctx, tx)

    @app.task(name="async")
    async def asynchronous(ctx: Context) -> None:
        async with ctx.transaction(step="reserve") as tx:
            if not tx.done:
                await tx.execute(INSERT, (ctx.job_id, ctx.token, "reserved"))
                tx.record({"by": ctx.token})
        after(ctx, tx)

    @app.task(name="careless")
    def careless(ctx: Context) -> None:
        with ctx.transaction(step="reserve") as tx:
            tx.execute(INSERT, (ctx.job_id, ctx.token, "reserved"))
            tx.record({"by": ctx.token})
            tx.emit("never twice", {})
        after(ctx, tx)

    job = app.enqueue(kind)
    testing.run(job)
    assert testing.run(job).state == "succeeded"
    assert seen == [(1, False, {"by": 1}), (2, True, {"by": 1})]
    assert notes(testing) == ["reserved"]
    assert len(testing.jobs(task="relay:never twice")) == (kind == "careless")
    (step,) = testing.connection.execute("select * from faultline.steps").fetchall()
    assert step[:3] == (job.id, "reserve", 1)


def test_a_step_of_a_lost_attempt_is_not_recorded(app: App, testing: Testing) -> None:
    @app.task
    def charge(ctx: Context) -> None:
        with ctx.transaction(step="reserve") as tx:
            tx.execute(INSERT, (ctx.job_id, ctx.token, "late"))
            testing.take_over(ctx.job_id)

    job = charge.enqueue()
    testing.run(job)
    assert notes(testing) == []
    assert testing.connection.execute("select * from faultline.steps").fetchall() == []
    assert [row["operation"] for row in testing.refusals(job)] == ["record_step"]


def test_a_step_and_the_end_of_the_job_may_be_one_commit(app: App, testing: Testing) -> None:
    @app.task
    def charge(ctx: Context) -> None:
        with ctx.transaction(step="all") as tx:
            tx.execute(INSERT, (ctx.job_id, ctx.token, "x"))
            tx.complete(tx.done)

    assert testing.run(charge.enqueue()).result is False
    assert notes(testing) == ["x"]


def test_a_step_that_is_done_can_still_end_the_job(app: App, testing: Testing) -> None:
    @app.task(max_attempts=2)
    def charge(ctx: Context) -> None:
        with ctx.transaction(step="first") as tx:
            if not tx.done:
                tx.execute(INSERT, (ctx.job_id, ctx.token, "x"))
            else:
                tx.complete("from the second attempt")
        if not tx.done:
            raise ValueError("between")

    job = charge.enqueue()
    testing.run(job)
    assert testing.run(job).result == "from the second attempt"
    assert notes(testing) == ["x"]


@pytest.mark.parametrize("step", ["", "x" * 101, 7, b"x", ["a"]])
def test_a_step_has_a_name(app: App, testing: Testing, step: Any) -> None:
    @app.task(max_attempts=1)
    def charge(ctx: Context) -> None:
        ctx.transaction(step=step)

    assert "1 to 100 characters" in testing.run(charge.enqueue()).error["message"]


def test_record_belongs_to_a_step(app: App, testing: Testing) -> None:
    @app.task(max_attempts=1)
    def charge(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.record(1)

    assert "tx.record belongs to a step" in testing.run(charge.enqueue()).error["message"]


# ── the whole handler ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_transactional_task_commits_its_writes_with_its_result(
    app: App, testing: Testing, kind: str
) -> None:
    @app.task(name="sync", transactional=True, max_attempts=1)
    def sync(ctx: Context, fail: bool) -> str:
        ctx.tx.execute(INSERT, (ctx.job_id, ctx.token, "whole"))
        if fail:
            raise ValueError("no")
        return "done"

    @app.task(name="async", transactional=True, max_attempts=1)
    async def asynchronous(ctx: Context, fail: bool) -> str:
        await ctx.tx.execute(INSERT, (ctx.job_id, ctx.token, "whole"))
        if fail:
            raise ValueError("no")
        return "done"

    assert testing.run(app.enqueue(kind, {"fail": True})).state == "failed"
    assert notes(testing) == []
    assert testing.run(app.enqueue(kind, {"fail": False})).result == "done"
    assert notes(testing) == ["whole"]


def test_a_transactional_task_of_a_lost_attempt_writes_nothing(app: App, testing: Testing) -> None:
    @app.task(transactional=True)
    def charge(ctx: Context) -> str:
        ctx.tx.execute(INSERT, (ctx.job_id, ctx.token, "late"))
        testing.take_over(ctx.job_id)
        return "late"

    job = charge.enqueue()
    testing.run(job)
    assert notes(testing) == []
    assert [row["operation"] for row in testing.refusals(job)] == ["complete_one"]


def test_a_result_that_cannot_be_stored_fails_a_transactional_task_for_good(
    app: App, testing: Testing
) -> None:
    @app.task(transactional=True, max_attempts=5)
    def charge(ctx: Context) -> Any:
        ctx.tx.execute(INSERT, (ctx.job_id, ctx.token, "x"))
        return object()

    status = testing.run(charge.enqueue())
    assert status.state == "failed"
    assert "the result of task 'charge'" in status.error["message"]
    assert notes(testing) == []


def test_a_transactional_task_needs_its_context(app: App) -> None:
    with pytest.raises(InvalidArgument, match="first parameter `ctx: Context`"):

        @app.task(transactional=True)
        def charge(order_id: int) -> None: ...


def test_there_is_no_transaction_around_an_ordinary_task(app: App, testing: Testing) -> None:
    @app.task(max_attempts=1)
    def charge(ctx: Context) -> None:
        ctx.tx.execute("select 1")

    assert "transactional=True" in testing.run(charge.enqueue()).error["message"]


# ── the outbox ───────────────────────────────────────────────────────────────────────────────────


def test_a_message_is_there_exactly_if_the_commit_is_and_is_delivered(
    app: App, testing: Testing
) -> None:
    delivered: list[Message] = []

    @app.relay("receipts", max_attempts=3)
    def send(message: Message) -> None:
        delivered.append(message)
        if len(delivered) == 1:
            raise ConnectionError("try again")

    @app.task(max_attempts=1)
    def charge(ctx: Context, fail: bool) -> None:
        with ctx.transaction() as tx:
            tx.execute(INSERT, (ctx.job_id, ctx.token, "x"))
            tx.emit("receipts", {"order": 7})
            tx.complete()
            if fail:
                raise ValueError("no")

    testing.run(charge.enqueue(fail=True))
    assert testing.jobs(task="relay:receipts") == []
    job = charge.enqueue(fail=False)
    testing.run(job)
    testing.drain(scheduled=True)
    first, again = delivered
    assert first == again
    assert (first.topic, first.payload, first.token) == ("receipts", {"order": 7}, 1)
    assert first.job_id == job.id
    (carrier,) = testing.jobs(task="relay:receipts")
    assert first.key == str(carrier["id"])
    assert carrier["state"] == "succeeded"


def test_a_message_with_a_key_is_one_message(app: App, testing: Testing) -> None:
    keys: list[str] = []

    @app.relay("receipts")
    async def send(ctx: Context, message: Message) -> None:
        keys.append(message.key)

    @app.task
    async def charge(ctx: Context) -> None:
        for _ in range(2):
            async with ctx.transaction() as tx:
                tx.emit("receipts", {"order": 7}, key="order-7")

    testing.run(charge.enqueue())
    testing.drain()
    assert keys == ["order-7"]


def test_thousands_of_messages_are_one_commit(app: App, testing: Testing) -> None:
    @app.task
    def charge(ctx: Context) -> None:
        with ctx.transaction() as tx:
            for number in range(2_000):
                tx.emit("receipts", {"order": number})
            tx.complete()

    assert testing.run(charge.enqueue()).state == "succeeded"
    ids = testing.connection.execute("select id from faultline.jobs where task like 'relay:%'")
    assert len(ids.fetchall()) == 2_000


def test_a_message_of_a_lost_attempt_is_never_sent(app: App, testing: Testing) -> None:
    @app.task
    def charge(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.emit("receipts", {"order": 7})
            testing.take_over(ctx.job_id)

    testing.run(charge.enqueue())
    assert testing.jobs(task="relay:receipts") == []


def test_a_message_without_a_relay_waits_for_one(app: App, testing: Testing) -> None:
    @app.task
    def charge(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.emit("receipts", {"order": 7})

    testing.run(charge.enqueue())
    (message,) = testing.jobs(task="relay:receipts")
    assert testing.run(message["id"]).state == "scheduled"


@pytest.mark.parametrize(
    ("topic", "payload", "key", "words"),
    [
        ("", {}, None, "1 to 200 characters"),
        (None, {}, None, "1 to 200 characters"),
        ("t", object(), None, "the message for 't'"),
        ("t", {}, 7, "option idempotency_key is 7"),
    ],
)
def test_a_message_that_cannot_be_stored_is_refused_where_it_is_emitted(
    app: App, testing: Testing, topic: Any, payload: Any, key: Any, words: str
) -> None:
    @app.task(max_attempts=1)
    def charge(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.emit(topic, payload, key=key)

    assert words in testing.run(charge.enqueue()).error["message"]


def test_a_relay_takes_one_message(app: App) -> None:
    with pytest.raises(InvalidArgument, match="takes 2 arguments"):

        @app.relay("receipts")
        def send(message: Message, other: int) -> None: ...


def test_a_job_that_is_no_message_says_so(app: App, testing: Testing) -> None:
    @app.relay("receipts", max_attempts=1)
    def send(message: Message) -> None: ...

    enqueue = "select faultline.enqueue('relay:receipts', '{\"message\": {}}')"
    (job_id,) = testing.connection.execute(enqueue).fetchone() or ()
    assert "made by tx.emit" in testing.run(job_id).error["message"]
