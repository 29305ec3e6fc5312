"""Which jobs there are, which of them are hit, by what and where: all of it from a seed."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any, Literal

What = Literal["SIGSTOP", "SIGKILL", "disconnect"]
Point = Literal["before_write", "before_commit"]

LEASE_SECONDS = 1.0
# Half of the faults are stalls; each kind comes at each point. After its commit a handler has
# nothing left that a fault could hit: with both queues the job is completed by that very commit.
DECK: tuple[tuple[What, Point], ...] = (
    ("SIGSTOP", "before_write"),
    ("SIGKILL", "before_write"),
    ("SIGSTOP", "before_commit"),
    ("disconnect", "before_commit"),
    ("SIGSTOP", "before_commit"),
    ("SIGKILL", "before_commit"),
    ("SIGSTOP", "before_write"),
    ("disconnect", "before_write"),
)
SHORTEST_STALL, LONGEST_STALL = 1.5 * LEASE_SECONDS, 2.5 * LEASE_SECONDS
SHORTEST_WORK, LONGEST_WORK = 0.02, 0.08


@dataclass(frozen=True)
class Fault:
    """What is going to hit the worker that first comes to this point of this job."""

    job: int
    what: What
    point: Point
    stall_seconds: float | None = None


@dataclass(frozen=True)
class Schedule:
    """One run: how long each job works, and the faults."""

    seed: str
    fault_rate: float
    work_seconds: tuple[float, ...]
    faults: tuple[Fault, ...]

    def __len__(self) -> int:
        return len(self.work_seconds)

    def payloads(self, run: str) -> list[dict[str, Any]]:
        """The jobs as they are enqueued; a job does not know what will hit it, only where."""
        points = {fault.job: fault.point for fault in self.faults}
        return [
            {"run": run, "job": job, "work_seconds": seconds, "point": points.get(job)}
            for job, seconds in enumerate(self.work_seconds)
        ]

    def listed(self) -> list[dict[str, Any]]:
        """The faults, for the record."""
        return [asdict(fault) for fault in self.faults]


def plan(seed: int, fault_rate: float, jobs: int) -> Schedule:
    """The same for the same arguments, for ever."""
    name = f"{seed}:{fault_rate:g}:{jobs}"
    dice = random.Random(name)  # noqa: S311 - nothing secret
    work = tuple(round(dice.uniform(SHORTEST_WORK, LONGEST_WORK), 4) for _ in range(jobs))
    hit = sorted(dice.sample(range(jobs), round(jobs * fault_rate)))
    dealt = [DECK[n % len(DECK)] for n in range(len(hit))]
    dice.shuffle(dealt)
    faults = []
    for job, (what, point) in zip(hit, dealt, strict=True):
        stall = round(dice.uniform(SHORTEST_STALL, LONGEST_STALL), 3)
        faults.append(Fault(job, what, point, stall if what == "SIGSTOP" else None))
    return Schedule(name, fault_rate, work, tuple(faults))
