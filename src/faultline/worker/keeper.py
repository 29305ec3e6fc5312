"""The lease keeper: a thread with an event loop and connections of its own.

It renews what is past a third of its lease, tells handlers to stop (their lease is lost, or about
to be; they run too long; somebody cancelled them), passes on their progress, and says that the
worker is alive. A handler that blocks the worker's own loop for several leases keeps its lease.

It never runs a handler and never writes an ending, but one: when the worker's loop itself is stuck
in a handler that is past its timeout, nobody else is left to do it, and the process ends.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg

from faultline.beats import BEAT_SECONDS, SILENT_SECONDS
from faultline.errors import FaultlineError
from faultline.events import (
    Emit,
    ExecutionTimedOut,
    HandlerAbandoned,
    LeaseLost,
    StaleWriteBlocked,
    WorkerExit,
)
from faultline.jobs import Renewal
from faultline.observer import NOBODY, Observer
from faultline.protocol import MOST_RECOVERED, Protocol
from faultline.worker.attempt import ABANDON_SECONDS, Attempt, Hands
from faultline.worker.endings import Abandoned, Released, Settled, ending_of
from faultline.worker.limit import Limit
from faultline.worker.outage import Outage, nothing
from faultline.worker.reconciler import Reconciler
from faultline.worker.session import CALM_SECONDS, Session, Unavailable

TICK_SECONDS = 1.0  # how long it sleeps at most
ASIDE_SECONDS = 2.0
STUCK = 75  # exit status of a process that gave up on a handler which would not end
REPORT_SECONDS = 0.5  # progress is passed on at most so often
GOODBYE_SECONDS = 5.0
WARM_SECONDS = 2.0


class Keeper:
    """Keeps the attempts in a worker's hands."""

    def __init__(
        self,
        worker: str,
        url: str,
        verbs: Protocol,
        hands: Hands,
        emit: Emit,
        *,
        beat: Callable[[], tuple[list[str], dict[str, Any]]] | None,
        abandon: Callable[[Attempt], None],
        beside: Reconciler,
        last: Callable[[], None] = nothing,
        observer: Observer = NOBODY,
        limit: Limit | None = None,
        tasks: Sequence[str] | None = None,
    ) -> None:
        self._worker = worker
        self._verbs = verbs
        self._hands = hands
        self._emit = emit
        self._beat = beat  # who the worker is and what it does; None: nobody is to know
        self._tasks = tasks  # to be written down after the first beat; None: done
        self._is_introduced = False  # they have been written down once
        self._abandon = abandon  # gives a handler up, on the worker's loop
        self._beside = beside  # runs on this loop too
        self._last = last  # to be called before the process is given up
        self._url = url
        self._observer = observer
        self._limit = limit or Limit()  # for what is asked once it is stopped
        self._session = Session(url, verbs.schema, observer, self._limit)
        self._outage = Outage(worker, nothing)
        self._stopping = False
        self._beat_at = 0.0 if beat is not None else math.inf
        self._report_at = 0.0
        self._thread = threading.Thread(target=self._run, name="faultline-keeper", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._look = asyncio.Event()  # something new to look at
        self._ask = asyncio.Event()  # something to ask the database
        self._main: asyncio.Task[None] | None = None
        self._giving_up: asyncio.Task[None] | None = None
        self._ready = threading.Event()
        self._warm = threading.Event()  # its connection is ready, or could not be had
        self._look_at = self._ask_at = math.inf  # when it will do so by itself
        self.turned_at: float | None = None  # when it last looked; it never waits to do so
        self._answered_at = math.inf  # when a round last ended well

    # ── from the worker's thread ─────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Begin to keep. Blocks until the connections for renewals and for the reconciler are
        ready, at most 2 s each: the worker claims without them."""
        self._thread.start()
        self._ready.wait()
        self._warm.wait(WARM_SECONDS)
        self._beside.warm.wait(WARM_SECONDS)

    def wake(self, look_at: float = 0.0, ask_at: float = 0.0) -> None:
        """There is something new in the hands: to be looked at, and asked about, by then."""
        if look_at < self._look_at or ask_at < self._ask_at:
            self._soon(self._woken)

    def taken(self, attempts: list[Attempt], sent: float) -> None:
        """These are new in the hands; most of the time it would look soon enough by itself."""
        look_at, ask_at = math.inf, sent + REPORT_SECONDS
        alike = {(attempt.task, attempt.lease.lease_seconds): attempt for attempt in attempts}
        for attempt in alike.values():
            look_at = min(look_at, attempt.deadline, attempt.timeout_at_least)
            ask_at = min(ask_at, attempt.renew_at)
        self.wake(look_at, ask_at)

    def look_again(self) -> None:
        """A job was put off: the reconciler does not know of it yet."""
        self._soon(self._beside.look_again)

    def ask_about(self, job_id: UUID) -> None:
        """Renew this job's lease now: the answer says whether somebody cancelled it."""
        for attempt in self._hands.of(job_id):
            attempt.renew_at = 0.0
        self.wake()

    def trouble(self) -> str | None:
        """Why leases cannot be renewed, if so; from any thread."""
        if (why := self._outage.trouble) is not None:
            return f"leases cannot be renewed: {why}"
        now = time.monotonic()
        if (silent := now - self._answered_at) > SILENT_SECONDS:
            return f"leases cannot be renewed: the database has not answered for {silent:.0f} s"
        late = [a for a in self._hands.all() if now > a.overdue_at and _is_kept(a)]
        if late:
            return f"{len(late)} leases are not renewed in time: job {late[0].job_id}, for one"
        return None

    def stop(self, seconds: float = GOODBYE_SECONDS) -> None:
        """End the thread, within so many seconds; what is in hand is no longer kept."""
        self._stopping = True
        self._limit.set(time.monotonic() + seconds)
        if self._thread.is_alive():  # else it was never started
            self._soon(lambda: self._main.cancel() if self._main else None)
            self._thread.join(self._limit.left() + CALM_SECONDS)

    def _woken(self) -> None:
        self._look.set()
        self._ask.set()

    def _soon(self, function: Callable[[], Any]) -> None:
        with suppress(RuntimeError):  # its loop is closed
            if self._loop is not None:
                self._loop.call_soon_threadsafe(function)

    # ── in its own thread ────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            asyncio.run(self._keep())

    async def _keep(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        self._ready.set()
        beside = self._loop.create_task(self._beside.run())
        renewing = self._loop.create_task(self._renew_forever())
        try:
            await self._watch_forever()
        finally:
            left = {beside, renewing}
            await asyncio.gather(self._session.calm(CALM_SECONDS), self._beside.calm(CALM_SECONDS))
            while left:  # until 3.12 wait_for may swallow a cancellation: ask again
                for task in left:
                    task.cancel()
                _, left = await asyncio.wait(left, timeout=0.2)
            await self._say_goodbye()
            await self._session.close()

    async def _watch_forever(self) -> None:
        """Look at every attempt when its next moment comes. Never waits for the database."""
        while not self._stopping:
            self.turned_at = now = time.monotonic()
            self._look_at = math.inf  # whoever comes meanwhile may come too late for this look
            moments = [self._look_after(attempt, now) for attempt in self._hands.all()]
            pause = min([TICK_SECONDS, *(moment - now for moment in moments)])
            self._look_at = now + pause
            await _wait_for(self._look, pause)

    def _look_after(self, attempt: Attempt, now: float) -> float:
        """Tell its handler to stop if it is time; answers with when to look again."""
        later = now + TICK_SECONDS
        if attempt.done or attempt.over or attempt.apart:
            return later
        if attempt.abandon_at is not None:
            return self._insist(attempt, attempt.abandon_at, now)
        timeout_at = attempt.timeout_at
        if timeout_at is not None and now >= timeout_at:
            assert attempt.task is not None
            seconds = attempt.task.timeout_seconds or 0.0
            if attempt.tell("timeout"):
                task = attempt.lease.task
                self._emit(ExecutionTimedOut(self._worker, *attempt.key, task, seconds))
        elif attempt.has_ended_itself:
            return later  # it has no lease any more, and needs none
        elif now >= attempt.deadline and attempt.tell("deadline"):
            self._emit(LeaseLost(self._worker, *attempt.key, attempt.lease.task, "deadline"))
        return min(attempt.deadline, timeout_at or later, later)

    def _insist(self, attempt: Attempt, abandon_at: float, now: float) -> float:
        """It was told. Give it up when its time is over; and the process, if even that fails."""
        if now < abandon_at:
            return abandon_at
        if now < abandon_at + ABANDON_SECONDS or attempt.told != "timeout":
            self._abandon(attempt)
            return now + TICK_SECONDS
        self._giving_up = self._giving_up or asyncio.ensure_future(self._give_up(attempt))
        return now + TICK_SECONDS

    async def _renew_forever(self) -> None:
        """Renew, report and beat, each when it is due; through outages, with growing pauses."""
        self._answered_at = time.monotonic()
        await self._session.warm(self._verbs.renew([]), ASIDE_SECONDS)
        self._warm.set()
        while True:
            try:
                self._ask_at = math.inf  # whoever comes meanwhile may come too late for this one
                self._ask_at = await self._round()
                self._outage.over()
                self._answered_at = time.monotonic()
                await _wait_for(self._ask, self._ask_at - time.monotonic())
            except Exception as error:  # whatever it is: leases depend on this loop
                await self._outage.wait(error)

    async def _round(self) -> float:
        now = time.monotonic()
        hands = self._hands.all()  # thousands, where jobs are short, and none of them due
        if any(a.renew_at <= now for a in hands):
            # With them those that are due soon, so that long jobs come to be renewed together.
            near = [a for a in hands if a.renew_at <= now + a.lease.lease_seconds / 6]
            kept = [a for a in near if _is_kept(a)]
            if any(a.renew_at <= now for a in kept):
                await self._renew(kept)
        told = [a for a in hands if a.report is not None and _is_kept(a)]
        if told and now >= self._report_at:
            self._report_at = now + REPORT_SECONDS
            await self._report(told)
        if self._beat is not None and now >= self._beat_at:
            queues, details = self._beat()
            call = self._verbs.beat(self._worker, queues, details, datetime.now(UTC))
            await self._session.run(call, _below_the_leases(hands))
            self._beat_at = now + BEAT_SECONDS
        if self._tasks is not None and self._beat is not None:
            if not await self._introduce(self._beat()[0], self._tasks, _below_the_leases(hands)):
                return now  # after what is due for the leases
            self._tasks = None
        hands = self._hands.all()
        soon = now + (REPORT_SECONDS if hands else BEAT_SECONDS)
        due = [_due_at(a, now) for a in hands if a.renew_at < soon]
        return min(self._beat_at, soon, *due)

    async def _introduce(self, queues: list[str], tasks: Sequence[str], seconds: float) -> bool:
        """Write down which tasks this worker knows, which makes declined jobs of these due. Returns
        False if there may be more: at first always, for a job may be declined during the call."""
        call = self._verbs.know_tasks(self._worker, queues, tasks)
        due = await self._session.run(call, seconds)
        was_introduced, self._is_introduced = self._is_introduced, True
        return was_introduced and due < MOST_RECOVERED

    async def _renew(self, due: list[Attempt]) -> None:
        """One statement for all of them; each then has its lease from the moment it was sent."""
        seconds = min(attempt.lease.lease_seconds for attempt in due) / 4  # time for a second try
        sent = time.monotonic()
        call = self._verbs.renew([attempt.key for attempt in due])
        answers = {(r.job_id, r.token): r for r in await self._session.run(call, seconds)}
        renewed = []
        for attempt in due:
            if (renewal := answers.get(attempt.key)) is not None:
                self._heed(attempt, renewal, sent)
                if renewal.verdict == "renewed":
                    renewed.append(attempt)
        self._observer.renewed(renewed)

    def _heed(self, attempt: Attempt, renewal: Renewal, sent: float) -> None:
        if renewal.verdict == "renewed":
            attempt.kept(sent)
        elif renewal.verdict == "busy" or attempt.is_ending_itself:
            # A transaction of its own is settling it, or has: ask again soon.
            attempt.renew_at = sent + attempt.lease.lease_seconds / 20
        else:
            attempt.lost = True
            if attempt.tell("refused"):
                self._emit(LeaseLost(self._worker, *attempt.key, attempt.lease.task, "refused"))
        if renewal.reason is not None:  # recorded as a refusal: to be said, and not to be repeated
            attempt.lost = True
            self._emit(
                StaleWriteBlocked(
                    self._worker,
                    *attempt.key,
                    renewal.current_token,
                    renewal.reason,
                    "renew",
                    renewal.late_seconds,
                )
            )
        if renewal.cancel_reason is not None:
            attempt.tell("cancelled", renewal.cancel_reason)
        self.wake()

    async def _report(self, told: list[Attempt]) -> None:
        reports = []
        for attempt in told:
            (report,), attempt.report = attempt.report, None
            reports.append(report)
        call = self._verbs.progress([attempt.key for attempt in told], reports)
        await self._session.run(call, _below_the_leases(told))

    async def _say_goodbye(self) -> None:
        if self._beat is None:
            return
        for _ in range(2):  # a beat that was cut short may have its cancellation hit the first try
            with suppress(Unavailable, psycopg.Error, FaultlineError, TimeoutError):
                await self._session.run(self._verbs.leave(self._worker), GOODBYE_SECONDS)
                return

    async def _give_up(self, stuck: Attempt) -> None:
        """The worker's loop will not come back: write what can be written, and end the process."""
        self._emit(HandlerAbandoned(self._worker, *stuck.key, stuck.lease.task))
        others = [a for a in self._hands.all() if a is not stuck and _may_be_handed_back(a)]
        ending = ending_of(stuck, Abandoned())
        session = Session(self._url, self._verbs.schema, limit=self._limit)
        with suppress(Unavailable, psycopg.Error, FaultlineError, TimeoutError):
            if not isinstance(ending, Settled):  # else it has ended itself, or may have
                stale = await session.run(ending.call(self._verbs, [ending]), 2.0)
                self._observer.settled([ending], stale)
            if others:
                released = [Released(attempt, "stuck") for attempt in others]
                stale = await session.run(released[0].call(self._verbs, released), 2.0)
                self._observer.settled(released, stale)
        await self._say_goodbye()
        self._emit(WorkerExit(self._worker, "stuck"))
        self._last()
        os._exit(STUCK)


def _is_kept(attempt: Attempt) -> bool:
    """Whether its lease is to be renewed from here."""
    return not (attempt.lost or attempt.alone or attempt.held or attempt.has_ended_itself)


def _due_at(attempt: Attempt, now: float) -> float:
    """When to renew its lease; or to look again, while a transaction of its own keeps it."""
    if attempt.held:
        return max(attempt.renew_at, now + attempt.lease.lease_seconds / 20)
    return attempt.renew_at if _is_kept(attempt) else math.inf


def _may_be_handed_back(attempt: Attempt) -> bool:
    """Whether it runs here, and has not ended its job itself."""
    return not (attempt.done or attempt.alone or attempt.is_ending_itself)


def _below_the_leases(kept: list[Attempt]) -> float:
    """How long a call that is not a renewal may hold one up, also of a job claimed meanwhile."""
    return min([ASIDE_SECONDS, *(attempt.lease.lease_seconds / 4 for attempt in kept)])


async def _wait_for(event: asyncio.Event, seconds: float) -> None:
    """Until it is set or the time is over; at least a moment, so that no loop spins."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), max(seconds, 0.01))
    event.clear()
