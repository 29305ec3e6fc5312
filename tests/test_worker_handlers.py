"""Nothing a handler raises, returns or does to its loop stops the worker or loses a job."""

from __future__ import annotations

import threading

from faultline.worker.threads import Threads
from tests.nasty import RAISED, RETURNED
from tests.stage import DEADLINE_SECONDS, Stage, until
from tests.workers import Process

CANCELLED = ["cancels_with_odd_text"]
SUCCEEDED = ["stops_the_loop", "reports_without_end"]
FAILED = [
    *RAISED,
    *(f"{name}_sync" for name in RAISED),
    *RETURNED,
    "cancels_its_own_task",
    "ignores_its_cancellation",
]


def test_whatever_a_handler_does_its_job_ends_and_the_worker_goes_on(stage: Stage) -> None:
    wanted = dict.fromkeys(FAILED, "failed")
    wanted |= dict.fromkeys(CANCELLED, "cancelled")
    wanted |= dict.fromkeys(SUCCEEDED, "succeeded")
    with stage.login("worker") as url, Process(url, app="tests.nasty:app") as worker:
        jobs = {name: stage.enqueue(name, max_attempts=1) for name in wanted}

        def states() -> dict[str, str]:
            return {name: stage.state(job_id) for name, job_id in jobs.items()}

        until(lambda: not {"queued", "running"} & set(states().values()), "all of them have ended")
        assert states() == wanted
        for name in FAILED:
            error = stage.job(jobs[name])["error"]
            assert error["type"], name
            assert name not in RETURNED or error["type"] == "InvalidArgument", name
        assert stage.job(jobs["cancels_with_odd_text"])["error"] == {"reason": "not now ?"}
        worker.until("handler_abandoned", task="ignores_its_cancellation")
        worker.terminate()
        assert worker.ended() == 0, "also with a handler that will never end"
    assert stage.violations() == []


def test_a_thread_that_is_one_too_many_is_not_kept() -> None:
    """The loop hears that work is done, and begins the next, before its thread is free."""
    threads, done = Threads("one-too-many", 1), threading.Event()
    threads.run(lambda: threads.run(done.set))

    def alive() -> int:
        return sum(thread.name == "one-too-many" for thread in threading.enumerate())

    assert done.wait(DEADLINE_SECONDS)
    until(lambda: alive() == 1, "one is kept")
    threads.stop()
    until(lambda: alive() == 0, "it has ended")
