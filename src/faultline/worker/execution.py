"""Running handlers: async ones on this event loop, sync ones in threads, suspects alone.

`take` begins attempts, each as soon as there is a place, and returns; when a handler ends, however
it ends, `on_end` gets its ending, once; `on_done` the usual successes, many at a time. Short
handlers share a task (relay) or a thread (stretch), one after the other. A handler that was told to
stop and does not is given up with `abandon`; should it come back and say that the fence refused it,
`on_late` gets that.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

from faultline.errors import InvalidArgument
from faultline.events import (
    Emit,
    EndingIgnored,
    ExecutionStarted,
    HandlerAbandoned,
    JobIsolated,
    LeaseLost,
    wants,
)
from faultline.jobs import Unreadable
from faultline.worker.ahead import Ahead, patience
from faultline.worker.alone import Alone
from faultline.worker.attempt import Attempt
from faultline.worker.calling import NeverBegan, call_of, cancel, insist_in_time
from faultline.worker.endings import (
    Abandoned,
    Completed,
    Declined,
    Ending,
    Failed,
    Released,
    Snoozed,
    describe,
    ending_of,
    late_refusal,
    second_ending,
)
from faultline.worker.outage import nothing
from faultline.worker.relay import Relay
from faultline.worker.stretch import Stretches, called
from faultline.worker.threads import Threads
from faultline.worker.unknown import UnknownTasks

T = TypeVar("T")

LONGEST_PAUSE_SECONDS = 60.0  # before what cannot be run here is offered again


class Execution:
    """The handlers of one worker that are running now."""

    def __init__(
        self,
        worker: str,
        emit: Emit,
        on_end: Callable[[Ending], None],
        alone: Alone | None,
        on_late: Callable[[Ending], None] = nothing,
        *,
        on_done: Callable[[list[Completed]], None] | None = None,
        places: int = 1,
    ) -> None:
        self._worker = worker
        self._emit = emit
        self._on_end = on_end
        self._on_done = on_done or self._each_ended
        self._on_late = on_late
        self._alone = alone
        self._unknown = UnknownTasks(worker, emit)
        self._threads = Threads(f"faultline-{worker}", places)
        self._tasks: set[asyncio.Task[Any]] = set()  # the loop itself keeps only weak references
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self.says_starts = wants(emit, ExecutionStarted.level)
        self._places = places
        self._ahead = Ahead(places)
        self._relay = Relay(self, self._ahead, self._on_done)
        self._stretches = Stretches(self, self._ahead, self._threads, self._on_done)
        self.waiting: deque[Attempt] = deque()  # for a place
        self._filling = False
        self._patience: asyncio.TimerHandle | None = None
        self.running = 0
        self.abandoned = 0  # threads that did not end when told to

    @property
    def is_busy(self) -> bool:
        """Whether anything runs, or is going to."""
        return self.running > 0 or len(self.waiting) > 0

    @property
    def room(self) -> int:
        """How many more attempts there is room for, those included that will wait a moment."""
        return self._places + self._ahead.jobs - self.running - len(self.waiting)

    def is_ahead(self, room: int) -> bool:
        """Whether what is here will last for a while: no need to claim so few."""
        return len(self.waiting) > 0 and room < self._ahead.worth_a_claim

    def take(self, attempts: list[Attempt]) -> None:
        """Begin these attempts, each as soon as a place is free."""
        self.waiting.extend(attempts)
        self._ahead.careful = max([attempt.lease.crashes for attempt in attempts], default=0) > 0
        self.fill()
        if self._ahead.careful:
            self.hand_back("no place", keep=max(0, self._places - self.running))
        if self.waiting and attempts:
            shortest = min([attempt.lease.lease_seconds for attempt in attempts])
            self._look_at(attempts[0].started_at + patience(shortest))

    def hand_back(self, reason: str, keep: int = 0) -> None:
        """Those that wait, but for the first few, shall be somebody else's."""
        handed = [self.waiting.pop() for _ in range(len(self.waiting) - keep)]
        for attempt in reversed(handed):
            if not attempt.done:
                self.end(attempt, Released(attempt, reason))

    # ── beginning ────────────────────────────────────────────────────────────────────────────────

    def fill(self) -> None:
        """Give the free places to those that wait. An attempt may end while it begins."""
        if self._filling or self._relay.is_running:
            return
        self._filling = True
        try:
            while (attempt := self._next()) is not None:
                if self._relay.takes(attempt):
                    self._relay.start()
                    return
                self.waiting.popleft()
                if self._stretches.takes(attempt):
                    self._stretches.start(attempt)
                else:
                    self._start(attempt)
        finally:
            self._filling = False

    def first_for_relay(self) -> Attempt | None:
        """The next attempt, if there is a place and the relay takes it; it goes on waiting."""
        first = self._next()
        return first if first is not None and self._relay.takes(first) else None

    def _next(self) -> Attempt | None:
        """The first that waits, if there is a place for it; it goes on waiting."""
        while self.waiting and self.running < self._places:
            attempt = self.waiting[0]
            if attempt.told is None and not attempt.done:
                return attempt
            self.waiting.popleft()
            if not attempt.done:  # else it was given up while it waited
                self.finish(attempt, asyncio.CancelledError(), None)
        return None

    def _start(self, attempt: Attempt) -> None:
        """In a task, a thread or a process of its own."""
        try:
            if (arguments := self.begin(attempt)) is not None:
                assert attempt.task is not None
                begin = self._start_async if attempt.task.is_async else self._start_sync
                begin(attempt, arguments)
        except Exception:  # no thread can be had, …: somebody else may be able to
            self.end(attempt, self.put_off(attempt))

    def begin(self, attempt: Attempt) -> dict[str, Any] | None:
        """It has a place now; answers with its arguments, or None if it is run alone or has ended
        already."""
        self.running += 1
        attempt.placed = attempt.begun = True
        attempt.started_at = time.monotonic()
        lease, task = attempt.lease, attempt.task
        if task is None:
            self._unknown.declined(lease, attempt.started_at)
            self.end(attempt, Declined(attempt))
        elif isinstance(lease.payload, Unreadable):
            self.unfit(attempt)
        elif lease.last_chance and self._alone is not None:
            self._start_alone(attempt, self._alone)
        else:
            try:
                return task.arguments_for(lease)
            except BaseException as error:  # also whatever a user's own type raises when it is made
                self.unfit(attempt, error)
        return None

    def unfit(self, attempt: Attempt, error: BaseException | None = None) -> None:
        """Its arguments cannot be made of its payload."""
        if isinstance(payload := attempt.lease.payload, Unreadable):
            unreadable = InvalidArgument(f"the payload cannot be read: {payload.why}")
            self.end(attempt, Failed(attempt, describe(unreadable), dead=True))
        elif error is not None:
            said = "the payload does not fit the task; the job's own error says how"
            self.end(attempt, Failed(attempt, describe(error), said=said))

    def call_of(self, attempt: Attempt) -> Callable[..., Any]:
        """What is to be called with its arguments, now; and that it is, to who wants to know. For
        whoever has asked `insist_in_time` just before: nobody hears of a start that does not
        follow."""
        if self.says_starts:
            key, lease = attempt.key, attempt.lease
            self._emit(ExecutionStarted(self._worker, *key, lease.task, lease.attempts + 1))
        return call_of(attempt)

    def _look_at(self, moment: float) -> None:
        """Then, when one that waits has waited for too long, if that is not done sooner anyway."""
        if self._patience is not None:
            if self._patience.when() <= moment:
                return
            self._patience.cancel()
        self._patience = self._loop.call_at(moment, self._look_at_waiting)

    def _look_at_waiting(self) -> None:
        """Hand back all once one has waited for too long: the jobs here take longer than it
        seemed."""
        self._patience = None
        if not self.waiting:
            return
        too_long = min(x.started_at + patience(x.lease.lease_seconds) for x in self.waiting)
        if too_long <= time.monotonic():
            self._ahead.waited()
            self.hand_back("no place")
        else:
            self._look_at(too_long)

    def abandon(self, attempt: Attempt) -> None:
        """It was told to stop and did not: use its slot for others."""
        if attempt.done or (attempt.running is not None and attempt.running.done()):
            return
        if attempt.told != "shutdown" and attempt.begun:
            attempt.left_behind = attempt.running is None  # a thread
            self.abandoned += attempt.left_behind
            self._emit(HandlerAbandoned(self._worker, *attempt.key, attempt.lease.task))
        if attempt.running is not None:  # nobody else holds it once its attempt has ended
            self._tasks.add(attempt.running)
            attempt.running.add_done_callback(self._tasks.discard)
        self.finish(attempt, Abandoned(), None)

    def stop(self) -> None:
        """Let go of the threads that are idle."""
        self._threads.stop()

    def put_off(self, attempt: Attempt) -> Snoozed:
        """It cannot be run here: offer it again later, and ever more rarely."""
        return Snoozed(attempt, min(2.0 ** min(attempt.lease.snoozes, 10), LONGEST_PAUSE_SECONDS))

    def _start_async(self, attempt: Attempt, arguments: dict[str, Any]) -> None:
        attempt.running = self.new_task(self._handle(attempt, arguments))
        attempt.interrupt = self.interrupt

    async def _handle(self, attempt: Attempt, arguments: dict[str, Any]) -> None:
        """The task of one async handler."""
        returned, raised = None, None
        try:
            insist_in_time(attempt)
            attempt.entered = True
            returned = await self.call_of(attempt)(**arguments)
        except BaseException as error:  # also what asyncio would not let pass through a task
            raised = error
        self.finish(attempt, raised, returned)

    def new_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """In the worker's own context: this may be called from a handler's, which has ended."""
        return asyncio.Task(work, loop=self._loop, context=self._context.copy())

    def interrupt(self, attempt: Attempt) -> None:
        """Cancel its task; from any thread."""
        self.soon(cancel, attempt)

    def _start_sync(self, attempt: Attempt, arguments: dict[str, Any]) -> None:
        def work() -> None:
            raised, returned = called(attempt, arguments, self.call_of)
            self.soon(self.finish, attempt, raised, returned)

        self._threads.run(work)

    def _start_alone(self, attempt: Attempt, alone: Alone) -> None:
        lease = attempt.lease
        self._emit(JobIsolated(self._worker, *attempt.key, lease.task, lease.crashes))
        attempt.apart = True
        task = self.new_task(alone.run(attempt))
        attempt.running = task
        self._tasks.add(task)

        def ended(task: asyncio.Task[Ending | None]) -> None:
            self._tasks.discard(task)
            if not attempt.done:
                ending = None if task.exception() else task.result()
                self.end(attempt, ending or self.put_off(attempt))  # no process began

        task.add_done_callback(ended)

    def finish(self, attempt: Attempt, raised: BaseException | None, returned: Any) -> None:
        """Its handler has ended so."""
        if attempt.left_behind and attempt.done:  # it has come back after all
            attempt.left_behind = False
            self.abandoned -= 1
        if attempt.done:
            with suppress(Exception):  # a handler's own class, as below
                if (late := late_refusal(attempt, raised)) is not None:
                    self._on_late(late)
            return
        if isinstance(raised, NeverBegan):
            if attempt.tell("deadline"):
                self._emit(LeaseLost(self._worker, *attempt.key, attempt.lease.task, "deadline"))
            raised = asyncio.CancelledError()
        if raised is None and returned is None and attempt.is_usual:
            self.end(attempt, Completed(attempt, None))
            return
        try:
            ending = ending_of(attempt, raised, returned)
            if (said := second_ending(attempt, raised, returned)) is not None:
                self._emit(EndingIgnored(self._worker, *attempt.key, attempt.lease.task, said))
        except Exception as error:  # a handler's own class that does not keep its promises
            ending = Failed(attempt, describe(error), dead=True)
        self.end(attempt, ending)

    def end(self, attempt: Attempt, ending: Ending) -> None:
        """With this ending; its place is free."""
        attempt.done = True
        if attempt.placed:
            attempt.placed = False
            self.running -= 1
            if attempt.took_seconds is None:
                attempt.took_seconds = time.monotonic() - attempt.started_at
            self._ahead.took(attempt.task, attempt.took_seconds, in_turn=attempt.shares)
        self._on_end(ending)
        if self.waiting:
            self.fill()

    def _each_ended(self, endings: list[Completed]) -> None:
        for ending in endings:
            self._on_end(ending)

    def soon(self, function: Callable[..., None], *arguments: Any) -> None:
        """On the loop's thread; nothing, if the loop has been closed over a thread left behind."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)
