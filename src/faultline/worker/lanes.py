"""Where a worker claims: the lanes of its queues, in order, and how far each has been read.

Higher priorities come first, always. Among lanes of one priority the first place rotates from claim
to claim, so that a full queue does not starve its neighbours. The cursor of a lane lets a claim
start past the dead entries at the front of the index; about once a second a claim is a sweep, which
starts from zero, to find what was committed late. Where a long transaction keeps vacuum from
removing dead entries, sweeps take ever longer, and are made the more rarely. Both are hints.

Of queues with more than 20 lanes in all, only the lanes in use are read. A lane that comes into use
is claimed from after the next notification or, by a busy worker, after about a second.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby

from faultline.errors import DatabaseUnavailable
from faultline.jobs import Lane, Lease
from faultline.observer import NOBODY, Observer
from faultline.protocol import Protocol
from faultline.worker.session import Session, Unavailable

REFRESH_SECONDS = 1.0
SWEEP_SHARE = 0.03  # of the time, and at most once a second
LONGEST_PAUSE_SECONDS = 20.0
CALL_SECONDS = 5.0


class Lanes:
    """The lanes of these queues."""

    def __init__(
        self,
        queues: list[str],
        verbs: Protocol,
        session: Session,
        observer: Observer = NOBODY,
    ) -> None:
        self._queues = queues
        self._observer = observer
        self._verbs = verbs
        self._session = session
        self._lanes: list[Lane] = []
        self._known: set[str] = set()  # the queues that have one
        self._cursors: dict[int, int] = {}
        self._refreshed_at: float | None = None
        self._refresh_seconds = REFRESH_SECONDS
        self._turn = 0
        self._sweep_at = 0.0
        self._usual_seconds = 0.0  # of a claim that was no sweep
        self._sweep_seconds = 0.0  # of the last one: a single slow sweep is a stall, not a cost

    def refresh_soon(self) -> None:
        """Read the lanes again before the next claim, and claim from zero."""
        self._refreshed_at = None
        self.sweep_soon()

    def sweep_soon(self) -> None:
        """Claim from zero."""
        self._sweep_at = 0.0

    @property
    def are_fresh(self) -> bool:
        """Whether they have been read and nobody has said that there may be others."""
        return self._refreshed_at is not None

    def has(self, queue: str) -> bool:
        """Whether a lane of this queue is known."""
        return queue in self._known

    async def refresh(self) -> None:
        """Read the lanes again, about once a second; more rarely where that takes long."""
        now = time.monotonic()
        if self._refreshed_at is None or now - self._refreshed_at >= self._refresh_seconds:
            self._lanes = await self._session.run(self._verbs.lanes(self._queues), CALL_SECONDS)
            self._known = {lane.queue for lane in self._lanes}
            self._refreshed_at = now
            pause = (time.monotonic() - now) / SWEEP_SHARE
            self._refresh_seconds = min(max(pause, REFRESH_SECONDS), LONGEST_PAUSE_SECONDS)
            self._observer.lanes(self._lanes)

    def for_claim(self, *, may_sweep: bool = True) -> tuple[list[int], list[int] | None]:
        """The lanes and their cursors, as claim takes them; no cursors, for a sweep."""
        now = time.monotonic()
        is_sweep = may_sweep and now >= self._sweep_at
        if is_sweep:
            self._sweep_at = now + REFRESH_SECONDS
        self._turn += 1
        order = [
            lane.lane
            for _, group in groupby(self._lanes, lambda lane: lane.priority)
            for lane in _rotated(list(group), self._turn)
        ]
        return order, None if is_sweep else [self._cursors.get(lane, 0) for lane in order]

    def claimed(self, leases: Sequence[Lease], seconds: float, *, swept: bool) -> None:
        """Remember how far these lanes have been read (a claim answers in the order of each), by a
        call that took so long."""
        if leases and leases[0].lane == leases[-1].lane:  # and so are all between
            self._cursors[leases[0].lane] = leases[0].seq
        else:
            self._cursors.update([(lease.lane, lease.seq) for lease in reversed(leases)])
        if swept:
            cost = min(seconds, self._sweep_seconds) - self._usual_seconds
            self._sweep_seconds = seconds
            pause = cost / SWEEP_SHARE
            self._sweep_at += min(max(pause - REFRESH_SECONDS, 0.0), LONGEST_PAUSE_SECONDS)
        else:
            self._usual_seconds = seconds


def _rotated(lanes: list[Lane], turn: int) -> list[Lane]:
    start = turn % len(lanes)
    return lanes[start:] + lanes[:start]


async def begun(session: Session, verbs: Protocol, worker: str, queues: list[str]) -> list[Lane]:
    """Connect and call what a worker calls first, on no lane and no job: what is wrong is said now,
    and the server compiles these functions before a job waits for them."""
    try:
        await session.connection()
        await session.run(verbs.claim(worker, []), CALL_SECONDS)
        await session.run(verbs.claim_one(worker, [], by_itself=True), CALL_SECONDS)
        await session.run(verbs.complete([]), CALL_SECONDS)
        return await session.run(verbs.lanes(queues), CALL_SECONDS)
    except (Unavailable, TimeoutError) as error:
        raise DatabaseUnavailable(str(error) or "the database did not answer") from error
