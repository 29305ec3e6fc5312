"""What the verbs answer with: plain values, no behaviour, no connection behind them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple
from uuid import UUID

from faultline.errors import StaleLease, StaleReason


@dataclass(frozen=True, slots=True)
class Lane:
    """One priority of one queue: what a worker claims from."""

    lane: int
    queue: str
    priority: int


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A payload that is JSON for PostgreSQL but not for Python: too deep, or too many digits."""

    why: str


class Lease(NamedTuple):
    """A job that was claimed, with the token under which its attempt may end.

    A tuple, because claims come in hundreds: making one takes a sixth of a dataclass's time.
    """

    job_id: UUID
    token: int
    lane: int
    seq: int
    attempts: int
    crashes: int
    snoozes: int
    lease_seconds: float
    task: str
    payload: Any
    headers: Any
    last_chance: bool = False
    """Should this attempt's worker die too, the job goes to quarantine: run it alone."""


@dataclass(frozen=True, slots=True)
class Stale:
    """An attempt that was refused: it no longer held its lease."""

    job_id: UUID
    token: int
    current_token: int | None
    reason: StaleReason
    operation: str
    late_seconds: float | None = None

    def error(self) -> StaleLease:
        """The same facts as the exception a handler gets."""
        return StaleLease(self.job_id, self.token, self.current_token, self.reason, self.operation)


class Outcome(NamedTuple):
    """How an attempt ended; `final`: and its job with it. None while it has not."""

    outcome: str | None
    final: bool | None


@dataclass(frozen=True, slots=True)
class Renewal:
    """What became of one lease: only `lost` means that the handler has to stop."""

    job_id: UUID
    token: int
    verdict: Literal["renewed", "busy", "lost"]
    expires_at: datetime | None
    cancel_reason: str | None
    current_token: int | None = None
    reason: StaleReason | None = None
    """Why it is lost, where that was recorded as a refusal: not if the attempt ended itself."""
    late_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """A lease that was taken away from its owner: it had expired, or the owner is dead."""

    job_id: UUID
    token: int
    worker: str
    state: Literal["queued", "scheduled", "quarantined", "cancelled"]
    crashes: int


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What a reconcile did, and in how many seconds there is something to do again.

    0 means at once, None that nothing is waited for.
    """

    reclaimed: list[Reclaimed]
    promoted: int
    next_seconds: float | None


@dataclass(frozen=True, slots=True)
class Retained:
    """The months that were dropped or thinned out, and whether there is more to forget."""

    months: list[str]
    more: bool


@dataclass(frozen=True, slots=True)
class Cancelled:
    """`requested` means that the job runs, and its worker will be told."""

    job_id: UUID
    verdict: Literal["cancelled", "requested", "finished"]


@dataclass(frozen=True, slots=True)
class Status:
    """Where one job stands, as its producer may see it."""

    state: str
    token: int
    attempts: int
    next_run_at: datetime | None
    finished_at: datetime | None
    result: Any
    error: Any
    progress: Any = None  # what the running attempt said last
