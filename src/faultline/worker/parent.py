"""Several worker processes under one parent, which notices at once when one of them dies.

The parent runs no job. When a child ends without being asked, its leases are ended in the same
moment, so that somebody else takes its jobs over in milliseconds instead of after a lease; then a
new child takes its place, with growing pauses if they keep dying.
"""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import suppress
from dataclasses import replace

import psycopg

from faultline.errors import FaultlineError
from faultline.events import Emit, ProcessDied, WorkerExit
from faultline.jobs import Reclaimed
from faultline.observer import NOBODY, Observer, Standing
from faultline.protocol import MOST_RECOVERED, Protocol
from faultline.worker.alone import apart
from faultline.worker.announcer import Announcer
from faultline.worker.child import Child, Spec
from faultline.worker.endings import reclaimed_events
from faultline.worker.lanes import begun
from faultline.worker.limit import Limit
from faultline.worker.session import Session, Unavailable

SETTLED_SECONDS = 10.0  # a child that lived so long did not die of its start
LONGEST_PAUSE_SECONDS = 30.0
CALL_SECONDS = 5.0
# From the hurry to the end of all: what a child may take, and then the time to bury it.
ENDING_SECONDS = 10.0


class Parent:
    """Keeps a number of children alive until it is asked to end."""

    def __init__(
        self,
        name: str,
        url: str,
        schema: str,
        spec: Spec,
        emit: Emit,
        observer: Observer = NOBODY,
    ) -> None:
        self._name = name
        self._observer = observer
        self._verbs = Protocol(schema)
        self._url = url
        self._spec = spec
        self._emit = Announcer(name, emit, observer)
        self._children: dict[str, Child] = {}
        self._ending = asyncio.Event()
        self._limit = Limit(least_seconds=1.0)  # of its own calls, once it was hurried

    async def main(self) -> int:
        """Until every child has ended after a signal."""
        loop = asyncio.get_running_loop()
        for sign in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sign, self.drain)
        session = Session(self._url, self._verbs.schema, limit=self._limit)
        try:
            # What is wrong is said once, not by every child again and again.
            await begun(session, self._verbs, self._name, list(self._spec.options.queues))
            await session.close()
            self._observer.standing(self._name, self._standing)
            await asyncio.gather(*(self._keep(n) for n in range(self._spec.options.processes)))
            self._emit(WorkerExit(self._name, "drained"))
        finally:
            await session.close()
            self._observer.left(self._name)
            self._emit.close()
        return 0

    def drain(self) -> None:
        """Pass it on: the first time children drain, the second time they hand back, or after the
        grace. A child ends by itself then, whatever the database does; a handler that blocks it is
        waited for."""
        if self._ending.is_set():
            self._hurry()
        else:
            loop = asyncio.get_running_loop()
            loop.call_later(self._spec.options.grace_seconds, self._hurry)
        self._ending.set()
        for child in self._children.values():
            with suppress(ProcessLookupError):
                child.send_signal(signal.SIGTERM)

    def _hurry(self) -> None:
        self._limit.set(time.monotonic() + ENDING_SECONDS)

    def _standing(self) -> Standing:
        running, wanted = self._children.copy(), self._spec.options.processes
        some_died = len(running) < wanted and not self._ending.is_set()
        trouble = f"{len(running)} of {wanted} processes run" if some_died else None
        started = {name: child.started_at for name, child in running.items()}
        return Standing(trouble, children=started)

    async def _keep(self, place: int) -> None:
        """One child after the other in this place."""
        pause, generation = 0.1, 0
        while not self._ending.is_set():
            generation += 1
            name = f"{self._name}.{place + 1}.{generation}"
            began = time.monotonic()
            status = await self._run_one(name)
            asked = self._ending.is_set() or (status == 0 and self._spec.options.max_jobs)
            if status != 0 or not asked:
                await self._bury(name, status)
            if time.monotonic() - began >= SETTLED_SECONDS:
                pause = 0.1
            elif not asked:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._ending.wait(), pause)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def _run_one(self, name: str) -> int:
        options = replace(self._spec.options, name=name, processes=1)
        spec = replace(self._spec, options=options, has_siblings=True)
        child = await Child.start(spec, self._observer)
        self._children[name] = child
        if self._ending.is_set():  # while it was being started
            child.send_signal(signal.SIGTERM)
        try:
            return await child.wait()
        finally:
            del self._children[name]

    async def _bury(self, name: str, status: int) -> None:
        """End the dead child's leases now; if the database is away they expire by themselves."""
        taken: list[Reclaimed] = []
        session = Session(self._url, self._verbs.schema, limit=self._limit)
        with suppress(Unavailable, FaultlineError, psycopg.Error, TimeoutError):
            for owner in (name, apart(name)):
                found = None
                while found is None or len(found) == MOST_RECOVERED:
                    found = await session.run(self._verbs.reclaim_dead(owner), CALL_SECONDS)
                    taken += found
            await session.run(self._verbs.leave(name), CALL_SECONDS)
        await session.close()
        self._observer.reclaimed(taken)
        self._emit(ProcessDied(name, status, len(taken)))
        for event in reclaimed_events(self._name, taken):
            self._emit(event)
