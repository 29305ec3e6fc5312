"""`app.testing()` runs jobs: used as a user's test uses it, but on the suite's own server."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from faultline import App, Backoff, Context, InvalidArgument, JobNotFound, Snooze
from faultline.testing import Testing
from tests.stage import until


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
def testing(app: App, server_url: str) -> Iterator[Testing]:
    with app.testing(server_url) as testing:
        yield testing
        broken = testing.connection.execute("select * from faultline.violations").fetchall()
        assert broken == []


def outcomes(testing: Testing, job: Any) -> list[tuple[int, str]]:
    return testing.connection.execute(
        "select fencing_token, outcome from faultline.attempts where job_id = %s order by 1",
        (job.id,),
    ).fetchall()


# ── running ──────────────────────────────────────────────────────────────────────────────────────


def test_a_job_is_claimed_run_and_settled_as_by_a_worker(app: App, testing: Testing) -> None:
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    @app.task
    def name_thread(ctx: Context) -> str:
        return f"{ctx.token} {threading.current_thread() is threading.main_thread()}"

    job, other = add.enqueue(1, 2), name_thread.enqueue()
    status = testing.run(job)
    assert (status.state, status.token, status.result) == ("succeeded", 1, 3)
    assert (testing.run(other.id).state, other.result(1)) == ("succeeded", "1 False")
    assert outcomes(testing, job) == [(1, "succeeded")]
    assert [event.event for event in testing.events][:2] == ["execution_started", "job_completed"]


def test_exactly_the_named_job_runs_and_its_neighbours_do_not(app: App, testing: Testing) -> None:
    @app.task
    def work(number: int) -> int:
        return number

    jobs = work.enqueue_many([{"number": number} for number in range(5)])
    assert testing.run(str(jobs[2].id)).result == 2
    assert [row["state"] for row in testing.jobs()] == [
        *["queued", "queued", "succeeded", "queued", "queued"]
    ]
    assert [row["payload"]["number"] for row in testing.jobs(state="queued")] == [0, 1, 3, 4]
    assert {row["fencing_token"] for row in testing.jobs(state="queued")} == {0}


def test_a_failed_attempt_leaves_its_job_as_in_production(app: App, testing: Testing) -> None:
    @app.task(max_attempts=2, retry=Backoff(base=3600, cap=3600))
    def fails(ctx: Context) -> None:
        raise ValueError(f"attempt {ctx.attempt}")

    job = fails.enqueue()
    first = testing.run(job)
    assert (first.state, first.error["message"]) == ("scheduled", "attempt 1")
    second = testing.run(job)  # also before it is due
    assert (second.state, second.error["message"]) == ("failed", "attempt 2")


def test_drain_runs_what_is_due_and_only_that(app: App, testing: Testing) -> None:
    ran = []

    @app.task(max_attempts=2, retry=Backoff(base=0, cap=0))
    def fails_once(ctx: Context) -> None:
        ran.append(f"fails_once {ctx.attempt}")
        if ctx.attempt == 1:
            raise ValueError("once")

    @app.task(queue="other")
    async def work(name: str) -> None:
        ran.append(name)

    first = fails_once.enqueue()
    later = work.options(delay_seconds=3600).enqueue("later")
    urgent = work.options(priority=5).enqueue("urgent")
    assert testing.drain() == [
        *[(urgent.id, "succeeded"), (first.id, "scheduled"), (first.id, "succeeded")]
    ]
    assert ran == ["urgent", "fails_once 1", "fails_once 2"]
    assert later.status().state == "scheduled"
    assert testing.drain(scheduled=True) == [(later.id, "succeeded")]
    assert testing.drain() == []


def test_drain_can_be_told_which_queues_and_how_many(app: App, testing: Testing) -> None:
    @app.task
    def work(ctx: Context) -> None:
        if ctx.headers:
            raise Snooze(3600)

    here = work.enqueue()
    there = [work.options(queue="there").enqueue() for _ in range(3)]
    assert testing.drain("there", limit=2) == [(job.id, "succeeded") for job in there[:2]]
    assert testing.drain("there", "nowhere") == [(there[2].id, "succeeded")]
    assert testing.run(here).state == "succeeded"
    for_ever = work.options(headers={"snooze": True}).enqueue()
    assert testing.drain(scheduled=True, limit=3) == [(for_ever.id, "scheduled")] * 3


def test_a_job_without_its_task_is_put_off_as_by_a_worker(app: App, testing: Testing) -> None:
    job = app.enqueue("somebody_elses")
    assert testing.run(job).state == "scheduled"
    assert outcomes(testing, job) == [(1, "snoozed")]


def test_a_timeout_fails_the_attempt(app: App, testing: Testing) -> None:
    @app.task(timeout_seconds=0.05, max_attempts=1)
    async def slow() -> None:
        await asyncio.sleep(3600)

    status = testing.run(slow.enqueue())
    assert (status.state, status.error["type"]) == ("failed", "TimeoutError")


def test_a_handler_that_blocks_its_loop_past_its_timeout_does_not_end_the_process_of_the_tests(
    app: App, testing: Testing, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("attempt", "keeper"):
        monkeypatch.setattr(f"faultline.worker.{module}.ABANDON_SECONDS", 0.05)

    @app.task(timeout_seconds=0.05, max_attempts=1)
    async def blocks() -> None:
        time.sleep(1.5)  # a worker would give up its whole process

    assert testing.run(blocks.enqueue()).state in ("failed", "succeeded")


def test_a_running_job_hears_at_once_that_it_is_cancelled(app: App, testing: Testing) -> None:
    @app.task
    def until_told(ctx: Context) -> str | None:
        app.job(ctx.job_id).cancel("not wanted")
        until(lambda: ctx.cancelled, "the handler is told")
        return ctx.cancel_reason

    assert testing.run(until_told.enqueue()).result == "not wanted"


# ── on an event loop ─────────────────────────────────────────────────────────────────────────────


def test_an_async_test_runs_handlers_on_its_own_loop(app: App, server_url: str) -> None:
    loops = []

    @app.task
    async def work() -> None:
        loops.append(asyncio.get_running_loop())

    async def main() -> None:
        async with app.testing(server_url) as testing:
            one, two = await work.aenqueue(), await work.aenqueue()
            assert (await testing.arun(one)).state == "succeeded"
            assert await testing.adrain() == [(two.id, "succeeded")]
            assert loops == [asyncio.get_running_loop()] * 2
            # The plain methods block, also here: another loop runs the handler.
            assert testing.run(work.enqueue()).state == "succeeded"
            assert loops[2] is not loops[0]

    asyncio.run(main())


def test_the_loop_that_a_test_framework_has_set_is_still_set(app: App, testing: Testing) -> None:
    @app.task
    async def work() -> None: ...

    mine = asyncio.new_event_loop()
    asyncio.set_event_loop(mine)
    try:
        testing.run(work.enqueue())
        assert asyncio.get_event_loop() is mine
    finally:
        asyncio.set_event_loop(None)
        mine.close()


def test_two_jobs_can_run_at_once(app: App, testing: Testing) -> None:
    meet = threading.Barrier(2)

    @app.task
    def work() -> None:
        meet.wait(60)

    async def main() -> list[str]:
        jobs = [work.enqueue(), work.enqueue()]
        return [status.state for status in await asyncio.gather(*map(testing.arun, jobs))]

    assert asyncio.run(main()) == ["succeeded", "succeeded"]


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_run_that_is_cancelled_hands_its_job_back(app: App, testing: Testing, kind: str) -> None:
    inside, go = threading.Event(), threading.Event()

    @app.task
    async def waits() -> None:
        inside.set()
        await asyncio.sleep(3600)

    @app.task
    def blocks() -> None:
        inside.set()
        go.wait(60)

    async def main() -> None:
        running = asyncio.ensure_future(testing.arun(job))
        await asyncio.to_thread(inside.wait, 60)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    job = (waits if kind == "async" else blocks).enqueue()
    asyncio.run(main())
    go.set()
    assert outcomes(testing, job) == [(1, "released")]
    assert job.status().state == "queued"


# ── what cannot be done ──────────────────────────────────────────────────────────────────────────


def test_what_cannot_be_run_says_why(app: App, testing: Testing) -> None:
    @app.task(max_crashes=1)
    def work(ctx: Context) -> None:
        if ctx.headers:
            with pytest.raises(InvalidArgument, match=r"is running.*expire_lease"):
                testing.run(ctx.job_id)
            with pytest.raises(InvalidArgument, match=r"is quarantined.*requeue"):
                testing.take_over(ctx.job_id)

    job = work.enqueue()
    with pytest.raises(InvalidArgument, match="no lease to lose: it is queued"):
        testing.expire_lease(job)
    testing.connection.execute("select faultline.pause('default')")
    with pytest.raises(InvalidArgument, match="its queue is paused"):
        testing.run(job)
    testing.connection.execute("select faultline.pause('default', false)")
    testing.run(job)
    with pytest.raises(InvalidArgument, match="cannot be run, it is succeeded"):
        testing.run(job)
    with pytest.raises(JobNotFound):
        testing.run(uuid.uuid4())
    with pytest.raises(InvalidArgument, match="ids are UUIDs"):
        testing.run("seven")
    assert testing.run(work.options(headers={"held": True}).enqueue()).state == "quarantined"


def test_a_user_that_may_not_make_databases_gets_one_sentence(app: App, server_url: str) -> None:
    name = f"user_{uuid.uuid4().hex}"
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(f"create role {name} login password 'secret'")
        address = server_url.rpartition("@")[2]
        try:
            plain = app.testing(f"postgresql://{name}:secret@{address}")
            with pytest.raises(InvalidArgument, match=f"{name}' may not make databases"), plain:
                pass
        finally:
            conn.execute(f"drop role {name}")
    with pytest.raises(InvalidArgument, match="give one"):
        app.testing(server_url, database=server_url)
