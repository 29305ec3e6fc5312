"""How a worker hears of work: by notification, while it waits and while it is busy claiming."""

from __future__ import annotations

import asyncio
import time

from tests.stage import DEADLINE_SECONDS, Stage, until
from tests.told import Told, play
from tests.workers import Ground, Process


def test_work_announced_while_a_claim_is_under_way_does_not_wait_for_the_next_poll(
    stage: Stage,
) -> None:
    """The claim has read the queue and waits for a lock when the second job comes."""
    ground = Ground(stage)
    with stage.login("worker") as url, Process(url, "--poll-seconds", "60") as worker:
        warm = stage.enqueue("add", {"a": 1, "b": 2})
        worker.until("job_completed", job_id=warm)
        asleep = "select count(*) from {schema}.workers where asleep"
        until(lambda: stage.value(asleep) == 1, "the worker waits")
        holder = stage.connect(isolation="read committed")
        holder.execute("lock table faultline.epoch in access exclusive mode")
        first = stage.enqueue("held_long")
        blocked = (
            "select count(*) from pg_stat_activity where wait_event_type = 'Lock' "
            "and query like 'select * from faultline.claim%%' and datname = current_database()"
        )
        until(lambda: stage.value(blocked.replace("%%", "%")) == 1, "the claim waits")
        second = stage.enqueue("add", {"a": 3, "b": 4})
        holder.rollback()
        worker.until("job_completed", job_id=second)  # while the first one still runs
        ground.go(first, 1)
        worker.until("job_completed", job_id=first)
    assert ground.stage.violations() == []


def test_a_job_in_a_lane_that_is_new_does_not_wait_for_the_poll(stage: Stage) -> None:
    """Announced together with one in a lane that the worker knows and has read just now, so that
    its claim finds that one."""
    Ground(stage)
    with stage.login("worker") as url, Process(url, "--poll-seconds", "60") as worker:
        for priority in (3, 5, 7):
            warm = stage.enqueue("add", {"a": 1, "b": 2})
            worker.until("job_completed", job_id=warm)
            worker.stall()
            known = stage.enqueue("add", {"a": 3, "b": 4})
            new = stage.enqueue("add", {"a": 5, "b": 6}, priority=priority)
            worker.wake()
            worker.until("job_completed", job_id=known)
            worker.until("job_completed", job_id=new)
    assert stage.violations() == []


def test_a_worker_looks_again_after_an_announcement_to_many(stage: Stage) -> None:
    """A job that comes in silence, when the worker has looked for what was announced. It may have
    looked a second time as well by then: one of ten is found at least."""
    Ground(stage)
    looked = (
        "select count(*) from pg_stat_activity where state = 'idle' and datname = "
        "current_database() and query like 'select * from faultline.claim%' "
        "and query_start > '{moment}' and query_start < clock_timestamp() - interval '10 ms'"
    )
    with stage.login("worker") as url, Process(url, "--poll-seconds", "60") as worker:
        warm = stage.enqueue("add", {"a": 1, "b": 2})
        worker.until("job_completed", job_id=warm)
        found = 0
        for _ in range(10):
            moment = stage.value("select clock_timestamp()")
            stage.execute("select pg_notify('faultline', 'among 50 default')")
            question = looked.replace("{moment}", str(moment))
            until(lambda asked=question: stage.value(asked) == 1, "the worker has looked")
            silent = stage.enqueue("add", {"a": 3, "b": 4}, notify=False)
            over = time.monotonic() + 30  # its last look comes within 6 s, a poll after 60 s
            while stage.state(silent) != "succeeded" and time.monotonic() < over:
                time.sleep(0.01)
            if stage.state(silent) == "succeeded":
                found += 1
                break
            stage.execute("select pg_notify('faultline', 'default')")
            worker.until("job_completed", job_id=silent)
    assert found == 1


def test_endings_of_other_jobs_do_not_put_the_next_poll_off(stage: Stage) -> None:
    """A worker with a free place, and a job that only a poll finds. What wakes it comes ten times
    as often as its polls."""

    async def scene(pump: Told) -> None:
        pump.poll_seconds = 0.5
        stage.enqueue(notify=False)
        over = time.monotonic() + DEADLINE_SECONDS
        while not pump.begun and time.monotonic() < over:
            asyncio.get_running_loop().call_later(0.05, pump.wake)
            await pump.woken()
            await pump.step()
        assert pump.begun == [1]

    play(stage, scene)


def test_a_worker_without_a_free_place_waits_for_one_and_does_not_spin(stage: Stage) -> None:
    async def scene(pump: Told) -> None:
        pump.poll_seconds = 0.2
        pump.room = 0
        began, steps = time.monotonic(), 0
        while time.monotonic() < began + 1.0:
            await pump.woken()
            await pump.step()
            steps += 1
        assert steps <= 12  # a poll is twice heard of: by its timer, and when it is due

    play(stage, scene)
