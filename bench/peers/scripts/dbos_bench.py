"""DBOS: one workflow a job on a queue that is polled ten times a second; it has no bulk enqueue."""

import os
import threading
import time

import job
from dbos import DBOS, DBOSConfig

CONFIG: DBOSConfig = {
    "name": "bench",
    "system_database_url": job.URL,
    "executor_id": f"executor-{os.getpid()}",
    "application_version": "1",
    "log_level": "WARNING",
    "run_admin_server": False,
}
DBOS(config=CONFIG)


@DBOS.workflow()
def noop(n: int) -> None:  # noqa: ARG001
    job.first()


@DBOS.workflow()
def probe(n: int) -> None:
    job.begin(n)


def launch(*, working: bool) -> None:
    if not working:
        DBOS.listen_queues(["nobody"])
    DBOS.launch()
    DBOS.register_queue("bench", polling_interval_sec=0.1)


def prepare() -> None:
    launch(working=False)
    DBOS.destroy()


def enqueue(jobs: int) -> None:
    launch(working=False)
    started = time.perf_counter()
    for n in range(jobs):
        DBOS.enqueue_workflow("bench", noop, n)
    job.tell(started)
    DBOS.destroy()


def trickle(start: int, count: int, per_second: int) -> None:
    launch(working=False)
    job.trickle(start, count, per_second, lambda n: DBOS.enqueue_workflow("bench", probe, n))
    DBOS.destroy()


def work() -> None:
    launch(working=True)
    threading.Event().wait()


if __name__ == "__main__":
    job.main(prepare=prepare, enqueue=enqueue, trickle=trickle, work=work)
