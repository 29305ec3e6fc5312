"""While the database is away: said once, tried again with growing pauses, said when it is back."""

from __future__ import annotations

import asyncio
import math
import random
import time

from faultline.events import DatabaseBack, DatabaseLost, Emit

FIRST_SECONDS = 0.05
LONGEST_SECONDS = 5.0


def nothing(_: object = None) -> None:
    """For whoever has nobody to tell."""


class Outage:
    """One connection's trouble."""

    def __init__(self, worker: str, emit: Emit) -> None:
        self._worker = worker
        self._emit = emit
        self._since: float | None = None
        self._text = ""
        self._pause = FIRST_SECONDS

    @property
    def trouble(self) -> str | None:
        """What is wrong, since when; None: nothing. From any thread."""
        if (since := self._since) is None:
            return None
        return f"{self._text} (for {time.monotonic() - since:.0f} s)"

    async def wait(self, error: BaseException, most_seconds: float = math.inf) -> None:
        """Say so if it is new, and wait before the next try: 0.05 s, 0.1 s … 5 s, spread; no longer
        than there is time."""
        if self._since is None:
            self._since = time.monotonic()
            self._text = str(error).partition("\n")[0] or type(error).__name__
            self._emit(DatabaseLost(self._worker, self._text))
        pause = self._pause * random.uniform(0.5, 1.0)  # noqa: S311
        await asyncio.sleep(min(pause, most_seconds))
        self._pause = min(self._pause * 2, LONGEST_SECONDS)

    def over(self) -> None:
        """It answered."""
        if self._since is not None:
            away = round(time.monotonic() - self._since, 3)
            self._since, self._pause = None, FIRST_SECONDS
            self._emit(DatabaseBack(self._worker, away))
