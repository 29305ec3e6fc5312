"""Celery on Redis: prefork with a child for each core, 100 tasks reserved a child, no results."""

import time

import job
from celery import Celery, group

app = Celery("celery_bench", broker=job.REDIS)
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=100)


@app.task(name="noop")
def noop(n: int) -> None:  # noqa: ARG001
    job.first()


@app.task(name="probe")
def probe(n: int) -> None:
    job.begin(n)


def prepare() -> None:
    """Redis needs nothing."""


def enqueue(jobs: int) -> None:
    started = time.perf_counter()
    for numbers in job.calls(jobs):
        group(noop.s(n) for n in numbers).apply_async()
    job.tell(started)


def trickle(start: int, count: int, per_second: int) -> None:
    job.trickle(start, count, per_second, lambda n: probe.delay(n))


def work() -> None:
    app.worker_main(["worker", "--loglevel", "WARNING", "--without-gossip", "--without-mingle"])


if __name__ == "__main__":
    job.main(prepare=prepare, enqueue=enqueue, trickle=trickle, work=work)
