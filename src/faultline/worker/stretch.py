"""Short sync handlers one after the other in one thread: handing each to a thread of its own, and
hearing back from it, would cost more than most of them take.

Every job is taken by whoever gets it first: the thread, or the loop, which takes back what waits
behind a handler that turns out to be long.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any

from faultline.worker.attempt import Attempt
from faultline.worker.calling import call_of, insist_in_time

MOST = 250
LOOK_SECONDS = 0.02  # after which the loop looks whether it hangs

Begun = tuple[Attempt, dict[str, Any]]  # with its arguments
Ended = tuple[Attempt, BaseException | None, Any]  # what the handler raised, and returned


class Stretch:
    """Some attempts of short sync handlers, and how they ended."""

    def __init__(self, attempts: list[Begun], on_end: Callable[[], None]) -> None:
        self._waiting = deque(attempts)
        self._ended: deque[Ended] = deque()
        self._on_end = on_end

    def run(self) -> None:
        """In the thread: all of them, but for those taken back."""
        while (begun := _first(self._waiting)) is not None:
            attempt, arguments = begun
            self._ended.append((attempt, *called(attempt, arguments)))
        self._on_end()

    def take_back(self) -> list[Attempt]:
        """Those that have not begun, and will not here."""
        return [attempt for attempt, _ in _all(self._waiting)]

    def ended(self) -> list[Ended]:
        """Those that have ended since it was asked last."""
        return _all(self._ended)


def called(attempt: Attempt, arguments: dict[str, Any]) -> tuple[BaseException | None, Any]:
    """Call its handler, in this thread and in a context of its own."""
    attempt.started_at = time.monotonic()
    attempt.begun = True
    raised, returned = None, None
    try:
        insist_in_time(attempt)
        returned = Context().run(call_of(attempt), **arguments)
    except BaseException as error:
        raised = error
    attempt.over = True
    attempt.took_seconds = time.monotonic() - attempt.started_at
    return raised, returned


def _first(waiting: deque[Any]) -> Any:
    try:
        return waiting.popleft()  # of two threads, one gets it
    except IndexError:
        return None


def _all(waiting: deque[Any]) -> list[Any]:
    found = []
    while (item := _first(waiting)) is not None:
        found.append(item)
    return found
