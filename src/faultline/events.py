"""The catalogue: everything Faultline reports while it works, one class an event.

Whoever does something takes an `Emit` and calls it; who listens (log, metrics, a trace) is decided
at the edge. Names and fields are part of the contract. No event carries a payload.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Literal
from uuid import UUID

from faultline.errors import StaleReason

Level = Literal["debug", "info", "warning", "error"]
LEVELS: tuple[Level, ...] = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a worker, and usually to a job in its hands."""

    event: ClassVar[str]
    level: ClassVar[Level] = "info"
    worker: str

    def fields(self) -> dict[str, Any]:
        """The event as it is written: its name first, ids as text, nothing that is not known."""
        values: dict[str, Any] = {"event": self.event}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None or field.default is MISSING:
                values[field.name] = str(value) if isinstance(value, UUID) else value
        return values


@dataclass(frozen=True, slots=True)
class JobEvent(Event):
    """Something that happened to one attempt."""

    job_id: UUID
    token: int


# ── the life of an attempt ───────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class LeaseAcquired(JobEvent):
    """A claim gave the worker a job. `forced`: a harness chose which one."""

    event = "lease_acquired"
    level = "debug"
    forced: bool = False


@dataclass(frozen=True, slots=True)
class ExecutionStarted(JobEvent):
    """The handler begins."""

    event = "execution_started"
    level = "debug"
    task: str | None = None
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class JobCompleted(JobEvent):
    """The success was accepted and committed."""

    event = "job_completed"
    task: str | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class JobsCompleted(Event):
    """So many successes were accepted by one commit: instead of an event for each, where these are
    many and whoever listens does not ask for every detail."""

    event = "jobs_completed"
    count: int


@dataclass(frozen=True, slots=True)
class JobFailed(JobEvent):
    """The handler raised. `final`: the job was not to be tried again, and has failed; not known
    where the database was away just then."""

    event = "job_failed"
    level = "warning"
    task: str
    error: str
    message: str
    seconds: float | None = None
    final: bool | None = None


@dataclass(frozen=True, slots=True)
class JobSnoozed(JobEvent):
    """The job was put off, without using up an attempt."""

    event = "job_snoozed"
    task: str
    delay_seconds: float


@dataclass(frozen=True, slots=True)
class JobDeclined(JobEvent):
    """The worker has no handler for the job's task; the job waits for a worker that has one."""

    event = "job_declined"
    level = "debug"
    task: str


@dataclass(frozen=True, slots=True)
class JobReleased(JobEvent):
    """The job was handed back unfinished, to its own place in its queue."""

    event = "job_released"
    task: str
    reason: str


@dataclass(frozen=True, slots=True)
class JobCancelled(JobEvent):
    """The attempt ended its job as cancelled."""

    event = "job_cancelled"
    task: str
    reason: str | None


# ── what goes wrong ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class StaleWriteBlocked(Event):
    """The database refused a write, because the attempt no longer owns the job."""

    event = "stale_write_blocked"
    level = "warning"
    job_id: UUID
    stale_token: int
    current_token: int | None
    reason: StaleReason
    operation: str
    late_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class LeaseLost(JobEvent):
    """The handler is told to stop: its lease is lost (`refused`) or may soon be (`deadline`)."""

    event = "lease_lost"
    level = "warning"
    task: str
    reason: Literal["refused", "deadline"]


@dataclass(frozen=True, slots=True)
class ExecutionTimedOut(JobEvent):
    """The handler is told to stop: it ran longer than its task allows."""

    event = "execution_timed_out"
    level = "warning"
    task: str
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class HandlerAbandoned(JobEvent):
    """The handler was told to stop and did not; its slot is used again without waiting for it."""

    event = "handler_abandoned"
    level = "error"
    task: str


@dataclass(frozen=True, slots=True)
class EndingIgnored(JobEvent):
    """The handler had completed its job itself, and then said something else about its end."""

    event = "ending_ignored"
    level = "warning"
    task: str
    said: str


@dataclass(frozen=True, slots=True)
class UnknownTask(JobEvent):
    """No task of this name is registered here: `jobs` jobs were declined since the last such event
    of this worker process, of which this is the latest. One event a task and minute."""

    event = "unknown_task"
    level = "warning"
    task: str
    jobs: int


@dataclass(frozen=True, slots=True)
class LeaseReclaimed(JobEvent):
    """The worker took an expired lease away from its owner."""

    event = "lease_reclaimed"
    owner: str


@dataclass(frozen=True, slots=True)
class JobQuarantined(JobEvent):
    """The job had killed its workers as often as it may; it is parked with the evidence."""

    event = "job_quarantined"
    level = "error"
    crashes: int


@dataclass(frozen=True, slots=True)
class JobIsolated(JobEvent):
    """The job's last worker died with it: it is run alone, in a process of its own."""

    event = "job_isolated"
    task: str
    crashes: int


# ── the worker itself ────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class WorkerStarted(Event):
    """The worker is connected and begins to claim. `tasks`: all that it has a handler for."""

    event = "worker_started"
    queues: tuple[str, ...]
    concurrency: int
    pid: int
    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MetricsServed(Event):
    """Prometheus is answered at this address."""

    event = "metrics_served"
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class UnknownQueue(Event):
    """The worker was told to serve a queue that has never had a job and that no task names."""

    event = "unknown_queue"
    level = "warning"
    queue: str


@dataclass(frozen=True, slots=True)
class WorkerDraining(Event):
    """The worker was asked to end: it claims nothing more and waits for what runs."""

    event = "worker_draining"
    running: int


@dataclass(frozen=True, slots=True)
class DatabaseLost(Event):
    """The database cannot be reached; the worker keeps what it can and tries again."""

    event = "database_lost"
    level = "warning"
    error: str


@dataclass(frozen=True, slots=True)
class DatabaseBack(Event):
    """The database answers again."""

    event = "database_back"
    away_seconds: float


@dataclass(frozen=True, slots=True)
class ReadyCompacted(Event):
    """Vacuum could not clear the table of queued jobs of dead rows: it was written anew."""

    event = "ready_compacted"


@dataclass(frozen=True, slots=True)
class VacuumSpared(Event):
    """Vacuum can remove nothing from the busy tables, since a transaction stays open: it comes more
    seldom until that is over."""

    event = "vacuum_spared"
    dead_rows: int


@dataclass(frozen=True, slots=True)
class MonthsForgotten(Event):
    """What was enqueued in these months and ended longer ago than the retention is forgotten."""

    event = "months_forgotten"
    months: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProcessDied(Event):
    """A child of the worker ended without being asked; its leases were ended at once."""

    event = "process_died"
    level = "error"
    status: int
    reclaimed: int


@dataclass(frozen=True, slots=True)
class EventsDropped(Event):
    """So many events before this one could not be delivered: whoever listens was too slow."""

    event = "events_dropped"
    level = "warning"
    count: int


@dataclass(frozen=True, slots=True)
class WorkerExit(Event):
    """The worker ends, and why: success, stale, drained, stuck, …"""

    event = "worker_exit"
    reason: str


Emit = Callable[[Event], None]

CATALOGUE: tuple[type[Event], ...] = (
    LeaseAcquired,
    ExecutionStarted,
    JobCompleted,
    JobsCompleted,
    JobFailed,
    JobSnoozed,
    JobDeclined,
    JobReleased,
    JobCancelled,
    StaleWriteBlocked,
    LeaseLost,
    ExecutionTimedOut,
    HandlerAbandoned,
    EndingIgnored,
    UnknownTask,
    LeaseReclaimed,
    JobQuarantined,
    JobIsolated,
    WorkerStarted,
    MetricsServed,
    UnknownQueue,
    WorkerDraining,
    DatabaseLost,
    DatabaseBack,
    ReadyCompacted,
    VacuumSpared,
    MonthsForgotten,
    ProcessDied,
    EventsDropped,
    WorkerExit,
)


def wants(emit: Emit, level: Level) -> bool:
    """Whether it makes sense to tell this listener of such an event; one that does not say so wants
    everything."""
    return LEVELS.index(level) >= LEVELS.index(getattr(emit, "level", "debug"))
