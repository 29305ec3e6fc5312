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
LOOKS_IN_QUIET = 2  # of each of them; a word does for no longer than these take
LATE_SECONDS = 0.25  # in which each looks once more when that is over, at least
LAST_SECONDS = 5.0  # and in which each looks a last time: as long as a poll takes
ANY = ""  # of its queues


class Sleeper:
    """What the database knows of whether this worker waits, and what that obliges it to.

    Where many sleep, a word calls a few of them, and does for all that comes within a moment, half
    a second at most. So each looks again by itself at some moment, and of all together somebody
    every 5 ms: twice while it does, and once when that is over, since the others may all be dead.
    A last look is for what was committed later still, and has its moment in five seconds: the
    polls of all who heard the same word would come together.

    A new word for the same queue begins this anew: what came before it is found by whom it calls.
    One for another queue, or one that calls all, takes nothing back.
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
        self._owed: dict[str, int] = {}  # queues whose word was for so many, and no looks yet
        self._looks: dict[str, list[asyncio.TimerHandle]] = {}

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
            self.told(ANY, LONGEST)
            self.look_again()
        self._until = now + SLEEP_SECONDS
        return True

    def told(self, queue: str, among: int) -> None:
        """There was a word for so many; few are told of every job."""
        if among > FEW:
            self._owed[queue] = among

    def look_again(self) -> None:
        """After such words."""
        while self._owed:
            queue, among = self._owed.popitem()
            for look in self._looks.get(queue, ()):
                look.cancel()
            loop = asyncio.get_running_loop()
            waits = moments(LOOK_SECONDS * among)
            self._looks[queue] = [loop.call_later(seconds, self._look) for seconds in waits]


def moments(span: float) -> list[float]:
    """When to look, in seconds from now; so many look once in each span."""
    over = LOOKS_IN_QUIET * span
    return [
        *((number + random.random()) * span for number in range(LOOKS_IN_QUIET)),  # noqa: S311
        over + random.random() * max(span, LATE_SECONDS),  # noqa: S311
        over + random.random() * LAST_SECONDS,  # noqa: S311
    ]
