"""Claims whose answer was lost: what they leased to this worker is looked for, and handed back."""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import UUID

from faultline.protocol import MOST_RECOVERED, Protocol
from faultline.worker.session import Session

CALL_SECONDS = 5.0
# A lost claim may commit after we have looked for it, when its COMMIT waits for a standby.
LOOK_AGAIN_SECONDS = (2.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0)


class Lost:
    """What may be leased to this worker without its ever having heard of it."""

    def __init__(
        self,
        worker: str,
        session: Session,
        verbs: Protocol,
        known: Callable[[], list[tuple[UUID, int]]],
    ) -> None:
        self._worker = worker
        self._session = session
        self._verbs = verbs
        self._known = known  # every attempt in hand
        self._moments: list[float] = []  # at which to look

    def __bool__(self) -> bool:
        """Whether some of it may be left."""
        return bool(self._moments)

    @property
    def is_due(self) -> bool:
        """Whether it is time to look."""
        return bool(self._moments) and time.monotonic() >= self._moments[0]

    def look_for(self, sent: float) -> None:
        """A claim that was sent at this moment was not answered."""
        now = time.monotonic()
        self._moments = [sent, *(now + later for later in LOOK_AGAIN_SECONDS)]

    async def release(self, is_claiming: Callable[[], bool]) -> None:
        """Hand back what is leased to us and not in hand, if it is time to look; not while another
        claim is under way, whose leases we do not know yet either."""
        while self.is_due:
            if is_claiming():
                return
            call = self._verbs.release_others(self._worker, self._known())
            handed_back = await self._session.run(call, CALL_SECONDS)
            if len(handed_back) < MOST_RECOVERED:
                self._moments.pop(0)
