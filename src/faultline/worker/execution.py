"""Running handlers: async ones on this event loop, sync ones in threads, suspects alone.

`start` begins an attempt and returns; when its handler ends, however it ends, `on_end` gets its
ending, once. A handler that was told to stop and does not is given up with `abandon`; should it
come back and say that the fence refused it, `on_late` gets that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from faultline.errors import InvalidArgument
from faultline.events import (
    Emit,
    EndingIgnored,
    ExecutionStarted,
    HandlerAbandoned,
    JobIsolated,
    LeaseLost,
    UnknownTask,
)
from faultline.jobs import Unreadable
from faultline.worker.alone import Alone
from faultline.worker.attempt import Attempt
from faultline.worker.endings import (
    Abandoned,
    Ending,
    Failed,
    Snoozed,
    Unstorable,
    describe,
    ending_of,
    late_refusal,
    second_ending,
)
from faultline.worker.outage import nothing
from faultline.worker.threads import Threads

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
    ) -> None:
        self._worker = worker
        self._emit = emit
        self._on_end = on_end
        self._on_late = on_late
        self._alone = alone
        self._threads = Threads(f"faultline-{worker}")
        self._tasks: set[asyncio.Task[Any]] = set()  # the loop itself keeps only weak references
        self._loop = asyncio.get_running_loop()
        self.running = 0
        self.abandoned = 0  # threads that did not end when told to

    def start(self, attempt: Attempt) -> None:
        """Begin the attempt; its ending comes later, through `on_end`."""
        self.running += 1
        attempt.started_at = time.monotonic()
        try:
            self._begin(attempt)
        except Exception:  # no thread can be had, …: somebody else may be able to
            self._end(attempt, self._put_off(attempt))

    def _begin(self, attempt: Attempt) -> None:
        if attempt.task is None:
            self._emit(UnknownTask(self._worker, *attempt.key, attempt.lease.task))
            return self._end(attempt, self._put_off(attempt))
        if isinstance(attempt.lease.payload, Unreadable):
            error = InvalidArgument(f"the payload cannot be read: {attempt.lease.payload.why}")
            return self._end(attempt, Failed(attempt, describe(error), dead=True))
        if attempt.lease.last_chance and self._alone is not None:
            return self._start_alone(attempt, self._alone)
        self._emit(self._started(attempt))
        try:
            arguments = attempt.task.arguments_for(attempt.lease)
        except Exception as error:  # also whatever a user's own type raises when it is built
            said = "the payload does not fit the task; the job's own error says how"
            return self._end(attempt, Failed(attempt, describe(error), said=said))
        if attempt.task.transactional:
            wrap = _in_atransaction if attempt.task.is_async else _in_transaction
            call = wrap(attempt.task.handler, attempt.context, arguments)
        elif attempt.task.wants_context:
            call = _with_context(attempt.task.handler, attempt.context, arguments)
        else:
            call = _plain(attempt.task.handler, arguments)
        call = _in_time(attempt, call)
        return (self._start_async if attempt.task.is_async else self._start_sync)(attempt, call)

    def abandon(self, attempt: Attempt) -> None:
        """It was told to stop and did not: use its slot for others."""
        if attempt.done or (attempt.running is not None and attempt.running.done()):
            return
        if attempt.told != "shutdown":
            attempt.left_behind = attempt.running is None  # a thread
            self.abandoned += attempt.left_behind
            self._emit(HandlerAbandoned(self._worker, *attempt.key, attempt.lease.task))
        self._finish(attempt, Abandoned(), None)

    def stop(self) -> None:
        """Let go of the threads that are idle."""
        self._threads.stop()

    def _put_off(self, attempt: Attempt) -> Snoozed:
        """It cannot be run here: offer it again later, and ever more rarely."""
        return Snoozed(attempt, min(2.0 ** min(attempt.lease.snoozes, 10), LONGEST_PAUSE_SECONDS))

    def _started(self, attempt: Attempt) -> ExecutionStarted:
        lease = attempt.lease
        return ExecutionStarted(self._worker, *attempt.key, lease.task, lease.attempts + 1)

    def _start_async(self, attempt: Attempt, call: Callable[[], Any]) -> None:
        task = self._loop.create_task(_coroutine(call))
        self._tasks.add(task)

        def ended(task: asyncio.Task[Any]) -> None:
            self._tasks.discard(task)
            if task.cancelled():
                self._finish(attempt, asyncio.CancelledError(), None)
            else:
                error = task.exception()
                if isinstance(error, _Raised):
                    error = error.__cause__
                self._finish(attempt, error, None if error else task.result())

        def interrupt() -> None:
            if not attempt.done:
                task.cancel()

        attempt.running = task
        attempt.interrupt = lambda: self._soon(interrupt)
        task.add_done_callback(ended)

    def _start_sync(self, attempt: Attempt, call: Callable[[], Any]) -> None:
        def work() -> None:
            try:
                returned, raised = call(), None
            except BaseException as error:
                returned, raised = None, error
            attempt.over = True
            self._soon(self._finish, attempt, raised, returned)

        self._threads.run(work)

    def _start_alone(self, attempt: Attempt, alone: Alone) -> None:
        lease = attempt.lease
        self._emit(JobIsolated(self._worker, *attempt.key, lease.task, lease.crashes))
        attempt.apart = True
        task = self._loop.create_task(alone.run(attempt))
        attempt.running = task
        self._tasks.add(task)

        def ended(task: asyncio.Task[Ending | None]) -> None:
            self._tasks.discard(task)
            if not attempt.done:
                ending = None if task.exception() else task.result()
                self._end(attempt, ending or self._put_off(attempt))  # no process began

        task.add_done_callback(ended)

    def _finish(self, attempt: Attempt, raised: BaseException | None, returned: Any) -> None:
        if attempt.left_behind and attempt.done:  # it has come back after all
            attempt.left_behind = False
            self.abandoned -= 1
        if attempt.done:
            with suppress(Exception):  # a handler's own class, as below
                if (late := late_refusal(attempt, raised)) is not None:
                    self._on_late(late)
            return
        if isinstance(raised, _NeverBegan):
            if attempt.tell("deadline"):
                self._emit(LeaseLost(self._worker, *attempt.key, attempt.lease.task, "deadline"))
            raised = asyncio.CancelledError()
        try:
            ending = ending_of(attempt, raised, returned)
            if (said := second_ending(attempt, raised, returned)) is not None:
                self._emit(EndingIgnored(self._worker, *attempt.key, attempt.lease.task, said))
        except Exception as error:  # a handler's own class that does not keep its promises
            ending = Failed(attempt, describe(error), dead=True)
        self._end(attempt, ending)

    def _end(self, attempt: Attempt, ending: Ending) -> None:
        attempt.done = True
        self.running -= 1
        self._on_end(ending)

    def _soon(self, function: Callable[..., None], *arguments: Any) -> None:
        """On the loop's thread; nothing, if the loop has been closed over a thread left behind."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)


class _NeverBegan(Exception):
    """The lease may be lost already: this process was stopped between the claim and the start."""


class _Raised(Exception):
    """Carries what asyncio would not let pass through a task: SystemExit, KeyboardInterrupt."""


async def _coroutine(call: Callable[[], Any]) -> Any:
    try:
        return await call()
    except (SystemExit, KeyboardInterrupt) as error:
        raise _Raised from error


def _with_context(handler: Callable[..., Any], context: Any, arguments: dict[str, Any]) -> Any:
    return lambda: handler(context, **arguments)


def _in_transaction(handler: Callable[..., Any], context: Any, arguments: dict[str, Any]) -> Any:
    """The whole handler as one fenced transaction, which ends the job."""

    def call() -> Any:
        with context.transaction() as context._tx:
            result = handler(context, **arguments)
            _complete(context, result)
        return result

    return call


def _in_atransaction(handler: Callable[..., Any], context: Any, arguments: dict[str, Any]) -> Any:
    async def call() -> Any:
        async with context.transaction() as context._tx:
            result = await handler(context, **arguments)
            _complete(context, result)
        return result

    return call


def _complete(context: Any, result: Any) -> None:
    try:
        context._tx.complete(result)
    except InvalidArgument as error:
        raise Unstorable from error


def _in_time(attempt: Attempt, call: Callable[[], Any]) -> Callable[[], Any]:
    """Asked at the last moment: in the handler's own thread, or in the first step of its task."""

    def begin() -> Any:
        if time.monotonic() >= attempt.deadline:
            raise _NeverBegan
        return call()

    return begin


def _plain(handler: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    return lambda: handler(**arguments)
