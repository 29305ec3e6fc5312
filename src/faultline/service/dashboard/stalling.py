"""Stalling a worker on purpose, to see what happens: only processes that this one has started.

For `faultline dev` and `faultline demo --serve`. A service in earnest is given none of these.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress


class Stalling:
    """The processes that may be stopped and continued."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        self._pids = pids
        self._stopped: set[int] = set()
        self.host = socket.gethostname()

    def stalled(self) -> dict[int, bool]:
        """Which processes may be stalled, and whether each is stalled now."""
        pids = set(self._pids())
        self._stopped &= pids  # a number that is somebody else's by now is not ours to continue
        return {pid: pid in self._stopped for pid in pids}

    def stall(self, pid: int) -> bool:
        """Stop it in the middle of whatever it does; False: it is not one of ours."""
        if pid not in self.stalled():
            return False
        os.kill(pid, signal.SIGSTOP)
        self._stopped.add(pid)
        return True

    def resume(self, pid: int) -> bool:
        """Let it go on; False: it is not one of ours."""
        if pid not in self.stalled():
            return False
        os.kill(pid, signal.SIGCONT)
        self._stopped.discard(pid)
        return True

    def resume_all(self) -> None:
        """Before they are ended: a stopped process hears nothing."""
        for pid in [pid for pid, stopped in self.stalled().items() if stopped]:
            with suppress(ProcessLookupError):
                self.resume(pid)
