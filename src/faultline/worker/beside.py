"""Another connection for the pump, where jobs are so short that one cannot keep up.

While the answer to one call is awaited, the next batch is settled and claimed on this one. It does
nothing else: whatever is not plain success it leaves to the pump, and rests until the pump has got
a full batch again. It is opened when it is first needed, and closed when it has not been for a
while: an idle worker has three connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from faultline.worker.session import CALM_SECONDS, Session

IDLE_SECONDS = 5.0


class Beside:
    """Runs `work` on a connection of its own, each time it is asked to."""

    def __init__(self, session: Session, work: Callable[[Session], Awaitable[None]]) -> None:
        self._session = session
        self._work = work
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.is_busy = False

    def ask(self) -> None:
        """There is something to do, from now on; nothing, if it is being done."""
        if not self.is_busy:
            self.is_busy = True
            self._asked.set()
            if self._task is None:
                self._task = asyncio.create_task(self._go_on())

    async def close(self) -> None:
        """Break off, and close the connection."""
        if self._task is not None:
            await self._session.calm(CALM_SECONDS)
            self._task.cancel()
            await asyncio.wait({self._task})
        await self._session.close()

    async def _go_on(self) -> None:
        while True:
            try:
                await asyncio.wait_for(self._asked.wait(), IDLE_SECONDS)
            except TimeoutError:
                await self._session.close()
                await self._asked.wait()
            self._asked.clear()
            try:
                with suppress(Exception):  # `work` has told whom it concerns
                    await self._work(self._session)
            finally:
                self.is_busy = False
