"""Threads for sync handlers: as many as are needed, kept, and given up one by one.

Not concurrent.futures: a thread that will not end has to be left behind, at once and at exit, and
its place taken by a new one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from faultline.worker import forks


class Threads:
    """Runs each piece of work in a thread of its own for as long as it takes."""

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most  # to be kept
        self._idle: list[_Runner] = []
        self._lock = threading.Lock()
        self.busy = 0

    def run(self, work: Callable[[], None]) -> None:
        """Begin the work now, in a thread that is free or new."""
        if forks.is_child:
            forks.end()
        with self._lock:
            self.busy += 1
            runner = self._idle.pop() if self._idle else None
        if runner is None:
            runner = _Runner(self._name, self._freed)
        runner.inbox.put(work)

    def stop(self) -> None:
        """Let the idle ones end; a busy one ends with the process."""
        with self._lock:
            idle, self._idle = self._idle, []
        for runner in idle:
            runner.inbox.put(None)

    def _freed(self, runner: _Runner) -> bool:
        """Whether it is kept. Its work is known to be done before it is free: the next may have
        got a new thread, and this is one too many."""
        with self._lock:
            self.busy -= 1
            is_kept = len(self._idle) + self.busy < self._most
            if is_kept:
                self._idle.append(runner)
        return is_kept


class _Runner(threading.Thread):
    """One thread. A daemon: a handler that never returns must not keep the process."""

    def __init__(self, name: str, freed: Callable[[_Runner], bool]) -> None:
        super().__init__(name=name, daemon=True)
        self.inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._freed = freed
        self.start()

    def run(self) -> None:
        while (work := self.inbox.get()) is not None:
            work()
            if forks.is_child:
                forks.end()
            if not self._freed(self):
                return
