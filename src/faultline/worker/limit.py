"""By when a worker that was hurried has ended: one moment for whatever it still asks the database.

Until it is set there is none. From then on every call ends by it, also one that is under way, and
none is begun after it: a database that does not answer cannot hold up who is to end. What was not
written then is unknown, or was not done; its leases expire by themselves.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import suppress

LATE_SECONDS = 0.5  # a loop that comes so late was held up


class Limit:
    """One moment, of the process's monotonic clock; set from any thread.

    Whose loop a handler may block comes late through no fault of the database's. With a least
    number of seconds, each call gets these, and it is over only once somebody has said so.
    """

    def __init__(self, least_seconds: float = 0.0) -> None:
        self._least_seconds = least_seconds
        self._at = math.inf
        self._has_ended = False
        self._heeding: set[tuple[asyncio.AbstractEventLoop, Callable[[], None]]] = set()

    def set(self, at: float) -> None:
        """No later than this; one that was set before and comes sooner stands."""
        self._at = min(self._at, at)
        for loop, heed in self._heeding.copy():
            with suppress(RuntimeError):  # its loop is closed
                loop.call_soon_threadsafe(heed)

    def end_at(self, at: float, then: Callable[[], None]) -> None:
        """Set it, and at this moment say that it is over and call this; unless the running loop
        then comes late, and has had no time for what it had to do."""
        self.set(at)

        def come() -> None:
            if time.monotonic() - at > LATE_SECONDS:
                self.end_at(time.monotonic() + 2 * self._least_seconds, then)
            else:
                self._has_ended = True
                then()

        asyncio.get_running_loop().call_later(at - time.monotonic(), come)

    @property
    def is_over(self) -> bool:
        """Whether nothing may be begun any more."""
        return self._has_ended or (not self._least_seconds and self.left() == 0)

    def left(self, seconds: float = math.inf) -> float:
        """How many of so many seconds what is begun now may take."""
        left = max(self._at - time.monotonic(), self._least_seconds)
        return 0.0 if self._has_ended else min(seconds, left)

    # Who begins something asks to be told first, and what is left then: so it cannot miss a moment
    # that is set between the two.

    def tell(self, heed: Callable[[], None]) -> None:
        """Call this on the running loop when it is set, until it is forgotten."""
        self._heeding.add((asyncio.get_running_loop(), heed))

    def forget(self, heed: Callable[[], None]) -> None:
        """What was begun has ended."""
        self._heeding.discard((asyncio.get_running_loop(), heed))
