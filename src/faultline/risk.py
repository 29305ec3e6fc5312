"""How likely is it that a worker writes too late, just now? Signs that are seen, scored; pure.

Each sign has points, up to its own maximum; their sum, at most 100, is the score: from 20 on the
risk is medium, from 60 on high. No sign means that a stale write gets through: the database refuses
it. They mean that attempts are being lost, or may soon be.

docs/how-to/http-api.md has the table of signs; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from faultline.beats import SILENT_SECONDS

Level = Literal["low", "medium", "high"]
Record = Mapping[str, Any]

MEDIUM, HIGH = 20, 60
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Limits:
    """From when on something is a sign. A worker renews after a third of the lease."""

    near_expiry: float = 0.25
    """Of a lease that is left."""
    overdue: float = 0.5
    """Of a lease that is left, when a renewal is overdue by a sixth of it."""
    silent_seconds: float = SILENT_SECONDS
    clock_seconds: float = 5.0
    recent_seconds: float = 600.0
    """For refusals and quarantines."""
    loop_crashes: int = 2
    """Leases that a running job has lost. One is what any killed worker leaves behind."""
    dead_rows: int = 50_000
    dead_per_live: int = 5
    pinned_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease, at the moment of looking."""

    job_id: str
    worker: str
    remaining_seconds: float
    lease_seconds: float
    held_seconds: float
    crashes: int


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker, as it was last heard of."""

    name: str
    silent_seconds: float
    clock_difference_seconds: float
    leases: int


@dataclass(frozen=True, slots=True)
class Observations:
    """All that is looked at. Lists may be cut short: beyond its maximum a sign has no points."""

    leases: Sequence[Lease] = ()
    workers: Sequence[Worker] = ()
    refusals: Sequence[str] = ()
    """The jobs of recent refusals."""
    quarantined: Sequence[str] = ()
    """Jobs that were recently parked because they crash."""
    dead_tables: Sequence[tuple[str, int, int]] = ()
    """Busy tables: dead and live rows."""
    pins: Sequence[str] = ()
    asynchronous_standbys: int = 0
    unseen: Sequence[str] = ()
    """What the login may not look at."""


@dataclass(frozen=True, slots=True)
class Sign:
    """One reason, with the points that it is worth and what to do about it."""

    sign: str
    points: int
    count: int
    what: str
    do: str
    examples: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Risk:
    """The answer."""

    stale_risk: Level
    score: int
    active_workers: int
    reasons: Sequence[Sign]
    unseen: Sequence[str] = field(default=())


@dataclass(frozen=True, slots=True)
class _Rule:
    """Points for the first of a kind, for each further one, and at most."""

    first: int
    each: int
    most: int
    what: str
    do: str

    def sign(self, name: str, found: Sequence[str]) -> Sign:
        points = min(self.first + self.each * (len(found) - 1), self.most)
        return Sign(name, points, len(found), self.what, self.do, tuple(found[:_NAMED]))


RULES: dict[str, _Rule] = {
    "expired_leases": _Rule(
        *(40, 5, 60),
        "leases have expired and nobody has taken them over: their workers are gone or stalled",
        "start a worker, or run faultline reconcile: workers do it by themselves",
    ),
    "missed_renewals": _Rule(
        *(30, 10, 50),
        "workers hold leases and have not renewed them or been heard of in time",
        "look whether they are stopped, starved or cut off from the database",
    ),
    "near_expiry": _Rule(
        *(20, 2, 40),
        "leases are about to expire unrenewed",
        "look at their workers; the jobs will be taken over",
    ),
    "recent_refusals": _Rule(
        *(20, 1, 40),
        "workers came back late in the last minutes, and the database refused what they wrote",
        "see GET /api/refusals; longer leases or steadier workers would save the lost work",
    ),
    "crash_loops": _Rule(
        *(20, 10, 40),
        "jobs have lost their lease again and again, or were just parked for it",
        "see faultline jobs show, and mend the handler before you requeue them",
    ),
    "dead_rows": _Rule(
        *(20, 0, 20),
        "busy tables are full of dead rows: claims and renewals get slower",
        "end what pins them and vacuum; or faultline.compact()",
    ),
    "pinned_snapshots": _Rule(
        *(20, 0, 20),
        "a transaction stays open, so that vacuum can remove nothing newer",
        "end it: select pg_terminate_backend(pid), rollback prepared, or drop the slot",
    ),
    "slow_handlers": _Rule(
        *(2, 1, 10),
        "handlers run for longer than their lease: they live by its renewal",
        "nothing, if they are meant to; a longer lease_seconds makes a pause harmless",
    ),
    "clock_difference": _Rule(
        *(5, 5, 15),
        "the clocks of workers differ from the database's: leases do not mind, logs and run_at do",
        "keep them with NTP",
    ),
    "asynchronous_standby": _Rule(
        *(5, 0, 5),
        "a failover may lose the last acknowledged completions; those jobs run again",
        "set synchronous_standby_names, if that matters to you",
    ),
}


def assess(seen: Observations, limits: Limits | None = None) -> Risk:
    """Score what is seen."""
    limits = limits or Limits()
    signs = [
        RULES[name].sign(name, found)
        for name, look in _LOOKS.items()
        if (found := list(look(seen, limits)))
    ]
    signs.sort(key=lambda sign: -sign.points)
    score = min(sum(sign.points for sign in signs), 100)
    level: Level = "high" if score >= HIGH else "medium" if score >= MEDIUM else "low"
    active = sum(not _is_silent(worker, limits) for worker in seen.workers)
    return Risk(level, score, active, signs, seen.unseen)


def _is_silent(worker: Worker, limits: Limits) -> bool:
    return worker.silent_seconds > limits.silent_seconds


def _left(lease: Lease) -> float:
    return lease.remaining_seconds / lease.lease_seconds


def _missed(seen: Observations, limits: Limits) -> Iterator[str]:
    late = {lease.worker for lease in seen.leases if _left(lease) < limits.overdue}
    late |= {w.name for w in seen.workers if w.leases and _is_silent(w, limits)}
    yield from sorted(late)


def _dead(seen: Observations, limits: Limits) -> Iterator[str]:
    for table, dead, live in seen.dead_tables:
        if dead > max(limits.dead_rows, limits.dead_per_live * live):
            yield f"{table}: {dead:,} dead rows, {live:,} live"


_LOOKS: dict[str, Callable[[Observations, Limits], Iterator[str]]] = {
    "expired_leases": lambda seen, _: (x.job_id for x in seen.leases if x.remaining_seconds <= 0),
    "missed_renewals": _missed,
    "near_expiry": lambda seen, limits: (
        lease.job_id for lease in seen.leases if 0 < _left(lease) < limits.near_expiry
    ),
    "recent_refusals": lambda seen, _: iter(seen.refusals),
    "crash_loops": lambda seen, limits: iter(
        [
            *(lease.job_id for lease in seen.leases if lease.crashes >= limits.loop_crashes),
            *seen.quarantined,
        ]
    ),
    "slow_handlers": lambda seen, _: (
        lease.job_id for lease in seen.leases if lease.held_seconds > lease.lease_seconds
    ),
    "clock_difference": lambda seen, limits: (
        f"{worker.name}: {worker.clock_difference_seconds:+.1f} s"
        for worker in seen.workers
        if abs(worker.clock_difference_seconds) > limits.clock_seconds
    ),
    "dead_rows": _dead,
    "pinned_snapshots": lambda seen, _: iter(seen.pins),
    "asynchronous_standby": lambda seen, _: iter(
        [f"{seen.asynchronous_standbys} asynchronous"] if seen.asynchronous_standbys else []
    ),
}
