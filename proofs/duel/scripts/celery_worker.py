"""Celery on Redis: late acknowledgement, prefork, the shortest visibility timeout."""

import sys

import handler
from celery import Celery, Task

app = Celery("celery_worker", broker=handler.REDIS)
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_transport_options={
        "visibility_timeout": 1,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    },
)


@app.task(bind=True, name="charge")
def charge(self: Task) -> None:
    handler.handle(self.request.id)


def prepare() -> None:
    charge.delay()


def work() -> None:
    handler.note("ready")
    app.worker_main(["worker", "--concurrency", "1", "--loglevel", "INFO", "-n", handler.WORKER])


if __name__ == "__main__":
    {"prepare": prepare, "work": work}[sys.argv[1]]()
