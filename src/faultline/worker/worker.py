"""One worker process, put together.

    pump        (this event loop)     claims jobs and settles their endings
    execution   (this event loop)     runs async handlers here, sync ones in threads
    keeper      (its own thread)      renews leases, tells handlers to stop
    reconciler  (the keeper's loop)   takes over what expired, promotes what is due

Three connections: the pump's, which also listens, the keeper's and the reconciler's; and two more
of the pump's while it has hundreds of short jobs to move. No handler ever runs on one of them.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from faultline import __version__
from faultline.context import Means
from faultline.events import (
    Emit,
    LeaseAcquired,
    UnknownQueue,
    WorkerDraining,
    WorkerExit,
    WorkerStarted,
    wants,
)
from faultline.fenced.pool import Pool
from faultline.jobs import Lease
from faultline.log import log_to
from faultline.observer import Standing
from faultline.protocol import Protocol
from faultline.reference import reference_of
from faultline.worker.alone import Alone
from faultline.worker.announcer import Announcer
from faultline.worker.attempt import Attempt, Hands
from faultline.worker.child import Spec
from faultline.worker.endings import Completed, Ending, Released, Settled
from faultline.worker.execution import Execution
from faultline.worker.keeper import GOODBYE_SECONDS, STUCK, Keeper
from faultline.worker.limit import Limit
from faultline.worker.options import WorkerOptions, named
from faultline.worker.passing import Sender
from faultline.worker.pump import Pump
from faultline.worker.reconciler import Reconciler
from faultline.worker.session import Session
from faultline.worker.settler import Settler

if TYPE_CHECKING:
    from faultline.app import App

PATIENCE_SECONDS = 5.0  # of a worker that was hurried, with a database that is away
OTHERS = 2  # connections of the pump's: the server has work while this process runs a batch
WRITING_SECONDS = 6.5  # however it is: handlers that will not end are handed back after 5 s
CLOSING_SECONDS = 1.5
ENDING_SECONDS = WRITING_SECONDS + CLOSING_SECONDS  # from the hurry to the end of the process
LISTENING_POLLS = 5.0  # how much rarer a worker polls for jobs that it is told of


class Worker:
    """Runs the jobs of an app until it is asked to end."""

    def __init__(
        self,
        app: App,
        options: WorkerOptions | None = None,
        emit: Emit | None = None,
        *,
        reference: str | None = None,
    ) -> None:
        self._app = app
        self.options = options or WorkerOptions()
        self._listener = emit or log_to(sys.stdout, self.options.log, self.options.log_level)
        self.name = str(self.options.name or named(self.options).name)
        self.queues = list(self.options.queues) or app.queues
        self._reference = reference or reference_of(app)
        self._verbs = Protocol(app.schema)
        self._observer = app.telemetry
        self._hands = Hands()
        self._only: Lease | None = None  # the one job of a process that runs it alone
        self._say_kept: int | None = None
        self._sender: Sender | None = None  # of a child: tells the parent what is observed
        self._has_siblings = False
        self._begun = 0
        self._draining = False
        self._reason = "drained"
        self._patient_until = math.inf
        self._limit = Limit(least_seconds=1.0)  # for its endings, once it was hurried

    # ── running ──────────────────────────────────────────────────────────────────────────────────

    async def main(self, spec: Spec | None = None, *, parent: int | None = None) -> int:
        """As a process of its own: with signals, and draining when its parent dies."""
        loop = asyncio.get_running_loop()
        if spec is not None:
            self._only, self._say_kept = spec.lease, spec.kept
            self._has_siblings = spec.has_siblings
            if spec.words is not None:
                self._sender = Sender(self._observer, spec.words)
        self.prepare()
        if parent is not None:
            loop.add_reader(parent, self._heard_from_parent, parent)
        with self._signals(loop):
            return await self.run()

    async def run(self) -> int:
        """Until drained, or until its one job has ended; answers with the exit status."""
        only = self._only
        try:
            used = await self._pump.begin()
            await asyncio.to_thread(self._keeper.start)
            self._observer.standing(self.name, self._standing)
            if only is None:
                self._observer.working(self.name, lambda: self._beat()[1])
                self._announce(used)
            else:
                await self._take_over(only)
            if not await self._pump.run(self._going_on, self._is_patient, self._limit):
                self._reason = "database away"  # its leases expire by themselves
            if only is None:
                self._emit(WorkerExit(self.name, self._reason))
        finally:
            self._keeper.stop(max(self._limit.left(GOODBYE_SECONDS), CLOSING_SECONDS / 2))
            self._execution.stop()
            await self._pump.close()
            await self._session.close()
            await self._means.pool.aclose(max(self._limit.left(2.0), CLOSING_SECONDS / 2))
            self._observer.left(self.name)
            self._say_last()
        return {"stuck": STUCK, "database away": 1}.get(self._reason, 0)

    def drain(self) -> None:
        """Claim nothing more and wait for what runs; asked again, or after the grace, hand back."""
        if self._draining:
            self._release_running()
            return
        self._draining = True
        if self._reason != "max_jobs":  # else these are the last of so many
            self._execution.hand_back("shutdown")
        if self._only is not None:
            self._release_running()  # whoever runs it alone asks only then
            return
        self._emit(WorkerDraining(self.name, self._execution.running))
        loop = asyncio.get_running_loop()
        loop.call_later(self.options.grace_seconds, self._release_running)
        self._pump.wake()

    def prepare(self) -> None:
        """Put the parts together, on the event loop that will run them."""
        url, schema = self._app.url, self._app.schema
        observer = self._observer
        self._emit = Announcer(self.name, self._listener, observer)
        pool = Pool(url, schema, self.options.max_transactions)
        pool.at_home()
        self._means = Means(self._verbs, pool, self._app.tasks, self.name, observer)
        loop = asyncio.get_running_loop()
        self._session = Session(url, schema, observer, self._limit)
        self._settler = Settler(
            self.name,
            self._verbs,
            self._session,
            self._hands,
            self._emit,
            on_put_off=lambda: self._keeper.look_again(),
            observer=observer,
        )
        alone, goodbye = self._alone(), Limit()
        self._execution = Execution(
            self.name,
            self._emit,
            self._ended,
            alone,
            self._to_write,
            on_done=self._done,
            places=self.options.concurrency,
        )
        few = 0 if self._has_siblings else OTHERS  # with one each they keep the server busy
        others = [Session(url, schema, observer, self._limit) for _ in range(few)]
        self._pump = self._new_pump(others, alone)
        self._reconciler = Reconciler(
            self.name,
            url,
            self._verbs,
            self._emit,
            listen_url=self._app.listen_url,
            poll_seconds=self.options.poll_seconds,
            on_work=lambda word: _soon(loop, self._pump.work_announced, word),
            on_cancel=lambda job_id: self._keeper.ask_about(job_id),
            announce=False,
            observer=observer,
            limit=goodbye,
        )
        self._keeper = Keeper(
            self.name,
            url,
            self._verbs,
            self._hands,
            self._emit,
            beat=self._beat if self._only is None else None,
            abandon=lambda attempt: _soon(loop, self._execution.abandon, attempt),
            beside=self._reconciler,
            last=self._last,
            observer=observer,
            limit=goodbye,
            tasks=sorted(self._app.tasks),
        )

    def _new_pump(self, others: list[Session], alone: Alone | None) -> Pump:
        return Pump(
            self.name,
            self.queues,
            self._session,
            self._verbs,
            self._settler,
            self._emit,
            others=others,
            room=self._room,
            is_ahead=self._execution.is_ahead,
            start=self._start,
            known=lambda: [attempt.key for attempt in self._hands.all()],
            poll_seconds=self._poll_seconds,
            apart=alone.name if alone is not None else None,
            listens=self._app.listen_url is None,
            on_cancel=lambda job_id: self._keeper.ask_about(job_id),
            observer=self._observer,
        )

    # ── what the parts ask ───────────────────────────────────────────────────────────────────────

    def _room(self) -> int:
        """How many jobs may be claimed now."""
        if self._draining or self._only is not None:
            return 0
        room = self._execution.room
        if self.options.max_jobs is not None:
            room = min(room, self.options.max_jobs - self._begun)
        return room

    def _going_on(self) -> bool:
        return self._execution.is_busy or not (self._draining or self._only is not None)

    def _is_patient(self) -> bool:
        """Whether to wait for a database that is away; not for long once it was hurried."""
        return time.monotonic() < self._patient_until

    def _start(self, leases: list[Lease], sent: float) -> None:
        """These were claimed by a call that was sent at this moment: begin them."""
        tasks, means = self._app.tasks, self._means
        attempts = [Attempt(lease, tasks.get(lease.task), sent, means) for lease in leases]
        if self._only is None:
            self._observer.claimed(attempts, sent)
        else:
            self._observer.adopted(attempts, sent)
        self._hands.take(attempts)
        self._keeper.taken(attempts, sent)
        if self._only is None and wants(self._emit, LeaseAcquired.level):
            for attempt in attempts:
                self._emit(LeaseAcquired(self.name, *attempt.key))
        self._begun += len(attempts)
        if self._draining:
            for attempt in attempts:
                attempt.done = True
                self._settler.add(Released(attempt, "shutdown"))
        else:
            self._execution.take(attempts)
        if self.options.max_jobs is not None and self._begun >= self.options.max_jobs:
            self._end_because("max_jobs")

    def _to_write(self, ending: Ending) -> None:
        self._settler.add(ending)
        if type(ending) is Settled:  # not one that may have: that is to be looked up
            self._pump.ended_itself()
        else:
            self._pump.wake()

    def _done(self, endings: list[Completed]) -> None:
        self._settler.add_done(endings)
        self._pump.wake()

    def _ended(self, ending: Ending) -> None:
        if isinstance(ending, Released) and not ending.attempt.begun:
            self._begun -= 1  # of a limit on jobs: this one was not run
        self._to_write(ending)
        if self._execution.abandoned >= self.options.concurrency:
            self._end_because("stuck")

    def _poll_seconds(self) -> float:
        is_told = self._pump.listening or self._reconciler.listening
        return self.options.poll_seconds * (LISTENING_POLLS if is_told else 1.0)

    def _beat(self) -> tuple[list[str], dict[str, Any]]:
        details = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "concurrency": self.options.concurrency,
            "running": self._execution.running,
            "draining": self._draining,
            "version": __version__,
        }
        return self.queues, details

    def _standing(self) -> Standing:
        return Standing(self._keeper.trouble() or self._pump.trouble(), self._keeper.turned_at)

    def _alone(self) -> Alone | None:
        if self._reference is None or self._only is not None:
            return None
        options = replace(
            self.options,
            processes=1,
            max_jobs=None,
            queues=tuple(self.queues),
            metrics_port=None,
        )
        return Alone(self.name, Spec(self._reference, options), self._observer)

    # ── ending ───────────────────────────────────────────────────────────────────────────────────

    def _last(self) -> None:
        """The process is given up."""
        self._say_last()
        self._observer.flush()

    def _end_because(self, reason: str) -> None:
        if not self._draining:
            self._reason = reason
            self.drain()

    def _release_running(self) -> None:
        """Stop every handler and hand its job back; threads go down with the process."""
        now = time.monotonic()
        if self._patient_until == math.inf:
            self._patient_until = now + PATIENCE_SECONDS
            self._limit.end_at(now + WRITING_SECONDS, self._pump.wake)
        for attempt in self._hands.all():
            if attempt.tell("shutdown") and not (attempt.alone or attempt.running):
                self._execution.abandon(attempt)
        self._pump.wake()

    def _heard_from_parent(self, pipe: int) -> None:
        """Nothing but its end: it has died. What runs may still finish, as when draining."""
        if not os.read(pipe, 4096):
            loop = asyncio.get_running_loop()
            loop.remove_reader(pipe)
            if self._only is None:
                self._end_because("parent died")
            else:
                loop.call_later(self.options.grace_seconds, self._release_running)

    async def _take_over(self, lease: Lease) -> None:
        """Keep the lease from here on, tell who kept it so far, and begin."""
        sent = time.monotonic()
        adopt = self._verbs.adopt(self.name, [(lease.job_id, lease.token)])
        if not await self._session.run(adopt, lease.lease_seconds / 2):
            self._start([lease], sent)
        if self._say_kept is not None:
            with suppress(BrokenPipeError):  # it died meanwhile: nobody to tell
                os.write(self._say_kept, b"!")
            os.close(self._say_kept)

    def _say_last(self) -> None:
        """Before the process ends, whoever ends it."""
        self._emit.close()
        if self._sender is not None:
            self._sender.close()

    def _announce(self, used: set[str]) -> None:
        places, tasks = self.options.concurrency, tuple(sorted(self._app.tasks))
        self._emit(WorkerStarted(self.name, tuple(self.queues), places, os.getpid(), tasks))
        for queue in self.queues:
            if queue not in used.union(self._app.queues):  # it may come; or it is a slip of the pen
                self._emit(UnknownQueue(self.name, queue))

    @contextmanager
    def _signals(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """SIGTERM and Ctrl-C drain; only a process's main thread can be told."""
        installed = []
        for sign in (signal.SIGTERM, signal.SIGINT):
            with suppress(ValueError, RuntimeError, NotImplementedError):
                loop.add_signal_handler(sign, self.drain)
                installed.append(sign)
        try:
            yield
        finally:
            for sign in installed:
                loop.remove_signal_handler(sign)


def _soon(loop: asyncio.AbstractEventLoop, function: Any, *arguments: Any) -> None:
    with suppress(RuntimeError):  # the worker has ended
        loop.call_soon_threadsafe(function, *arguments)
