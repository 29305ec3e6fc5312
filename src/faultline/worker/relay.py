"""Short async handlers one after the other in one task: a task for each would cost more than most
of them take.

The relay's task is a handler's own for as long as the handler never suspends. One that does keeps
the task to itself, as any coroutine would, and the relay goes on in a new one; the next jobs of
that handler get a task each from the start. No job sees what another has left behind: a task that
was cancelled, or whose context variables were changed, is not used again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from faultline.worker import forks
from faultline.worker.ahead import MAX_CLAIM
from faultline.worker.calling import NeverBegan
from faultline.worker.endings import Completed

if TYPE_CHECKING:
    from faultline.task import Task
    from faultline.worker.ahead import Ahead
    from faultline.worker.attempt import Attempt
    from faultline.worker.execution import Execution

STROKE_SECONDS = 0.005  # after which the loop gets its turn; or after a whole claim


class Relay:
    """The tasks that await short handlers; at most one of them at any time."""

    def __init__(
        self, execution: Execution, ahead: Ahead, on_done: Callable[[list[Completed]], None]
    ) -> None:
        self._execution = execution
        self._ahead = ahead
        self._on_done = on_done  # gets the usual successes, many at a time
        self._loop = asyncio.get_running_loop()
        self._takes: dict[Task[Any, Any] | None, bool] = {None: False}
        self._run: _Run | None = None

    @property
    def is_running(self) -> bool:
        """Whether there is a task that will take what waits."""
        return self._run is not None

    def takes(self, attempt: Attempt) -> bool:
        """Whether it may be run here: it is async, and is not known to suspend."""
        task = attempt.task
        found = self._takes.get(task)
        if found is None:
            assert task is not None
            found = task.is_async and not task.transactional
            self._takes[task] = found
        return found and not attempt.lease.last_chance

    def start(self) -> None:
        """Take what waits, from now on."""
        run = self._run = _Run(self)
        run.task = self._execution.new_task(self._go_on(run))

    async def _go_on(self, run: _Run) -> None:
        self._loop.call_soon(run.let_go)
        try:
            while (first := self._execution.first_for_relay()) is not None:
                assert first.task is not None
                await self._stroke(run, first.task)
                if run.is_taken or run.is_used:
                    break
                if run.is_tired:
                    self._tell(run)
                    run.rests = True
                    await asyncio.sleep(0)
                    run.rests = run.is_tired = False
                    run.rest_at = time.monotonic() + STROKE_SECONDS
                    self._loop.call_soon(run.let_go)
        finally:
            self._over(run)

    async def _stroke(self, run: _Run, kind: Task[Any, Any]) -> None:
        """One handler of this task after the other, until the loop is to have its turn. What is
        done for each of them stands here at length: a call more would cost a tenth of a short job,
        and what only one that suspends needs, it gets then. They share one of the places."""
        execution, done, task, clean = self._execution, run.done, run.task, copy_context()
        waiting, monotonic, arguments_for = execution.waiting, time.monotonic, kind.arguments_for
        handler = None if kind.wants_context or execution.says_starts else kind.handler
        rest_at = run.rest_at
        execution.running += 1
        while waiting and (attempt := waiting[0]).task is kind:
            if attempt.told is not None or attempt.done or attempt.lease.last_chance:
                break
            waiting.popleft()
            run.attempt = attempt
            attempt.started_at = monotonic()
            attempt.begun = True
            attempt.running = task
            arguments = returned = raised = None
            try:
                arguments = arguments_for(attempt.lease)
                # These may be of a user's own type, and take their time.
                if monotonic() >= attempt.deadline or attempt.told is not None:
                    raise NeverBegan
                call = handler if attempt.trace is None else None
                returned = await (call or execution.call_of(attempt))(**arguments)
            except BaseException as error:  # also what asyncio would not let through
                raised = error
            if forks.is_child:
                forks.end()
            is_usual = attempt.told is None and attempt._context is None and not run.is_taken
            if is_usual and returned is raised is None and not attempt.done:
                attempt.done = True
                done.append(Completed(attempt, None))
            else:
                self._end(run, raised, returned, fits=arguments is not None)
            run.is_used = run.is_taken or _is_used(task, clean)
            run.is_tired = len(done) >= MAX_CLAIM or attempt.started_at >= rest_at
            if run.is_used or run.is_tired:
                break
        if not run.is_taken:
            execution.running -= 1

    def _end(self, run: _Run, raised: Any, returned: Any, *, fits: bool) -> None:
        """Its attempt has ended in some other way than most do."""
        execution, attempt = self._execution, run.attempt
        assert attempt is not None
        if not run.is_taken:
            execution.running += 1
            attempt.placed = attempt.shares = True
        if fits:
            execution.finish(attempt, raised, returned)
        else:
            execution.unfit(attempt, raised)

    def _tell(self, run: _Run) -> None:
        if run.done:
            done, run.done = run.done, []
            seconds = self._apportion(done) / len(done)
            self._ahead.took(done[-1].attempt.task, seconds, len(done), in_turn=True)
            self._on_done(done)

    def _apportion(self, done: list[Completed]) -> float:
        """Each has taken until the next one began; answers with the seconds of all."""
        until = now = time.monotonic()
        for ending in reversed(done):
            attempt = ending.attempt
            attempt.took_seconds = until - attempt.started_at
            until = attempt.started_at
        return now - until

    def suspended(self, run: _Run) -> None:
        """Its task is the handler's from now on: what waits is for another one."""
        if run is self._run:
            attempt, run.is_taken = run.attempt, True
            assert attempt is not None
            self._takes[attempt.task] = False
            if attempt.done:  # given up between its first suspension and now
                self._execution.running -= 1
                run.task.cancel()
            else:
                attempt.placed = attempt.entered = True  # in the place that all of them shared
                attempt.interrupt = self._execution.interrupt
                if attempt.told is not None:  # before there was anything to interrupt
                    self._execution.interrupt(attempt)
            self._over(run)

    def _over(self, run: _Run) -> None:
        """It takes nothing more."""
        if run is self._run:
            self._run = None
        self._tell(run)
        self._execution.fill()


def _is_used(task: asyncio.Task[Any], clean: Context) -> bool:
    """Whether a handler has left something behind that the next one would meet."""
    try:
        if task.cancelling() > 0 or task._must_cancel:  # type: ignore[attr-defined]
            return True
        return copy_context() != clean
    except Exception:  # a value of the user's own that cannot be compared
        return True


class _Run:
    """One task of the relay."""

    __slots__ = (
        *("attempt", "done", "is_taken", "is_tired", "is_used"),
        *("relay", "rest_at", "rests", "task"),
    )
    task: asyncio.Task[None]

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self.attempt: Attempt | None = None  # whose handler is being awaited
        self.done: list[Completed] = []  # not told of yet
        self.is_taken = False  # by a handler that suspends
        self.is_used = False  # a handler has left something behind
        self.is_tired = False  # it is somebody else's turn
        self.rest_at = time.monotonic() + STROKE_SECONDS  # at the latest
        self.rests = False

    def let_go(self) -> None:
        """The loop has its turn: the task has ended, or rests, or its handler suspends."""
        if not self.rests:
            self.relay.suspended(self)
