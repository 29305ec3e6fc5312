"""The worker's main loop: settle what has ended, claim what there is room for, wait.

    while it is going on:
        settle_and_claim()       one call and one commit, where both are to be done
        wait()                   for an ending, a notification, or the next poll

Claims only as many jobs as can begin at once, so that a job that is leased is a job that runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

import psycopg

from faultline.errors import DatabaseUnavailable, FaultlineError
from faultline.events import Emit
from faultline.jobs import Lease
from faultline.protocol import Protocol
from faultline.worker.endings import Completed, keys, results
from faultline.worker.lanes import Lanes
from faultline.worker.outage import Outage
from faultline.worker.session import Locked, Session, Unavailable
from faultline.worker.settler import Settler, is_unknown, seconds_for

MAX_CLAIM = 500
CALL_SECONDS = 5.0
SLEEP_SECONDS = 60.0  # how long one `sleep` asks for notifications
# A lost claim may commit after we have looked for it, when its COMMIT waits for a standby.
LOOK_AGAIN_SECONDS = (2.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0)


class Pump:
    """Moves jobs between the database and the hands of one worker."""

    def __init__(
        self,
        worker: str,
        queues: list[str],
        session: Session,
        verbs: Protocol,
        settler: Settler,
        emit: Emit,
        *,
        room: Callable[[], int],
        start: Callable[[list[Lease], float], None],
        known: Callable[[], list[tuple[UUID, int]]],
        poll_seconds: Callable[[], float],
        apart: str | None,
    ) -> None:
        self._worker = worker
        self._queues = queues
        self._session = session
        self._verbs = verbs
        self._settler = settler
        self._room = room  # how many jobs may begin now; 0 when draining
        self._start = start
        self._known = known  # every attempt in hand
        self._poll_seconds = poll_seconds
        self._apart = apart  # whose the leases of suspects are
        self._lanes = Lanes(queues, verbs, session)
        self._outage = Outage(worker, emit)
        self._signal = asyncio.Event()
        self._hungry = True  # there may be work
        self._asleep_until = 0.0
        self._look_for_lost: list[float] = []  # moments

    def wake(self) -> None:
        """Something has ended, or the worker is to drain."""
        self._signal.set()

    def work_announced(self, queue: str | None) -> None:
        """A queue has a job; None: some queue may have one."""
        if queue is None or queue in self._queues:
            self._hungry = True
            self._lanes.refresh_soon()
            self._signal.set()

    async def begin(self) -> set[str]:
        """Connect, and fail now if this worker could never claim anything; answers with those of
        its queues that have had a job."""
        try:
            await self._session.connection()
            await self._session.run(self._verbs.claim(self._worker, []), CALL_SECONDS)
            lanes = await self._session.run(self._verbs.lanes(self._queues), CALL_SECONDS)
        except (Unavailable, TimeoutError) as error:
            raise DatabaseUnavailable(str(error) or "the database did not answer") from error
        return {lane.queue for lane in lanes}

    async def run(self, going_on: Callable[[], bool], patient: Callable[[], bool]) -> bool:
        """Until `going_on` says no and all is written; an outage only makes it wait, as long as
        it is `patient`. False: not all could be written."""
        while going_on() or self._settler:
            try:
                await self.settle_and_claim()
            except Exception as error:  # whatever it is: a worker that stops here loses its jobs
                if not patient():
                    return False
                await self._outage.wait(error)
            else:
                self._outage.over()
                if not (going_on() or patient()) and self._settler:
                    return False
                if going_on() or self._settler:
                    await self._wait()
        return True

    async def settle_and_claim(self) -> None:
        """One step. Raises Unavailable; what was to be written is then kept for the next."""
        await self._settler.resolve()
        await self._release_lost()
        if (room := min(self._room(), MAX_CLAIM)) > 0:
            completions = self._settler.take_completions()
            if completions or self._hungry:
                await self._claim(room, completions)
        await self._settler.settle()

    async def _claim(self, room: int, completions: list[Completed]) -> None:
        sent = time.monotonic()
        self._hungry = False  # until somebody announces work, also while the claim is under way
        try:
            lanes, cursors = await self._lanes.for_claim()
            sent = time.monotonic()
            if completions:
                swap = self._verbs.swap(
                    keys(completions),
                    results(completions),
                    self._worker,
                    lanes,
                    max_jobs=room,
                    cursors=cursors,
                )
                seconds = min(CALL_SECONDS, seconds_for(completions))
                stale, leases = await self._session.run(swap, seconds)
            else:
                stale = []
                claim = self._verbs.claim(self._worker, lanes, max_jobs=room, cursors=cursors)
                leases = await self._session.run(claim, CALL_SECONDS)
        except (FaultlineError, psycopg.Error):
            self._hungry = True
            if not completions:
                raise
            await self._settler.write(completions)  # alone, and if need be one by one
            return
        except Locked:
            self._hungry = True
            if not completions:
                raise
            await self._settler.locked(completions)
            return
        except Exception as error:  # an answer that cannot be understood counts as lost
            self._hungry = True
            self._settler.unanswered(completions, error)
            if is_unknown(error):
                now = time.monotonic()
                self._look_for_lost = [sent, *(now + later for later in LOOK_AGAIN_SECONDS)]
            raise
        self._lanes.claimed(leases)
        if leases:
            await self._set_apart(leases)
            self._start(leases, sent)
        if completions:
            await self._settler.answered(completions, stale)
        await self._sleep_or_not(len(leases) >= room)

    async def _set_apart(self, leases: list[Lease]) -> None:
        """What will run alone no longer shares this worker's fate, from before anything begins."""
        suspects = [(lease.job_id, lease.token) for lease in leases if lease.last_chance]
        if suspects and self._apart is not None:
            call = self._verbs.adopt(self._apart, suspects, started=False)
            with suppress(Unavailable, FaultlineError, psycopg.Error):  # its process will find out
                await self._session.run(call, CALL_SECONDS)

    async def _sleep_or_not(self, full: bool) -> None:
        """Ask to be notified when there is no more work; not while there is: it costs enqueuers."""
        now = time.monotonic()
        if full:
            self._hungry = True
            if self._asleep_until > now:
                self._asleep_until = 0.0
                await self._session.run(self._verbs.awake(self._worker), CALL_SECONDS)
        elif not self._lanes.swept:
            self._lanes.refresh_soon()
            self._hungry = True
        elif self._asleep_until < now + SLEEP_SECONDS / 2:
            call = self._verbs.sleep(self._worker, self._queues, SLEEP_SECONDS)
            await self._session.run(call, CALL_SECONDS)
            self._asleep_until = now + SLEEP_SECONDS
            self._lanes.refresh_soon()
            self._hungry = True  # look once more: a job may have come before we asked

    async def _release_lost(self) -> None:
        """Hand back what a claim leased to us without our ever hearing of it."""
        while self._look_for_lost and time.monotonic() >= self._look_for_lost[0]:
            call = self._verbs.release_others(self._worker, self._known())
            await self._session.run(call, CALL_SECONDS)
            self._look_for_lost.pop(0)

    async def _wait(self) -> None:
        """For an ending, an announcement or the next poll; not at all while there is work."""
        seconds = min(self._poll_seconds(), self._settler.due_at - time.monotonic())
        if seconds <= 0 or (self._hungry and self._room() > 0):
            await asyncio.sleep(0)
            return
        timer = asyncio.get_running_loop().call_later(seconds, self._poll)
        await self._signal.wait()
        self._signal.clear()
        timer.cancel()

    def _poll(self) -> None:
        self._hungry = True
        self._signal.set()
