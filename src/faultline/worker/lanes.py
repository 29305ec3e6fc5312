"""Where a worker claims: the lanes of its queues, in order, and how far each has been read.

Higher priorities come first, always. Among lanes of one priority the first place rotates from claim
to claim, so that a full queue does not starve its neighbours. The cursor of a lane lets a claim
start past the dead entries at the front of the index; about once a second it starts from zero, to
find what was committed late. Both are hints.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import groupby

from faultline.jobs import Lane, Lease
from faultline.protocol import Protocol
from faultline.worker.session import Session

REFRESH_SECONDS = 1.0
CALL_SECONDS = 5.0


class Lanes:
    """The lanes of these queues."""

    def __init__(self, queues: list[str], verbs: Protocol, session: Session) -> None:
        self._queues = queues
        self._verbs = verbs
        self._session = session
        self._lanes: list[Lane] = []
        self._cursors: dict[int, int] = {}
        self._refreshed_at: float | None = None
        self._turn = 0
        self.swept = False  # whether the last claim read every lane from its beginning

    def refresh_soon(self) -> None:
        """Read the lanes again before the next claim, and claim from zero."""
        self._refreshed_at = None

    async def for_claim(self) -> tuple[list[int], list[int] | None]:
        """The lanes and their cursors, as claim takes them."""
        now = time.monotonic()
        if self._refreshed_at is None or now - self._refreshed_at >= REFRESH_SECONDS:
            self._lanes = await self._session.run(self._verbs.lanes(self._queues), CALL_SECONDS)
            self._refreshed_at = now
            self._cursors.clear()
        self.swept = not self._cursors
        self._turn += 1
        order = [
            lane.lane
            for _, group in groupby(self._lanes, lambda lane: lane.priority)
            for lane in _rotated(list(group), self._turn)
        ]
        return order, None if self.swept else [self._cursors.get(lane, 0) for lane in order]

    def claimed(self, leases: Iterable[Lease]) -> None:
        """Remember how far these lanes have been read."""
        lowest: dict[int, int] = {}
        for lease in leases:
            lowest[lease.lane] = min(lease.seq, lowest.get(lease.lane, lease.seq))
        self._cursors.update(lowest)


def _rotated(lanes: list[Lane], turn: int) -> list[Lane]:
    start = turn % len(lanes)
    return lanes[start:] + lanes[:start]
