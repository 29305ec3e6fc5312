"""The comparison's handler without its fence: the row on a connection of its own, and no gate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from faultline import App, Context
from faultline.demo.comparison.orders import QUEUE, fulfil
from faultline.demo.comparison.schedule import LEASE_SECONDS

app = App()


class Unfenced:
    """A plain transaction, as any handler can open one."""

    def __init__(self, conn: psycopg.Connection) -> None:
        self.execute = conn.execute

    def complete(self) -> None:
        """Left to the worker, when the handler has returned."""


class Attempt:
    """What the handler takes for an attempt."""

    @contextmanager
    def transaction(self) -> Iterator[Unfenced]:
        with app.connect(autocommit=False) as conn:
            yield Unfenced(conn)


@app.task(name="order", queue=QUEUE, lease_seconds=LEASE_SECONDS)
def order(ctx: Context, run: str, job: int, work_seconds: float, point: str | None) -> None:
    fulfil(Attempt(), run, job, work_seconds, point)
