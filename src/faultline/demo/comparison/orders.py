"""The job that both queues run: some work, then one row and the job's completion in one commit.

faultline worker faultline.demo.comparison.orders:app
python -m faultline.demo.naive faultline.demo.comparison.orders:naively
"""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager
from typing import Any, Protocol

from faultline.app import App
from faultline.config import Settings
from faultline.context import Context
from faultline.demo import naive
from faultline.demo.comparison.schedule import LEASE_SECONDS
from faultline.demo.comparison.tables import EFFECT, at_home, begin, call, harness
from faultline.retry import Backoff
from faultline.task import Task

QUEUE = "comparison"


class Transaction(Protocol):
    """What both queues give: the handler's rows and the job's completion in one commit."""

    def execute(self, statement: Any, parameters: Any = None) -> Any:
        """The handler's own writes."""

    def complete(self) -> None:
        """The job is done."""


class Attempt(Protocol):
    """A claimed job in the hands of either queue."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Commits on leaving the block."""


def fulfil(attempt: Attempt, run: str, job: int, work_seconds: float, point: str | None) -> None:
    """The handler. At `point` it calls for its fault, on a connection that is no queue's."""
    pid = os.getpid()
    settings = Settings.from_environment()
    schema = settings.schema
    assert settings.database_url is not None
    with harness(settings.database_url) as conn:
        begin(conn, schema, run, job, pid)
        time.sleep(work_seconds)
        if point == "before_write":
            call(conn, schema, run, job, pid)
        with attempt.transaction() as tx:
            tx.execute(at_home(EFFECT, schema), (run, job, pid))
            if point == "before_commit":
                call(conn, schema, run, job, pid)
            tx.complete()


def naively(job: naive.Job) -> None:
    """For the naive queue."""
    fulfil(job, **job.payload)


def take_orders(app: App) -> Task[..., Any]:
    """The task of this app, wherever its installation is."""
    taken: Task[..., Any] = app.task(
        queue=QUEUE,
        lease_seconds=LEASE_SECONDS,
        max_attempts=naive.MAX_ATTEMPTS,
        max_crashes=naive.MAX_ATTEMPTS,
        retry=Backoff(naive.RETRY_SECONDS, naive.RETRY_SECONDS),
    )(order)
    return taken


def order(ctx: Context, run: str, job: int, work_seconds: float, point: str | None) -> None:
    """For Faultline."""
    fulfil(ctx, run, job, work_seconds, point)


app = App()
take_orders(app)
