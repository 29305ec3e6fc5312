"""The catalogue: everything Faultline reports while it works, one class an event.

Whoever does something takes an `Emit` and calls it; who listens (log, metrics, a trace) is decided
at the edge. Names and fields are part of the contract. No event carries a payload.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar
from uuid import UUID

from faultline.errors import StaleReason


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a worker, and usually to a job in its hands."""

    event: ClassVar[str]
    worker: str

    def fields(self) -> dict[str, Any]:
        """The event as it is written: its name first, ids as text."""
        values = {k: str(v) if isinstance(v, UUID) else v for k, v in asdict(self).items()}
        return {"event": self.event, **values}


@dataclass(frozen=True, slots=True)
class LeaseAcquired(Event):
    """A claim gave the worker a job. `forced`: a harness chose which one."""

    event = "lease_acquired"
    job_id: UUID
    token: int
    forced: bool = False


@dataclass(frozen=True, slots=True)
class ExecutionStarted(Event):
    """The handler begins."""

    event = "execution_started"
    job_id: UUID
    token: int


@dataclass(frozen=True, slots=True)
class JobCompleted(Event):
    """The success was accepted and committed."""

    event = "job_completed"
    job_id: UUID
    token: int


@dataclass(frozen=True, slots=True)
class LeaseReclaimed(Event):
    """The worker took an expired lease away from its owner."""

    event = "lease_reclaimed"
    job_id: UUID
    token: int
    owner: str


@dataclass(frozen=True, slots=True)
class StaleWriteBlocked(Event):
    """The database refused a write, because the attempt no longer owns the job."""

    event = "stale_write_blocked"
    job_id: UUID
    stale_token: int
    current_token: int | None
    reason: StaleReason


@dataclass(frozen=True, slots=True)
class WorkerExit(Event):
    """The worker ends, and why: success, stale, …"""

    event = "worker_exit"
    reason: str


Emit = Callable[[Event], None]

CATALOGUE: tuple[type[Event], ...] = (
    LeaseAcquired,
    ExecutionStarted,
    JobCompleted,
    LeaseReclaimed,
    StaleWriteBlocked,
    WorkerExit,
)
