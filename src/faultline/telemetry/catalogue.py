"""The metrics: every name that is ever exposed, once, with its labels and what it counts.

`docs/how-to/monitoring.md` has the same table; a test holds the two together, and another scrapes
real processes and finds nothing that is not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram"]
Where = Literal["worker", "producer", "service", "database"]

OTHER: Final = "(other)"
UNKNOWN: Final = "(unknown)"

# Each is about twice the one before: a quantile is read to within a factor of two.
SECONDS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0),
)
JOBS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 5000.0)

# Closed sets: whatever else comes is OTHER.
REASONS: Final = ("token_mismatch", "lease_expired")
OPERATIONS: Final = (
    *("complete", "complete_one", "fail", "snooze", "decline", "release", "cancel", "renew"),
    *(
        "execute",
        "adopt",
        "fence",
        "assert_fence",
        "record_step",
        "commit",
        "postgres",
        "redis",
        "s3",
    ),
)
LOST: Final = ("refused", "deadline")
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


@dataclass(frozen=True, slots=True)
class Metric:
    """One name."""

    name: str
    kind: Kind
    where: Where
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _counter(name: str, where: Where, help: str, *labels: str) -> Metric:  # noqa: A002
    return Metric(f"faultline_{name}", "counter", where, help, labels)


def _gauge(name: str, where: Where, help: str, *labels: str) -> Metric:  # noqa: A002
    return Metric(f"faultline_{name}", "gauge", where, help, labels)


def _seconds(name: str, where: Where, help: str, *labels: str) -> Metric:  # noqa: A002
    return Metric(f"faultline_{name}", "histogram", where, help, labels, SECONDS)


ENQUEUED = _counter(
    "jobs_enqueued_total", "producer", "Jobs that were sent and accepted.", "task", "queue"
)
CLAIMED = _counter("jobs_claimed_total", "worker", "Jobs that were claimed.", "task", "queue")
SUCCEEDED = _counter("jobs_succeeded_total", "worker", "Successes committed.", "task", "queue")
FAILED = _counter("jobs_failed_total", "worker", "Attempts that failed.", "task", "queue")
RETRIED = _counter(
    "jobs_retried_total", "worker", "Failed attempts whose job is tried again.", "task", "queue"
)
DEAD = _counter(
    "jobs_dead_total", "worker", "Failed attempts that were their job's last.", "task", "queue"
)
SNOOZED = _counter("jobs_snoozed_total", "worker", "Attempts put off.", "task", "queue")
RELEASED = _counter("jobs_released_total", "worker", "Attempts handed back.", "task", "queue")
CANCELLED = _counter(
    "jobs_cancelled_total", "worker", "Attempts that ended their job as cancelled.", "task", "queue"
)
QUARANTINED = _counter(
    "jobs_quarantined_total", "worker", "Jobs parked because they had lost too many workers."
)
PROMOTED = _counter("jobs_promoted_total", "worker", "Scheduled jobs that became due.")
EXECUTION = _seconds(
    "execution_seconds", "worker", "How long a handler took, however it ended.", "task", "queue"
)
CLAIM = _seconds("claim_seconds", "worker", "How long a claim took that found jobs.")
PICKUP = _seconds(
    "pickup_seconds", "worker", "From when a job was due to its first claim.", "queue"
)
ACQUIRED = _counter(
    "lease_acquisitions_total", "worker", "Leases given by a claim, or adopted to run a job alone."
)
RENEWED = _counter("lease_renewals_total", "worker", "Leases extended.")
EXPIRED = _counter(
    "lease_expirations_total", "worker", "Leases that had run out when a reconciler found them."
)
RECOVERED = _counter(
    "recoveries_total", "worker", "Jobs given back to their queue because their worker was lost."
)
LEASES_LOST = _counter(
    "leases_lost_total", "worker", "Handlers told to stop because of their lease.", "reason"
)
STALE = _counter(
    "stale_writes_rejected_total",
    "worker",
    "Writes that the database refused, because the attempt no longer owned its job.",
    *("reason", "operation"),
)
DATABASE = _seconds(
    "database_seconds", "producer", "How long the database took to answer a call.", "verb"
)
DATABASE_ERRORS = _counter(
    "database_errors_total", "producer", "Calls that were not answered, or with an error.", "verb"
)
HANDLER = _counter("handler_seconds_total", "worker", "Time of jobs in their handlers.")
COORDINATION = _counter(
    "coordination_seconds_total",
    "worker",
    "Time of jobs between claim and settle, not in handlers.",
)
BATCH = Metric(
    "faultline_batch_size",
    "histogram",
    "worker",
    "How many jobs one call moved.",
    ("operation",),
    JOBS,
)
LAST_ROUND = _gauge(
    "reconciler_last_round_timestamp_seconds", "worker", "When the last round ended."
)
RUNNING = _gauge("running", "worker", "Jobs that run.")
CONCURRENCY = _gauge("concurrency", "worker", "Jobs that may run at once.")
PROCESSES = _gauge("worker_processes", "worker", "Processes that work.")
DRAINING = _gauge("worker_processes_draining", "worker", "Of these, those that are ending.")
DIED = _counter("worker_process_deaths_total", "worker", "Children that ended without being asked.")
REQUESTS = _counter(
    *("http_requests_total", "service", "Requests answered."), *("route", "method", "status")
)
REQUEST = _seconds(
    *("http_request_seconds", "service", "How long a request took."), *("route", "method")
)

DATABASE_UP = _gauge("database_up", "database", "Whether the database could be asked.")
BUILD = _gauge("build_info", "database", "1; which version answers.", "version")
SCHEMA_VERSION = _gauge("schema_version", "database", "Of the installation.")
DEPTH = _gauge(
    "queue_depth", "database", "Jobs in this state; a lower bound if capped.", "queue", "state"
)
CAPPED = _gauge("queue_depth_capped", "database", "Whether there are more than counted.", "queue")
PAUSED = _gauge("queue_paused", "database", "Whether the queue is paused.", "queue")
OLDEST = _gauge(
    "queue_oldest_age_seconds", "database", "How long the oldest waiting job has been due.", "queue"
)
OVERDUE = _gauge(
    "scheduled_overdue_seconds", "database", "How long a due job has waited to be promoted."
)
WORKERS = _gauge("workers", "database", "Workers that are active, or silent.", "state")
LEASES = _gauge("leases", "database", "Leases that are live, or expired.", "state")
RISK = _gauge("stale_risk", "database", "0 low, 1 medium, 2 high.")
SCORE = _gauge("stale_risk_score", "database", "From 0 to 100.")
REFUSALS = _counter("refusals_recorded_total", "database", "Stale writes that were recorded.")
DEAD_ROWS = _gauge("table_dead_rows", "database", "Rows that nobody needs.", "table")
LIVE_ROWS = _gauge("table_live_rows", "database", "Rows, as the server estimates.", "table")
BYTES = _gauge("table_bytes", "database", "Size with its indexes.", "table")
PINNED = _gauge(
    "pinned_snapshot_seconds", "database", "How long the oldest transaction has been open."
)
BEHIND = _gauge(
    "retention_behind_seconds", "database", "For how long something should be forgotten already."
)
VIOLATIONS = _gauge(
    "invariant_violations", "database", "Rows that break it, as last checked.", "invariant"
)
CHECKED = _gauge(
    "invariants_checked_timestamp_seconds", "database", "When the last check ended well."
)
STANDBYS = _gauge("standbys", "database", "Who follows the server, and how.", "kind")

METRICS: Final[dict[str, Metric]] = {
    metric.name: metric for metric in list(globals().values()) if isinstance(metric, Metric)
}
