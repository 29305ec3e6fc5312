"""Running one attempt here and now, with the parts that a worker is made of.

    claimed → execution → settler          on the caller's event loop
    keeper                                 one for the whole test, in its own thread

What a worker does by itself, a test decides: nothing is claimed, reclaimed or promoted here.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from uuid import UUID

from faultline.context import Means
from faultline.events import Emit
from faultline.fenced.pool import Pool
from faultline.jobs import Lease, Reconciled
from faultline.protocol import Protocol
from faultline.worker.attempt import Attempt, Hands
from faultline.worker.endings import Ending
from faultline.worker.execution import Execution
from faultline.worker.keeper import Keeper
from faultline.worker.reconciler import Reconciler
from faultline.worker.session import Session
from faultline.worker.settler import Settler

if TYPE_CHECKING:
    from faultline.app import App

LISTEN_SECONDS = 5.0  # how long to wait for the keeper to hear of cancels


class Runner:
    """The worker of one test."""

    name = "testing"

    def __init__(self, app: App, url: str, emit: Emit) -> None:
        self._app = app
        self._url = url
        self._verbs = Protocol(app.schema)
        self._emit = emit
        self._hands = Hands()
        self._executions: dict[Attempt, tuple[asyncio.AbstractEventLoop, Execution]] = {}
        self._keeper: _Keeper | None = None
        self._lock = threading.Lock()

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """A connection on the running event loop, for as many attempts as one likes."""
        session = Session(self._url, self._verbs.schema)
        try:
            yield session
        finally:
            await session.close()

    async def run(self, session: Session, lease: Lease, sent: float) -> None:
        """Run what a call claimed that was sent at this moment, and write its ending."""
        keeper = self._started_keeper()
        loop = asyncio.get_running_loop()
        settler = Settler(self.name, self._verbs, session, self._hands, self._emit)
        ended: asyncio.Future[Ending] = loop.create_future()
        execution = Execution(self.name, self._emit, ended.set_result, None)
        pool = Pool(self._url, self._verbs.schema, 20)
        pool.at_home()
        means = Means(self._verbs, pool, self._app.tasks)
        attempt = Attempt(lease, self._app.tasks.get(lease.task), sent, means)
        self._executions[attempt] = (loop, execution)
        self._hands.take([attempt])
        keeper.wake()
        try:
            execution.take([attempt])
            try:
                await asyncio.shield(ended)
            finally:
                if not ended.done():
                    _stop(attempt, execution)
                settler.add(await ended)
                await settler.settle_all()
        finally:
            self._hands.drop([attempt])
            del self._executions[attempt]
            execution.stop()
            await pool.aclose()

    def lose(self, job_id: UUID, *, told: bool) -> None:
        """The lease of this job is gone. Its handler learns it from us, or not at all: like one
        whose whole process has stalled."""
        for attempt in self._hands.of(job_id):
            attempt.renew_at = attempt.deadline = math.inf
            if told:
                attempt.tell("refused")

    def close(self) -> None:
        """End the keeper."""
        if self._keeper is not None:
            self._keeper.stop()

    def _started_keeper(self) -> Keeper:
        """Once it listens, so that a cancel is never missed."""
        with self._lock:
            if self._keeper is None:
                self._keeper = self._new_keeper()
            return self._keeper

    def _new_keeper(self) -> _Keeper:
        listening = threading.Event()
        ears = _Ears(
            self.name,
            self._url,
            self._verbs,
            self._emit,
            listen_url=self._url,
            on_work=lambda _: listening.set(),
            on_cancel=lambda job_id: keeper.ask_about(job_id),
        )
        keeper = _Keeper(
            self.name,
            self._url,
            self._verbs,
            self._hands,
            self._emit,
            beat=None,
            abandon=self._abandon,
            beside=ears,
        )
        keeper.start()
        listening.wait(LISTEN_SECONDS)
        return keeper

    def _abandon(self, attempt: Attempt) -> None:
        if (where := self._executions.get(attempt)) is not None:
            loop, execution = where
            loop.call_soon_threadsafe(execution.abandon, attempt)


class _Ears(Reconciler):
    """Only listens: what expires and what becomes due is for the test to say."""

    async def _warm_up(self) -> None:
        pass

    async def round(self) -> Reconciled:
        return Reconciled([], 0, None)


class _Keeper(Keeper):
    """Never ends the process, which is the tests'."""

    async def _give_up(self, stuck: Attempt) -> None:
        pass


def _stop(attempt: Attempt, execution: Execution) -> None:
    """Whoever waited for the attempt was cancelled: its job is handed back."""
    attempt.tell("shutdown")
    if attempt.running is None:  # a thread, which is left behind
        execution.abandon(attempt)
