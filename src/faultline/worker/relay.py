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

from faultline.worker.calling import NeverBegan, call_of
from faultline.worker.endings import Completed

if TYPE_CHECKING:
    from faultline.task import Task
    from faultline.worker.ahead import Ahead
    from faultline.worker.attempt import Attempt
    from faultline.worker.execution import Execution

STROKE = 500  # jobs, after which the loop gets its turn: a whole claim
STROKE_SECONDS = 0.005  # or so long, if that is shorter


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
        """One handler after the other. What is done for each of them stands here at length: a call
        more would cost a tenth of a short job."""
        execution, clean, task = self._execution, copy_context(), run.task
        begin, following, interrupt = execution.begin, execution.next_for_relay, execution.interrupt
        self._loop.call_soon(run.let_go)
        rest_at = time.monotonic() + STROKE_SECONDS
        try:
            while (attempt := following()) is not None:
                run.attempt = attempt
                attempt.entered = attempt.shares = True
                attempt.running = task
                attempt.interrupt = interrupt
                if (arguments := begin(attempt)) is not None:
                    returned, raised = None, None
                    try:
                        # Its arguments may be of a user's own type, and take their time.
                        if time.monotonic() >= attempt.deadline or attempt.told is not None:
                            raise NeverBegan
                        returned = await call_of(attempt)(**arguments)
                    except BaseException as error:  # also what asyncio would not let through
                        raised = error
                    is_usual = attempt.told is None and attempt._context is None
                    if is_usual and returned is raised is None and not attempt.done:
                        attempt.done = True
                        attempt.placed = False
                        execution.running -= 1
                        run.done.append(Completed(attempt, None))
                    else:
                        execution.finish(attempt, raised, returned)
                if run.is_taken or _is_used(task, clean):
                    break
                if len(run.done) >= STROKE or attempt.started_at >= rest_at:
                    self._tell(run)
                    run.rests = True
                    await asyncio.sleep(0)
                    run.rests = False
                    self._loop.call_soon(run.let_go)
                    rest_at = time.monotonic() + STROKE_SECONDS
        finally:
            self._over(run)

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
            assert run.attempt is not None
            self._takes[run.attempt.task] = False
            run.attempt.shares = False
            run.is_taken = True
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
        is_cancelled = task.cancelling() > 0 or getattr(task, "_must_cancel", False)
        return is_cancelled or copy_context() != clean
    except Exception:  # a value of the user's own that cannot be compared
        return True


class _Run:
    """One task of the relay."""

    __slots__ = ("attempt", "done", "is_taken", "relay", "rests", "task")
    task: asyncio.Task[None]

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self.attempt: Attempt | None = None  # whose handler is being awaited
        self.done: list[Completed] = []  # not told of yet
        self.is_taken = False  # by a handler that suspends
        self.rests = False

    def let_go(self) -> None:
        """The loop has its turn: the task has ended, or rests, or its handler suspends."""
        if not self.rests:
            self.relay.suspended(self)
