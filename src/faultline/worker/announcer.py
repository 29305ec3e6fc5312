"""Events leave through a thread of their own: whoever listens may block, or fail, without harm.

A log whose reader has stopped would otherwise stop the keeper in the middle of a renewal. What
cannot be delivered is dropped and counted, and the count is the next event that is.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from queue import SimpleQueue

from faultline.events import Emit, Event, EventsDropped, Level
from faultline.observer import NOBODY, Observer

MOST = 20_000  # events that wait; some seconds of a busy worker
LAST_SECONDS = 1.0  # for what is left at the end


class Announcer:
    """An `Emit` that returns at once; the real one is called in order, by one thread."""

    def __init__(self, worker: str, emit: Emit, observer: Observer = NOBODY) -> None:
        self._worker = worker
        self._emit = emit
        self._observer = observer
        self.level: Level = getattr(emit, "level", "debug")
        self._waiting: SimpleQueue[Event | None] = SimpleQueue()
        self._dropped = 0
        self._thread = threading.Thread(target=self._deliver, name="faultline-events", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        """Deliver it later, unless too many wait already; the observer has it at once."""
        self._observer.event(event)
        if self._waiting.qsize() < MOST:
            self._waiting.put(event)
        else:
            self._dropped += 1

    def close(self) -> None:
        """Deliver what is left, but wait only a moment for it."""
        self._waiting.put(None)
        self._thread.join(LAST_SECONDS)

    def _deliver(self) -> None:
        while (event := self._waiting.get()) is not None:
            with suppress(Exception):
                self._emit(event)
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                with suppress(Exception):
                    self._emit(EventsDropped(self._worker, dropped))
