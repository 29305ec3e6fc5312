"""Forget what ended longer ago than the installation's retention says, about every hour.

Beside a reconciler, on a connection that is opened for it and closed again: looking through a month
may take a while, and recovery does not wait for it. Any number may try at once; the database does
it once.
"""

from __future__ import annotations

import asyncio
import random

from faultline.events import Emit, MonthsForgotten
from faultline.protocol import Protocol
from faultline.worker.limit import Limit
from faultline.worker.session import Session

CALL_SECONDS = 600.0  # it reads a whole month, before anybody has to wait
FIRST_SECONDS = 60.0  # after the start: workers that are often restarted come to it too
EVERY_SECONDS = 3600.0
SOON_SECONDS = 60.0  # after a try in vain, then twice as long after each: somebody reads for hours
STEP_SECONDS = 0.2  # between two steps, for everybody else


class Retention:
    """One look after the other, until cancelled."""

    def __init__(
        self, worker: str, url: str, verbs: Protocol, emit: Emit, limit: Limit | None = None
    ) -> None:
        self._worker = worker
        self._url = url
        self._verbs = verbs
        self._emit = emit
        self._limit = limit

    async def run(self) -> None:
        """Until cancelled; spread, so that workers do not keep step."""
        pause, soon = FIRST_SECONDS, SOON_SECONDS
        while True:
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311
            if await self.apply():
                pause, soon = EVERY_SECONDS, SOON_SECONDS
            else:
                pause, soon = soon, min(soon * 2, EVERY_SECONDS)

    async def apply(self) -> bool:
        """Until nothing is left to forget; False: something was in the way."""
        session = Session(self._url, self._verbs.schema, limit=self._limit)
        try:
            while (done := await session.run(self._verbs.apply_retention(), CALL_SECONDS)).more:
                if done.months:
                    self._emit(MonthsForgotten(self._worker, tuple(done.months)))
                await asyncio.sleep(STEP_SECONDS)
        except Exception:  # locked, most likely; recovery goes on beside it, and says what is wrong
            return False
        finally:
            await session.close()
        return True
