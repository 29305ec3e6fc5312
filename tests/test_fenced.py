"""ctx.transaction(): completing, and losing the lease, run by app.testing().

A lease is taken away with `testing.take_over` where it matters; real workers are in
test_fenced_duel.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from faultline import App, Context, InvalidArgument, Snooze, StaleLease
from faultline.testing import Testing
from tests.charging import INSERT, app, events, notes, testing

__all__ = ["app", "testing"]


# ── completing ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_writes_and_the_success_are_one_commit(app: App, testing: Testing, kind: str) -> None:
    @app.task(name="sync")
    def sync(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.execute(INSERT, (ctx.job_id, ctx.token, "paid"))
            tx.complete({"ok": True})
            assert testing.connection.execute("select from charge").fetchall() == []

    @app.task(name="async")
    async def asynchronous(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, (ctx.job_id, ctx.token, "paid"))
            tx.complete({"ok": True})

    status = testing.run(app.enqueue(kind))
    assert (status.state, status.result) == ("succeeded", {"ok": True})
    assert notes(testing) == ["paid"]
    (row,) = testing.connection.execute(
        "select distinct c.xmin::text = a.xmin::text from charge c join faultline.attempt a "
        "on a.job_id = c.job_id"
    ).fetchall()
    assert row == (True,)
    assert events(testing).count("job_completed") == 1


def test_without_complete_it_is_an_intermediate_commit(app: App, testing: Testing) -> None:
    @app.task
    def charge(ctx: Context) -> str:
        for note in ("a", "b"):
            with ctx.transaction() as tx:
                tx.execute(INSERT, (ctx.job_id, ctx.token, note))
            assert note in notes(testing)
        return "done"

    status = testing.run(charge.enqueue())
    assert (status.state, status.result) == ("succeeded", "done")
    assert notes(testing) == ["a", "b"]


def test_an_error_inside_rolls_everything_back_and_completes_nothing(
    app: App, testing: Testing
) -> None:
    @app.task(max_attempts=1)
    def charge(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.execute(INSERT, (ctx.job_id, ctx.token, "never"))
            tx.complete({"ok": True})
            raise ValueError("no")

    assert testing.run(charge.enqueue()).state == "failed"
    assert notes(testing) == []


def test_a_second_completion_is_an_error(app: App, testing: Testing) -> None:
    @app.task(max_attempts=1)
    def twice(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.complete(1)
            tx.complete(2)

    status = testing.run(twice.enqueue())
    assert status.state == "failed"
    assert "an attempt ends once" in status.error["message"]


def test_nothing_can_be_written_after_the_completion(app: App, testing: Testing) -> None:
    seen: list[str] = []

    @app.task
    def goes_on(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.complete(1)
        with pytest.raises(InvalidArgument, match="was completed by"), ctx.transaction():
            seen.append("never")

    assert testing.run(goes_on.enqueue()).result == 1
    assert seen == []


@pytest.mark.parametrize("ending", ["raise", "snooze", "return", "same", "nothing"])
def test_what_is_said_after_the_completion_changes_nothing_and_is_reported(
    app: App, testing: Testing, ending: str
) -> None:
    @app.task(max_attempts=1)
    def late(ctx: Context) -> Any:
        with ctx.transaction() as tx:
            tx.complete({"n": 1})
        if ending == "raise":
            raise ValueError("late")
        if ending == "snooze":
            raise Snooze(5)
        return {"return": {"n": 2}, "same": {"n": 1}}.get(ending)

    status = testing.run(late.enqueue())
    assert (status.state, status.result) == ("succeeded", {"n": 1})
    assert ("ending_ignored" in events(testing)) == (ending in ("raise", "snooze", "return"))
    assert testing.refusals(late.job(testing.jobs()[0]["id"])) == []


def test_a_result_that_is_not_json_is_refused_where_it_is_given(app: App, testing: Testing) -> None:
    @app.task(max_attempts=1)
    def odd(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.execute(INSERT, (ctx.job_id, ctx.token, "never"))
            tx.complete(object())

    status = testing.run(odd.enqueue())
    assert status.state == "failed"
    assert "the result of task 'odd'" in status.error["message"]
    assert notes(testing) == []


# ── losing the lease ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("completing", [True, False])
@pytest.mark.parametrize("isolation", [None, "repeatable read", "serializable"])
def test_leaving_with_a_lost_lease_rolls_back_and_raises(
    app: App, testing: Testing, isolation: Any, completing: bool
) -> None:
    caught: list[StaleLease] = []

    @app.task
    def charge(ctx: Context) -> None:
        try:
            with ctx.transaction(isolation=isolation) as tx:
                tx.execute(INSERT, (ctx.job_id, ctx.token, "late"))
                testing.take_over(ctx.job_id)
                if completing:
                    tx.complete()
        except StaleLease as stale:
            caught.append(stale)
            raise

    job = charge.enqueue()
    testing.run(job)
    (stale,) = caught
    assert (stale.reason, stale.job_id, stale.token) == ("token_mismatch", job.id, 1)
    assert stale.current_token == 2
    assert notes(testing) == []
    (refusal,) = testing.refusals(job)
    assert refusal["operation"] == ("complete_one" if completing else "assert_fence")
    assert (refusal["stale_token"], refusal["current_token"]) == (1, 2)
    assert refusal["worker"] == "testing"
    assert refusal["late_seconds"] > 0
    (event,) = [e for e in testing.events if e.event == "stale_write_blocked"]
    facts = event.fields()
    shared = ("job_id", "stale_token", "current_token", "reason", "operation", "worker")
    assert {k: str(facts[k]) for k in shared} == {k: str(refusal[k]) for k in shared}
    assert facts["late_seconds"] == pytest.approx(refusal["late_seconds"])


def test_entering_with_a_lost_lease_runs_nothing(app: App, testing: Testing) -> None:
    @app.task
    def charge(ctx: Context) -> None:
        testing.take_over(ctx.job_id)
        with ctx.transaction() as tx:
            tx.execute("select nothing_of_this_is_run()")

    job = charge.enqueue()
    testing.run(job)
    assert [row["operation"] for row in testing.refusals(job)] == ["fence"]


def test_a_frozen_snapshot_of_a_lost_attempt_is_refused_and_recorded_once(
    app: App, testing: Testing
) -> None:
    @app.task
    def charge(ctx: Context) -> None:
        testing.take_over(ctx.job_id)
        with ctx.transaction(isolation="serializable") as tx:
            tx.execute("select nothing_of_this_is_run()")

    job = charge.enqueue()
    testing.run(job)
    assert [row["operation"] for row in testing.refusals(job)] == ["assert_fence"]
    assert events(testing).count("stale_write_blocked") == 1


def test_a_commit_behind_our_back_is_checked_too(app: App, testing: Testing) -> None:
    @app.task
    def charge(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.execute(INSERT, (ctx.job_id, ctx.token, "late"))
            testing.take_over(ctx.job_id)
            tx.execute("commit")

    job = charge.enqueue()
    testing.run(job)
    assert notes(testing) == []
    assert [row["operation"] for row in testing.refusals(job)] == ["commit"]


@pytest.mark.parametrize("statement", ["commit", "rollback", "commit and chain", "commit; begin"])
def test_a_handler_that_ends_the_transaction_itself_is_told(
    app: App, testing: Testing, statement: str
) -> None:
    @app.task(max_attempts=1)
    def charge(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.execute(statement)
            if statement in ("commit and chain", "commit; begin"):
                tx.execute(INSERT, (ctx.job_id, ctx.token, "outside"))
            tx.complete()

    status = testing.run(charge.enqueue())
    assert status.state == "failed"
    words = ["leave COMMIT and ROLLBACK to the block", "in a read-only transaction"]
    assert any(word in status.error["message"] for word in words)
    assert notes(testing) == []


@pytest.mark.parametrize("first", ["commit", "rollback"])
def test_what_a_handler_writes_after_ending_the_transaction_itself_is_refused(
    app: App, testing: Testing, first: str
) -> None:
    """Nobody would fence it: each statement would commit alone."""

    @app.task(max_attempts=1)
    def charge(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.execute(first)
            testing.take_over(ctx.job_id)
            tx.execute(INSERT, (ctx.job_id, ctx.token, "late"))

    testing.run(charge.enqueue())
    assert notes(testing) == []


def test_a_connection_that_was_kept_after_its_block_cannot_write(
    app: App, testing: Testing
) -> None:
    @app.task(max_attempts=1)
    def charge(ctx: Context) -> None:
        with ctx.transaction() as tx:
            kept = tx.connection
        testing.take_over(ctx.job_id)
        kept.execute(INSERT, (ctx.job_id, ctx.token, "late"))

    testing.run(charge.enqueue())
    assert notes(testing) == []


def test_an_outer_block_cannot_commit_what_an_inner_one_has_completed(
    app: App, testing: Testing
) -> None:
    @app.task(max_attempts=1)
    def charge(ctx: Context) -> None:
        with ctx.transaction() as outer:
            outer.execute(INSERT, (ctx.job_id, ctx.token, "outer"))
            with ctx.transaction() as inner:
                inner.execute(INSERT, (ctx.job_id, ctx.token, "inner"))
                inner.complete("inner")

    job = charge.enqueue()
    assert testing.run(job).result == "inner"
    assert notes(testing) == ["inner"]
    assert testing.refusals(job) == []
    (ignored,) = [event for event in testing.events if event.event == "ending_ignored"]
    assert ignored.fields()["said"] == "raised InvalidArgument"  # and not StaleLease


def test_a_transaction_with_a_frozen_snapshot_completes_though_its_lease_was_renewed(
    app: App, testing: Testing
) -> None:
    """It renews before the snapshot, and the keeper leaves it alone afterwards."""

    @app.task(lease_seconds=6)
    def charge(ctx: Context) -> None:
        with ctx.transaction(isolation="serializable") as tx:
            tx.execute(INSERT, (ctx.job_id, ctx.token, "once"))
            tx.execute("select pg_sleep(2.3)")  # past a third of the lease: a renewal would be due
            tx.complete("kept")

    assert testing.run(charge.enqueue()).result == "kept"
    assert notes(testing) == ["once"]


def test_a_savepoint_that_is_rolled_back_takes_only_its_own_writes(
    app: App, testing: Testing
) -> None:
    @app.task
    def charge(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.execute(INSERT, (ctx.job_id, ctx.token, "kept"))
            with tx.connection.transaction(force_rollback=True):
                tx.execute(INSERT, (ctx.job_id, ctx.token, "undone"))
            tx.complete()

    assert testing.run(charge.enqueue()).state == "succeeded"
    assert notes(testing) == ["kept"]
