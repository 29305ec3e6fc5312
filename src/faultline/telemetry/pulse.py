"""Whether the workers of a process live and are ready, for whoever probes it.

    stuck      a loop that never waits for anything has not turned for long, or a process was
               started long ago and has not begun: start it anew
    trouble    leases cannot be renewed, or jobs not claimed: the database is away, say

Nothing is decided here about a lease or a job, and nobody stops working because of an answer. A
database that is away is trouble, and never a reason to be stuck: starting anew would not help.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Final

from faultline.observer import Observer, Standing

# The loop turns every second, and a child speaks as often. A machine that is busy, or a handler
# that holds the interpreter, may keep them for some seconds.
QUIET_SECONDS: Final = 10.0
STUCK_SECONDS: Final = 60.0
BEGIN_SECONDS: Final = 120.0  # for a process to import the app and to connect

Said = tuple[float, str | None, str | None]


class Pulse(Observer):
    """What the workers here say of themselves, and what their children said last."""

    def __init__(self) -> None:
        self._looks: dict[str, Callable[[], Standing]] = {}
        self._children: dict[str, Said] = {}  # when, stuck, trouble

    def standing(self, worker: str, look: Callable[[], Standing]) -> None:
        self._looks[worker] = look

    def left(self, worker: str) -> None:
        self._looks.pop(worker, None)

    def words(self) -> bytes:
        if not self._looks:  # not begun yet, or ended: nothing to tell
            return b"\n"
        return json.dumps([self.stuck(), self.trouble()]).encode() + b"\n"

    def heard(self, child: str, line: bytes) -> None:
        if line.strip():
            stuck, trouble = json.loads(line)
            self._children[child] = (time.monotonic(), stuck, trouble)

    def lost(self, child: str) -> None:
        self._children.pop(child, None)

    def stuck(self) -> str | None:
        """Why this process should be started anew; None: it lives."""
        children = self._children.copy()
        for look in self._looks.copy().values():
            stands = look()
            quiet = _since(stands.turned_at)
            if quiet > STUCK_SECONDS:
                return f"the loop that keeps leases has not turned for {quiet:.0f} s"
            for child, started_at in stands.children.items():
                if child not in children and _since(started_at) > BEGIN_SECONDS:
                    return f"{_not_begun(child)}, {_since(started_at):.0f} s after its start"
        for child, (at, stuck, _) in children.items():
            if stuck is not None:
                return f"process {child}: {stuck}"
            if _since(at) > STUCK_SECONDS:
                return _nothing_from(child, at)
        return None

    def trouble(self) -> str | None:
        """Why it is not ready; None: it is."""
        looks, children = self._looks.copy(), self._children.copy()
        if not looks:
            return "it has not begun yet"
        for look in looks.values():
            stands = look()
            if stands.trouble is not None:
                return stands.trouble
            for child in stands.children:
                if child not in children:
                    return self.stuck() or _not_begun(child)
        for child, (at, _, trouble) in children.items():
            if trouble is not None:
                return f"process {child}: {trouble}"
            if _since(at) > QUIET_SECONDS:
                return _nothing_from(child, at)
        return self.stuck()


def _since(moment: float | None) -> float:
    return 0.0 if moment is None else time.monotonic() - moment


def _nothing_from(child: str, at: float) -> str:
    return f"process {child} has said nothing for {_since(at):.0f} s"


def _not_begun(child: str) -> str:
    return f"process {child} has not begun yet"
