"""How often something is tried that is seldom needed and may be in somebody's way."""

from __future__ import annotations

import random


class Pace:
    """At once, then every so many seconds; twice as seldom after each try in vain, up to a limit,
    and step by step as before when one goes well. Spread, so that workers do not keep step."""

    def __init__(self, every_seconds: float, longest_seconds: float) -> None:
        self._every = every_seconds
        self._longest = longest_seconds
        self._pause = every_seconds
        self._at = 0.0

    def is_due(self, now: float) -> bool:
        """Whether to try now; then not again before its time, whatever comes of this try."""
        if now < self._at:
            return False
        self._at = now + self._pause * random.uniform(0.9, 1.1)  # noqa: S311
        return True

    def went_well(self) -> None:
        """What was tried was done, or not needed."""
        self._pause = max(self._pause / 2, self._every)

    def was_in_vain(self) -> None:
        """Somebody was in the way; and perhaps waited for it."""
        self._pause = min(self._pause * 2, self._longest)
