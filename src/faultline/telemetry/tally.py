"""What one process has counted, and what its children have told it of theirs.

Exact under threads: the worker's loop, its keeper and any thread that enqueues count here, and
`dict[k] += 1` is three steps between which another thread may come. So numbers are made outside of
the lock and added inside, once for a batch of jobs and not for each: some 0.1 µs for up to 800.

Labels are bounded whatever users send: so many pairs of task and queue have a line of their own,
those that come later share one.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from faultline.events import Event, LeaseLost, ProcessDied, StaleWriteBlocked
from faultline.observer import Observer
from faultline.telemetry import catalogue as metrics
from faultline.telemetry.careful import careful
from faultline.telemetry.catalogue import OTHER, UNKNOWN, Metric
from faultline.telemetry.sums import Sums

if TYPE_CHECKING:
    from faultline.jobs import Lane, Lease, Reclaimed, Reconciled, Stale
    from faultline.task import Task
    from faultline.worker.attempt import Attempt
    from faultline.worker.endings import Ending

    Tasks = Mapping[str, Task[Any, Any]]
    Group = tuple[str, str, Sequence[Attempt]]
    Found = tuple[str, str, Sequence[Attempt], list[float]]  # and for how long each was due

MAX_PAIRS: Final = 200  # of task and queue
MAX_LABELS: Final = 200  # of every other kind
MAX_UNCOUNTED: Final = 50  # calls, enqueues and claims that wait to be counted together
DUE_HEADER: Final = "faultline-due"  # seconds since 1970; set by enqueue, on jobs with a delay
_TOKEN_BITS: Final = (1 << 40) - 1  # below them a token has its epoch: see token_floor

# By an ending's class: which counter it is for, and which call writes a batch of it.
_ENDINGS: Final[dict[str, tuple[Metric, str]]] = {
    "Completed": (metrics.SUCCEEDED, "complete"),
    "Settled": (metrics.SUCCEEDED, ""),  # by a commit of the handler's own
    "Unsure": (metrics.SUCCEEDED, ""),
    "Failed": (metrics.FAILED, "fail"),
    "Snoozed": (metrics.SNOOZED, "snooze"),
    "Declined": (metrics.SNOOZED, "decline"),
    "Released": (metrics.RELEASED, "release"),
    "Cancelled": (metrics.CANCELLED, "cancel"),
}
_OF_WORKERS: Final = (metrics.RUNNING, metrics.CONCURRENCY, metrics.PROCESSES, metrics.DRAINING)
_OF_JOBS: Final = (
    *(metrics.CLAIMED, metrics.SUCCEEDED, metrics.FAILED, metrics.RETRIED, metrics.DEAD),
    *(metrics.SNOOZED, metrics.RELEASED, metrics.CANCELLED),
)
_PLAIN: Final = (
    *(metrics.QUARANTINED, metrics.PROMOTED, metrics.ACQUIRED, metrics.RENEWED, metrics.EXPIRED),
    *(metrics.RECOVERED, metrics.HANDLER, metrics.COORDINATION, metrics.DIED),
)


class Tally(Observer):
    """Plain numbers."""

    def __init__(self, tasks: Tasks | None = None) -> None:
        self._tasks: Tasks = {} if tasks is None else tasks
        self.forget()
        _tallies.add(self)

    def forget(self) -> None:
        """Begin anew; after a fork the counts are the parent's, and the lock nobody's."""
        self._lock = threading.Lock()
        self._sums = Sums()
        self._uncounted: deque[tuple[Callable[..., None], str, Any]] = deque()
        self._queues: dict[int, str] = {}  # by lane
        self._labels: dict[str, set[Any]] = {}
        self._workers: dict[str, Callable[[], Mapping[str, Any]]] = {}
        self._children: dict[str, Sums] = {}
        self._clock_offset = time.time() - time.monotonic()

    def snapshot(self) -> Sums:
        """All of it now, with that of the children, those included that have ended."""
        whole = Sums()
        with self._lock:
            self._count_all()
            whole.merge(self._sums)
            for child in self._children.values():
                whole.merge(child)
            workers = list(self._workers.values())
        for look in workers:
            state = look()
            seen = (state["running"], state["concurrency"], 1, state["draining"])
            for metric, number in zip(_OF_WORKERS, seen, strict=True):
                key = (metric.name,)
                whole.gauges[key] = whole.gauges.get(key, 0.0) + float(number)
        return whole

    # ── what a process tells of itself ───────────────────────────────────────────────────────────

    def working(self, worker: str, look: Callable[[], Mapping[str, Any]]) -> None:
        with self._lock:
            self._workers[worker] = look
            self._begin_at_zero()

    def left(self, worker: str) -> None:
        with self._lock:
            self._workers.pop(worker, None)

    def _begin_at_zero(self) -> None:
        """A counter that appears with a 1 has not risen, for Prometheus: so all that can be named
        beforehand is there from the start."""
        for metric in _PLAIN:
            self._sums.count(metric, 0)
        for task in self._tasks.values():
            for metric in _OF_JOBS:
                self._sums.count(metric, 0, *self._pair(task.name, task.queue))
        for reason in metrics.REASONS:
            for operation in (*metrics.OPERATIONS, OTHER):
                self._sums.count(metrics.STALE, 0, reason, operation)
        for reason in metrics.LOST:
            self._sums.count(metrics.LEASES_LOST, 0, reason)

    def words(self) -> bytes:
        return self.snapshot().to_line()

    def heard(self, child: str, line: bytes) -> None:
        sums = Sums.from_line(line)
        with self._lock:
            self._children[child] = sums

    def lost(self, child: str) -> None:
        """What it had counted stays counted; what it was is no more."""
        with self._lock:
            if (sums := self._children.pop(child, None)) is not None:
                self._sums.merge(sums, gauges=False)

    # ── what is done ─────────────────────────────────────────────────────────────────────────────

    def enqueued(self, task: str, counts: Mapping[str, int]) -> None:
        """So many jobs were sent."""
        self._later(self._count_enqueued, task, counts)

    def called(self, verb: str, seconds: float, *, failed: bool) -> None:
        self._later(self._count_called, verb or "read", (seconds, failed))

    def _later(self, count: Callable[..., None], name: str, what: Any) -> None:
        """Count it together with others: who waits for an answer is not kept with arithmetic."""
        self._uncounted.append((count, name, what))
        if len(self._uncounted) >= MAX_UNCOUNTED:
            with self._lock:
                self._count_all()

    def _count_all(self) -> None:
        """All that waits to be counted, those of a kind and name at once; with the lock."""
        alike: dict[tuple[Callable[..., None], str], list[Any]] = {}
        for _ in range(len(self._uncounted)):
            count, name, what = self._uncounted.popleft()
            alike.setdefault((count, name), []).append(what)
        for (count, name), many in alike.items():
            try:
                count(name, many)  # all of them, or none
            except Exception:
                for what in many:
                    with careful:  # what is wrong with one is not the others' fault
                        count(name, [what])

    def _count_enqueued(self, task: str, many: list[Mapping[str, int]]) -> None:
        name = task if not self._tasks or task in self._tasks else UNKNOWN
        queues: dict[str, int] = {}
        for counts in many:
            for queue, jobs in counts.items():
                queues[queue] = queues.get(queue, 0) + jobs
        batches = [float(sum(counts.values())) for counts in many if counts]
        if batches:
            self._sums.observe(metrics.BATCH, batches, "enqueue")
        for queue, jobs in queues.items():
            self._sums.count(metrics.ENQUEUED, jobs, *self._pair(name, queue))

    def _count_called(self, verb: str, many: list[tuple[float, bool]]) -> None:
        verb, failures = self._bounded("verb", verb), sum([failed for _, failed in many])
        self._sums.observe(metrics.DATABASE, [seconds for seconds, _ in many], verb)
        self._sums.count(metrics.DATABASE_ERRORS, failures, verb)

    def requested(self, route: str, method: str, status: int, seconds: float) -> None:
        """An HTTP request was answered."""
        method = method if method in metrics.METHODS else OTHER
        with self._lock:
            route = self._bounded("route", route)
            self._sums.count(metrics.REQUESTS, 1, route, method, str(status))
            self._sums.observe(metrics.REQUEST, [seconds], route, method)

    def clock(self, database_seconds: float) -> None:
        self._clock_offset = database_seconds - time.monotonic()

    def lanes(self, lanes: Sequence[Lane]) -> None:
        self._queues = {**self._queues, **{lane.lane: lane.queue for lane in lanes}}

    def claimed(self, attempts: Sequence[Attempt], sent: float) -> None:
        now = time.monotonic()
        if len(attempts) == 1:  # which is waited for; of many, their numbers are all that is kept
            self._later(self._count_claimed, "", (attempts, sent, now))
            return
        found = self._found(attempts, now)
        with self._lock:
            self._count_found(found, len(attempts), now - sent)

    def _found(self, attempts: Sequence[Attempt], now: float) -> list[Found]:
        return [(*group, self._waited(group[2], now)) for group in self._groups(attempts)]

    def _count_claimed(self, _: str, many: list[tuple[Sequence[Attempt], float, float]]) -> None:
        for attempts, sent, now in many:
            with careful:
                self._count_found(self._found(attempts, now), len(attempts), now - sent)

    def _count_found(self, found: list[Found], claimed: int, seconds: float) -> None:
        for task, queue, group, waited in found:
            self._sums.count(metrics.CLAIMED, len(group), *self._pair(task, queue))
            if waited:
                self._sums.observe(metrics.PICKUP, waited, self._bounded("queue", queue))
        self._sums.count(metrics.ACQUIRED, claimed)
        self._sums.observe(metrics.CLAIM, [seconds])
        self._sums.observe(metrics.BATCH, [float(claimed)], "claim")

    def adopted(self, attempts: Sequence[Attempt], sent: float) -> None:  # noqa: ARG002
        with self._lock:
            self._sums.count(metrics.ACQUIRED, len(attempts))

    def settled(self, endings: Sequence[Ending], stale: Sequence[Stale]) -> None:
        now = time.monotonic()
        kind = type(endings[0]).__name__
        if kind == "Died":
            for ending in endings:
                self.reclaimed(getattr(ending, "taken", ()))
        if not endings[0].is_last:
            return
        groups = self._groups([ending.attempt for ending in endings])
        times = [(t, queue, *_times(group, now)) for t, queue, group in groups if t != UNKNOWN]
        written = endings
        if stale:
            refused = {(item.job_id, item.token) for item in stale}
            written = [e for e in endings if e.attempt.key not in refused]
            groups = self._groups([ending.attempt for ending in written])
        with self._lock:
            for task, queue, took, inside, outside in times:
                self._sums.observe(metrics.EXECUTION, took, *self._pair(task, queue))
                self._sums.count(metrics.HANDLER, inside)
                self._sums.count(metrics.COORDINATION, outside)
            if kind in _ENDINGS:
                metric, operation = _ENDINGS[kind]
                for task, queue, group in groups:
                    self._sums.count(metric, len(group), *self._pair(task, queue))
                if operation:
                    self._sums.observe(metrics.BATCH, [float(len(endings))], operation)
        if kind == "Failed":
            self._decided(written)

    def _decided(self, failed: Sequence[Ending]) -> None:
        """What the database made of these failures; where that is not known, nothing is said."""
        for final, metric in ((True, metrics.DEAD), (False, metrics.RETRIED)):
            chosen = [e.attempt for e in failed if getattr(e, "final", None) is final]
            found = self._groups(chosen)
            with self._lock:
                for task, queue, group in found:
                    self._sums.count(metric, len(group), *self._pair(task, queue))

    def renewed(self, attempts: Sequence[Attempt]) -> None:
        if attempts:
            with self._lock:
                self._sums.count(metrics.RENEWED, len(attempts))
                self._sums.observe(metrics.BATCH, [float(len(attempts))], "renew")

    def reconciled(self, done: Reconciled) -> None:
        with self._lock:
            self._sums.gauges[(metrics.LAST_ROUND.name,)] = time.time()
            self._sums.count(metrics.PROMOTED, done.promoted)
            self._sums.count(metrics.EXPIRED, len(done.reclaimed))
        self.reclaimed(done.reclaimed)

    def reclaimed(self, taken: Sequence[Reclaimed]) -> None:
        states = [item.state for item in taken]
        with self._lock:
            back = states.count("queued") + states.count("scheduled")
            self._sums.count(metrics.RECOVERED, back)
            self._sums.count(metrics.QUARANTINED, states.count("quarantined"))

    def event(self, event: Event) -> None:
        labels: tuple[str, ...] = ()
        match event:
            case StaleWriteBlocked():
                metric = metrics.STALE
                known = event.operation in metrics.OPERATIONS
                labels = (event.reason, event.operation if known else OTHER)
            case LeaseLost():
                metric, labels = metrics.LEASES_LOST, (event.reason,)
            case ProcessDied():
                metric = metrics.DIED
            case _:
                return
        with self._lock:
            self._sums.count(metric, 1, *labels)

    # ── labels and groups ────────────────────────────────────────────────────────────────────────

    def _pair(self, task: str, queue: str) -> tuple[str, str]:
        """As they are, or OTHER; to be asked with the lock."""
        pairs = self._labels.setdefault("pair", set())
        pair = (task, queue)
        if pair in pairs:
            return pair
        if len(pairs) >= MAX_PAIRS:
            return (OTHER, OTHER)
        pairs.add(pair)
        return pair

    def _bounded(self, kind: str, label: str) -> str:
        known = self._labels.setdefault(kind, set())
        if label not in known:
            if len(known) >= MAX_LABELS:
                return OTHER
            known.add(label)
        return label

    def _groups(self, attempts: Sequence[Attempt]) -> list[Group]:
        """By task and queue. Nearly always all are alike, and then it is found by comparing."""
        if not attempts:
            return []
        tasks = [attempt.task for attempt in attempts]
        lanes = [attempt.lease.lane for attempt in attempts]
        most = len(attempts)
        if tasks.count(tasks[0]) == most and lanes.count(lanes[0]) == most:
            return [self._group(tasks[0], lanes[0], attempts)]
        found: dict[tuple[Task[Any, Any] | None, int], list[Attempt]] = {}
        for attempt, task, lane in zip(attempts, tasks, lanes, strict=True):
            found.setdefault((task, lane), []).append(attempt)
        return [self._group(task, lane, group) for (task, lane), group in found.items()]

    def _group(self, task: Task[Any, Any] | None, lane: int, group: Sequence[Attempt]) -> Group:
        name = UNKNOWN if task is None else task.name
        return name, self._queues.get(lane, UNKNOWN), group

    def _waited(self, group: Sequence[Attempt], now: float) -> list[float]:
        """For how long those of them were due that were never claimed before. An id has the
        moment of its enqueue, by the database's clock; a job with a delay has its own in a header.
        """
        wall = now + self._clock_offset
        leases = [attempt.lease for attempt in group]
        new = [lease for lease in leases if lease.token == 1 or _is_first(lease)]
        waited = [
            wall - ((lease.job_id.int >> 80) / 1000 if lease.headers is None else _due(lease))
            for lease in new
        ]
        if waited and min(waited) < 0:  # the clocks differ by a little
            waited = [max(seconds, 0.0) for seconds in waited]
        return waited


def _times(group: Sequence[Attempt], now: float) -> tuple[list[float], float, float]:
    """How long each handler took; and for how long in all the jobs were in them, and here."""
    took: list[Any] = [attempt.took_seconds for attempt in group]
    try:
        inside = sum(took)
    except TypeError:  # some were never begun
        group = [attempt for attempt in group if attempt.took_seconds is not None]
        took = [attempt.took_seconds for attempt in group]
        inside = sum(took)
    here = now * len(group) - sum([attempt.claimed_at for attempt in group])
    return took, inside, max(here - inside, 0.0)


def _is_first(lease: Lease) -> bool:
    """Whether nobody has had it before: the first token of a job is 1, or its epoch's lowest."""
    if lease.token == 1:
        return True
    is_lowest = lease.token & _TOKEN_BITS == 0
    return is_lowest and lease.attempts == lease.crashes == lease.snoozes == 0


def _due(lease: Lease) -> float:
    """When the job was to run, by the database's clock."""
    headers = lease.headers
    due = headers.get(DUE_HEADER) if isinstance(headers, dict) else None
    if isinstance(due, int | float) and not isinstance(due, bool):
        return float(due)
    return (lease.job_id.int >> 80) / 1000


_tallies: weakref.WeakSet[Tally] = weakref.WeakSet()


def _after_fork() -> None:
    for tally in list(_tallies):
        tally.forget()


os.register_at_fork(after_in_child=_after_fork)
