"""Short sync handlers one after the other in one thread: handing each to a thread of its own, and
hearing back from it, would cost more than most of them take.

Every job is taken by whoever gets it first: the thread, or the loop, which takes back what waits
behind a handler that turns out to be long.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from typing import TYPE_CHECKING, Any

from faultline.worker import forks
from faultline.worker.ahead import MAX_CLAIM
from faultline.worker.attempt import Attempt
from faultline.worker.calling import insist_in_time
from faultline.worker.endings import Completed

if TYPE_CHECKING:
    from faultline.worker.ahead import Ahead
    from faultline.worker.execution import Execution
    from faultline.worker.threads import Threads

LOOK_SECONDS = 0.02  # after which the loop looks whether it hangs

Begun = tuple[Attempt, dict[str, Any]]  # with its arguments
CallOf = Callable[[Attempt], Callable[..., Any]]
Ended = tuple[Attempt, BaseException | None, Any]  # what the handler raised, and returned


class Stretches:
    """Gives what waits to threads, many at a time where handlers are short."""

    def __init__(
        self,
        execution: Execution,
        ahead: Ahead,
        threads: Threads,
        on_done: Callable[[list[Completed]], None],
    ) -> None:
        self._execution = execution
        self._ahead = ahead
        self._threads = threads
        self._on_done = on_done  # gets the usual successes, many at a time
        self._loop = asyncio.get_running_loop()

    def takes(self, attempt: Attempt) -> bool:
        """Whether it may share a thread with others: it is sync, and its task's jobs were short."""
        task = attempt.task
        if task is None or task.is_async or task.transactional or attempt.lease.last_chance:
            return False
        return self._ahead.is_short(task)

    def start(self, first: Attempt) -> None:
        """It, and those that wait behind it and are like it, in one thread."""
        execution = self._execution
        attempts, waiting = [first], execution.waiting
        most = min(MAX_CLAIM, self._ahead.in_seconds(first.task, LOOK_SECONDS / 2))
        while waiting and len(attempts) < most and (following := waiting[0]).task is first.task:
            if following.lease.last_chance or following.told is not None or following.done:
                break
            attempts.append(waiting.popleft())
        stretch = Stretch(
            self._begun(attempts),
            execution.call_of,
            lambda: execution.soon(self._ended, stretch, timer),
        )
        timer = self._loop.call_later(LOOK_SECONDS, self._take_back, stretch, first)
        try:
            self._threads.run(stretch.run)
        except Exception:  # no thread can be had
            timer.cancel()
            for attempt in stretch.take_back():
                execution.end(attempt, execution.put_off(attempt))

    def _begun(self, attempts: list[Attempt]) -> list[Begun]:
        """They have their places, and here are their arguments. None has begun before it is its
        turn: its time runs from then on."""
        execution, task = self._execution, attempts[0].task
        assert task is not None
        begun, now = [], time.monotonic()
        execution.running += len(attempts)
        for attempt in attempts:
            attempt.placed = attempt.shares = True
            attempt.started_at = now
            try:
                begun.append((attempt, task.arguments_for(attempt.lease)))
            except BaseException as error:  # also whatever a user's own type raises
                execution.unfit(attempt, error)
        return begun

    def _ended(self, stretch: Stretch, timer: asyncio.TimerHandle | None = None) -> None:
        """So far, or as a whole."""
        if timer is not None:
            timer.cancel()
        execution, usual = self._execution, []
        for attempt, raised, returned in stretch.ended():
            is_usual = attempt.told is None and attempt._context is None
            if is_usual and returned is raised is None and not attempt.done:
                attempt.done = True
                attempt.placed = False
                usual.append(Completed(attempt, None))
            else:
                execution.finish(attempt, raised, returned)
        if usual:
            execution.running -= len(usual)
            seconds = sum([done.attempt.took_seconds or 0.0 for done in usual]) / len(usual)
            self._ahead.took(usual[0].attempt.task, seconds, len(usual), in_turn=True)
            self._on_done(usual)
        execution.fill()

    def _take_back(self, stretch: Stretch, first: Attempt) -> None:
        """One of its handlers is long after all: those behind it do not wait for it."""
        self._ended(stretch)
        execution = self._execution
        if left := [attempt for attempt in stretch.take_back() if not attempt.done]:
            self._ahead.waited(first.task)
            execution.running -= len(left)
            for attempt in left:
                attempt.placed = attempt.shares = False
            execution.waiting.extendleft(reversed(left))
            execution.fill()


class Stretch:
    """Some attempts of short sync handlers, and how they ended."""

    def __init__(self, attempts: list[Begun], call_of: CallOf, on_end: Callable[[], None]) -> None:
        self._waiting = deque(attempts)
        self._call_of = call_of
        self._ended: deque[Ended] = deque()
        self._on_end = on_end

    def run(self) -> None:
        """In the thread: all of them, but for those taken back."""
        following, ended, call_of = self._waiting.popleft, self._ended.append, self._call_of
        while True:
            try:
                attempt, arguments = following()  # of two threads, one gets it
            except IndexError:
                break
            ended((attempt, *called(attempt, arguments, call_of)))
            if forks.is_child:
                forks.end()
        self._on_end()

    def take_back(self) -> list[Attempt]:
        """Those that have not begun, and will not here."""
        taken = []
        with suppress(IndexError):
            while True:
                taken.append(self._waiting.popleft()[0])
        return taken

    def ended(self) -> list[Ended]:
        """Those that have ended since it was asked last."""
        return [self._ended.popleft() for _ in range(len(self._ended))]


def called(
    attempt: Attempt, arguments: dict[str, Any], call_of: CallOf
) -> tuple[BaseException | None, Any]:
    """Call its handler, in this thread and in a context of its own."""
    attempt.started_at = began = time.monotonic()
    attempt.begun = True
    raised, returned = None, None
    try:
        insist_in_time(attempt)
        returned = Context().run(call_of(attempt), **arguments)
    except BaseException as error:
        raised = error
    attempt.over = True
    attempt.took_seconds = time.monotonic() - began
    return raised, returned
