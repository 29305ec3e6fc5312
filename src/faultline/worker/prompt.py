"""A claim that leaves with the word: while a worker waits, its next claim lies ready to be sent.

Between a word and a claim the loop would turn, the pump look at all it has to do, and the call be
put together, by code that has not run for a while and is cold: 0.3 ms, of a pickup of 1.3. Here the
word itself sends what was made before; what else there is to do is done while the server is at it.

Whoever sends has a call under way: the answer is awaited next, before the session is used for
anything else. It is as any other call's: bounded in time, and looked for if it is lost.
"""

from __future__ import annotations

from contextlib import suppress

from faultline.call import Call
from faultline.jobs import Lease
from faultline.protocol import Protocol
from faultline.worker.session import Sendable, Session

CALL_SECONDS = 5.0


class Prompt:
    """At most one claim: ready, or sent."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ready: Sendable[list[Lease]] | None = None
        self._sent: Sendable[list[Lease]] | None = None

    @property
    def is_sent(self) -> bool:
        """Whether there is an answer to be awaited."""
        return self._sent is not None

    def prepare(self, claim: Call[list[Lease]]) -> None:
        """To be sent at the next word; not where that cannot be."""
        self._ready = self._session.ready(claim, CALL_SECONDS)

    def forget(self) -> None:
        """Send nothing."""
        self._ready = None

    def send(self) -> bool:
        """Now, if there is something; whether there was. A word is news only once."""
        ready, self._ready = self._ready, None
        if ready is None or not self._session.send(ready):
            return False
        self._sent = ready
        return True

    def taken(self) -> Sendable[list[Lease]]:
        """What was sent, for who awaits its answer."""
        assert self._sent is not None
        sent, self._sent = self._sent, None
        return sent

    async def give_back(self, verbs: Protocol) -> None:
        """What was sent in the same turn in which its worker was cancelled."""
        if self._sent is not None:
            with suppress(Exception):  # then it is free when its lease runs out
                leases = await self._session.answer(self.taken())
                handed = [(lease.job_id, lease.token) for lease in leases]
                await self._session.run(verbs.release(handed), CALL_SECONDS)
