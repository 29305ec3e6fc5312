"""A claim that leaves with the word: while a worker waits, its next claim lies ready to be sent.

Between a word and a claim the loop would turn, the pump look at all it has to do, and the call be
put together, by code that has not run for a while and is cold: 0.3 ms, of a pickup of 1.3. Here the
word itself sends what was made before.

What else a word means is left for after the answer: the server's process that the claim wakes is
mostly put on the core of who has woken it, and waits for as long as that goes on. Nor is the pump
woken: while nobody uses the connection the ears hear the answer too, and the job begins with it.

Whoever sends has a call under way: the answer is awaited next, before the session is used for
anything else. It is as any other call's: bounded in time, and looked for if it is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from faultline.call import Call
from faultline.jobs import Lease
from faultline.protocol import Protocol
from faultline.worker.session import Sendable, Session

CALL_SECONDS = 5.0


class Prompt:
    """At most one claim: ready, or sent."""

    def __init__(
        self, session: Session, begin: Callable[[list[Lease], float], list[Lease]]
    ) -> None:
        self._session = session
        self._begin = begin  # with the answer, what was claimed then; answers with what is left
        self.sent_at = 0.0  # the last one
        self._ready: Sendable[list[Lease]] | None = None
        self._sent: Sendable[list[Lease]] | None = None

    @property
    def is_sent(self) -> bool:
        """Whether there is an answer to be awaited."""
        return self._sent is not None

    def prepare(self, claim: Call[list[Lease]]) -> None:
        """To be sent at the next word; not where that cannot be."""
        self._ready = self._session.ready(claim.then(self._heard), CALL_SECONDS)

    def forget(self) -> None:
        """Send nothing."""
        self._ready = None

    def send(self) -> bool:
        """Now, if there is something; whether there was. A word is news only once."""
        ready, self._ready = self._ready, None
        if ready is None or not self._session.send(ready):
            return False
        self._sent = ready
        self.sent_at = ready.sent
        return True

    async def answer(self) -> list[Lease]:
        """To what was sent: what has not begun with it."""
        assert self._sent is not None
        sent, self._sent = self._sent, None
        return await self._session.answer(sent)

    def _heard(self, leases: list[Lease]) -> list[Lease]:
        return self._begin(leases, self.sent_at)

    async def give_back(self, verbs: Protocol) -> None:
        """What was sent in the same turn in which its worker was cancelled."""
        if self._sent is not None:
            self._begin = lambda leases, _: leases
            with suppress(Exception):  # then it is free when its lease runs out
                leases = await self.answer()
                handed = [(lease.job_id, lease.token) for lease in leases]
                await self._session.run(verbs.release(handed), CALL_SECONDS)
