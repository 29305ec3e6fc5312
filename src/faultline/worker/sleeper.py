"""A worker that has nothing to do asks to be told, and looks again by itself where many do.

What it is told, and by whom, is `announce` in SQL; how it hears is `worker/ears.py`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

from faultline.protocol import Protocol
from faultline.worker.session import Session

SLEEP_SECONDS = 60.0  # how long one `sleep` asks for notifications
CALL_SECONDS = 5.0
FEW = 4  # so many are told of every job; of more who are told, so many look at once
LONGEST = 50  # with so many told, a word may do for half a second, and with more no longer
LOOK_SECONDS = 0.005  # between two looks of all who were told, together
LOOKS = 3  # of each of them; a word does for no longer than all but the last take


class Sleeper:
    """What the database knows of whether this worker waits, and what that obliges it to.

    Where many sleep, a word calls a few of them, and does for all that comes within a moment, half
    a second at most. So each looks again by itself at some moment, and of all together somebody
    every 5 ms: twice while it does, and once when that is over, since the others may all be dead. A
    new word begins this anew: what came before it is found by whom it calls.
    """

    def __init__(
        self,
        worker: str,
        queues: list[str],
        verbs: Protocol,
        session: Session,
        look: Callable[[], None],
    ) -> None:
        self._worker = worker
        self._queues = queues
        self._verbs = verbs
        self._session = session
        self._look = look
        self._until = 0.0
        self._among = 1  # how many were told by the last word
        self._looks: list[asyncio.TimerHandle] = []

    async def awake(self) -> None:
        """There is work: who enqueues need not tell us."""
        if self._until > time.monotonic():
            self._until = 0.0
            await self._session.run(self._verbs.awake(self._worker), CALL_SECONDS)

    async def asleep(self) -> bool:
        """Ask to be told, if that is to be asked again; whether it was: a job may have come before.
        A job that comes soon may rely on a word of before: so also as if that had been heard."""
        now = time.monotonic()
        if self._until >= now + SLEEP_SECONDS / 2:
            return False
        call = self._verbs.sleep(self._worker, self._queues, SLEEP_SECONDS)
        await self._session.run(call, CALL_SECONDS)
        if self._until < now:
            self.told(LONGEST)
            self.look_again()
        self._until = now + SLEEP_SECONDS
        return True

    def told(self, among: int) -> None:
        """There was a word for so many."""
        self._among = among

    def look_again(self) -> None:
        """After that word; a few are told of every job."""
        if self._among <= FEW:
            return
        for look in self._looks:
            look.cancel()
        loop, span = asyncio.get_running_loop(), LOOK_SECONDS * self._among
        shares = (random.random() for _ in range(LOOKS))  # noqa: S311
        waits = ((number + share) * span for number, share in enumerate(shares))
        self._looks = [loop.call_later(seconds, self._look) for seconds in waits]
