"""Reconcile: take over what expired, and queue what is due.

Every worker runs one, beside its keeper; `faultline reconcile` runs one alone. Any number may run
at once and none must: there is no leader. Between two rounds it waits for the next expiry or due
job that it knows of, or for `poll_seconds`, whichever is first. With a `listen_url` it also hears
of new work, for a worker whose own connection goes through a pooler.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from uuid import UUID

import psycopg

from faultline.connect import pooled
from faultline.errors import DatabaseUnavailable, FaultlineError
from faultline.events import Emit, Event, ReadyCompacted, VacuumSpared
from faultline.jobs import Reclaimed, Reconciled
from faultline.observer import NOBODY, Observer, Standing
from faultline.protocol import Protocol
from faultline.worker.ears import Word, listen, pass_on
from faultline.worker.endings import reclaimed_events
from faultline.worker.limit import Limit
from faultline.worker.outage import Outage, nothing
from faultline.worker.pace import Pace
from faultline.worker.retention import Retention
from faultline.worker.session import Locked, Session, Unavailable

CALL_SECONDS = 10.0
PARTITIONS_EVERY = 3600.0  # seconds between two looks whether next month's partitions are there
PARTITIONS_LATER = 60.0  # until the next try, if they could not be made
COMPACT_EVERY = 5.0  # seconds between two looks whether ready is full of dead rows
COMPACT_LATER = 300.0  # the longest pause after tries in vain
SPARE_EVERY = 5.0  # seconds between two looks whether vacuum is in vain, while there are leases
SPARE_LATER = 20.0  # without any, and where somebody holds one of the tables
MAX_JOBS = 1000
TURN_SECONDS = 1.0  # between two turns of its own loop, for who asks whether it turns


class Reconciler:
    """One round after the other, until cancelled."""

    def __init__(
        self,
        worker: str,
        url: str,
        verbs: Protocol,
        emit: Emit,
        *,
        listen_url: str | None = None,
        poll_seconds: float = 1.0,
        on_work: Callable[[Word | None], None] = nothing,
        on_cancel: Callable[[UUID], None] = nothing,
        announce: bool = True,
        observer: Observer = NOBODY,
        limit: Limit | None = None,
    ) -> None:
        self._worker = worker
        self._verbs = verbs
        self._emit = emit
        self._poll_seconds = poll_seconds
        self._on_work = on_work  # a queue has a job; None: some queue may have
        self._on_cancel = on_cancel  # somebody wants this job to stop
        self._observer = observer
        self._limit = limit or Limit()
        self._session = Session(url, verbs.schema, observer, self._limit)
        # Who claims hears on its own connection; this is for where that goes through a pooler.
        self._ears: Session | None = None
        if listen_url is not None:
            self._ears = Session(listen_url, verbs.schema, limit=self._limit)
        self._hearing: psycopg.AsyncConnection[object] | None = None
        self._partitions_at = 0.0
        self._compacting = Pace(COMPACT_EVERY, COMPACT_LATER)
        self._sparing = Pace(SPARE_EVERY, SPARE_LATER)
        self._retention = Retention(worker, url, verbs, emit, self._limit)
        self._sooner = asyncio.Event()
        self.warm = threading.Event()  # its connection is ready, or could not be had
        self._outage = Outage(worker, emit if announce else nothing)

    @property
    def listening(self) -> bool:
        """Whether notifications arrive; behind a pooler they do not."""
        return self._hearing is not None and not self._hearing.closed

    def trouble(self) -> str | None:
        """Why nothing can be taken over, if so; from any thread."""
        why = self._outage.trouble
        return None if why is None else f"expired leases cannot be taken over: {why}"

    def look_again(self) -> None:
        """A job was put off, perhaps only for a moment: ask again when the next one is due."""
        self._sooner.set()

    async def run(self) -> None:
        """Until cancelled; an outage only makes it wait."""
        retention = asyncio.ensure_future(self._retention.run())
        try:
            await self._warm_up()
            self.warm.set()
            while True:
                try:
                    done = await self.round()
                    self._outage.over()
                    await self._wait(done.next_seconds)
                except Exception as error:  # whatever it is: recovery depends on this loop
                    await self._outage.wait(error)
        finally:
            retention.cancel()
            await asyncio.gather(retention, return_exceptions=True)
            await self.close()

    async def _warm_up(self) -> None:
        await self._session.warm(self._verbs.reconcile(0), CALL_SECONDS)

    async def calm(self, seconds: float) -> None:
        """Before it is cancelled: let the calls under way end, or cut them off."""
        sessions = [self._session, *([self._ears] if self._ears is not None else [])]
        await asyncio.gather(*(session.calm(seconds) for session in sessions))

    async def close(self) -> None:
        """Forget the connections."""
        await self._session.close()
        if self._ears is not None:
            await self._ears.close()

    async def round(self) -> Reconciled:
        """Reconcile once; whoever is to know is told. Then what is seldom due: nothing that goes
        wrong there holds up a recovery."""
        done = await self._session.run(self._verbs.reconcile(MAX_JOBS), CALL_SECONDS)
        self._observer.reconciled(done)
        self._emit_reclaimed(done.reclaimed)
        if len(done.reclaimed) >= MAX_JOBS:
            await self._reclaim_rest()
        if done.reclaimed or done.promoted:
            self._on_work(None)
        now = asyncio.get_running_loop().time()
        if now >= self._partitions_at:
            self._partitions_at = now + PARTITIONS_LATER
            with suppress(Locked):
                await self._session.run(self._verbs.create_partitions(), CALL_SECONDS)
                self._partitions_at = now + PARTITIONS_EVERY
        if self._compacting.is_due(now):
            await self._compact()
        if self._sparing.is_due(now):
            await self._spare_vacuum(is_idle=done.next_seconds is None)
        return done

    async def _reclaim_rest(self) -> None:
        """Take over what a round had to leave, call after call: a whole zone may have died."""
        taken: list[Reclaimed] | None = None
        while taken is None or len(taken) >= MAX_JOBS:
            taken = await self._session.run(self._verbs.reclaim(MAX_JOBS), CALL_SECONDS)
            self._observer.reclaimed(taken)
            self._emit_reclaimed(taken)
            self._on_work(None)

    def _emit_reclaimed(self, taken: Sequence[Reclaimed]) -> None:
        for event in reclaimed_events(self._worker, taken):
            self._emit(event)

    async def _compact(self) -> None:
        """Compact ready if it is bloated; where somebody holds it, try more and more seldom: each
        try makes the queue wait for 100 ms."""
        try:
            if await self._session.run(self._verbs.compact_if_bloated(), CALL_SECONDS):
                self._emit(ReadyCompacted(self._worker))
            self._compacting.went_well()
        except Locked:
            self._compacting.was_in_vain()

    async def _spare_vacuum(self, *, is_idle: bool) -> None:
        """Have autovacuum come more seldom, or as ever again. Who has nothing to do asks seldom;
        and where a trigger of the user's refuses to have a table altered, vacuum is not spared."""
        try:
            left = await self._session.run(self._verbs.spare_vacuum(), CALL_SECONDS)
        except (Locked, FaultlineError, psycopg.Error):
            self._sparing.was_in_vain()
            return
        if left is not None:
            self._emit(VacuumSpared(self._worker, left))
        if is_idle:
            self._sparing.was_in_vain()
        else:
            self._sparing.went_well()

    async def _wait(self, next_seconds: float | None) -> None:
        """Until the next thing known of, but never longer than a poll; spread, so that a thousand
        workers do not all ask at the very moment of an expiry."""
        pause = self._poll_seconds * random.uniform(0.9, 1.1)  # noqa: S311
        if next_seconds is not None:
            pause = min(pause, max(next_seconds, 0.0) + random.uniform(0.0, 0.05))  # noqa: S311
        hearing = asyncio.ensure_future(self._hear() if await self._listen() else _nothing_ever())
        sooner = asyncio.ensure_future(self._sooner.wait())
        try:
            done, _ = await asyncio.wait(
                {hearing, sooner}, timeout=pause, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
        finally:
            hearing.cancel()
            sooner.cancel()
            await asyncio.gather(hearing, sooner, return_exceptions=True)
            self._sooner.clear()

    async def _hear(self) -> None:
        """Until cancelled: nothing that is said changes when to look again."""
        assert self._ears is not None
        conn = await self._ears.connection()
        async for heard in conn.notifies():
            pass_on(heard.payload, self._on_work, self._on_cancel)

    async def _listen(self) -> bool:
        if self._ears is None:
            return False
        try:
            conn = await self._ears.connection()
        except DatabaseUnavailable as error:
            raise Unavailable(error, unknown=False) from error
        if pooled(conn):
            return False
        if conn is not self._hearing:
            await listen(conn, self._verbs.schema, self._limit)
            self._hearing = conn
            self._on_work(None)  # what was announced before we listened
        return True


async def _nothing_ever() -> None:
    await asyncio.Event().wait()


async def reconcile_forever(
    url: str,
    schema: str,
    emit: Emit,
    *,
    poll_seconds: float = 1.0,
    observer: Observer = NOBODY,
) -> None:
    """What `faultline reconcile` does, until cancelled."""

    def told(event: Event) -> None:
        observer.event(event)
        emit(event)

    reconciler = Reconciler(
        "reconciler",
        url,
        Protocol(schema),
        told,
        poll_seconds=poll_seconds,
        observer=observer,
    )
    turned_at = time.monotonic()
    observer.standing("reconciler", lambda: Standing(reconciler.trouble(), turned_at))
    reconciling = asyncio.ensure_future(reconciler.run())
    try:
        while not reconciling.done():
            turned_at = time.monotonic()
            await asyncio.wait({reconciling}, timeout=TURN_SECONDS)
        await reconciling
    finally:
        while not reconciling.done():  # until 3.12 wait_for may swallow a cancellation: ask again
            reconciling.cancel()
            await asyncio.wait({reconciling}, timeout=0.2)
        observer.left("reconciler")
