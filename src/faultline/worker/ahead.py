"""How far a worker reads ahead, and which handlers are short.

Beside the jobs that run, it claims as many as it gets through in a moment, by the time that jobs
have taken lately: hundreds of short jobs, none of long ones; of those that share a task or a thread
fewer, since they run one after the other. What has waited for too long all the same, because a job
took longer than those before it, is handed back.

A job that kills its worker costs every job in that worker's hands a crash. The first time these may
be thousands; after that all of them are known, and a worker that is given one of them takes no more
than it has places for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MAX_CLAIM = 800  # jobs in one call: what that costs whatever is in it is theirs to share
CLAIM_A_SECOND = 400  # of the shortest lease among them: on a busy machine a call takes its time
MAX_ENDINGS, END_A_SECOND = 1000, 2000  # beside them
MOST = 3000  # nearly four claims: while three are under way, the jobs of another one run
AHEAD_SECONDS = 0.05  # a few claims, with room for a slow one
MANY = 750  # ahead: of fewer, a third is no claim worth its price
WAIT_SECONDS = 1.0  # and at most a quarter of the lease, for a place
SHORT_SECONDS = 0.0002  # below which a thread of its own costs more than the handler
SHORT_ALONE_SECONDS = 0.005  # where there is one place anyway: nothing is lost by sharing
_WEIGHT = 0.02  # of the latest job in a mean


class Ahead:
    """The mean times of the jobs of one worker, and what follows from them."""

    __slots__ = ("_mean", "_of_task", "_pace", "_places", "careful")

    def __init__(self, places: int) -> None:
        self._places = places
        self._mean: float | None = None  # of a job, unknown until one has ended
        self._pace = 0.0  # seconds from one to the next, where all places are taken
        self._of_task: dict[Any, float] = {}
        self.careful = False  # the last claim brought a job that has taken a worker with it

    def took(self, task: Any, seconds: float, jobs: int = 1, *, in_turn: bool = False) -> None:
        """So many jobs of this task have ended, after so long each; one after the other, or each in
        a place of its own."""
        weight = min(1.0, _WEIGHT * jobs)
        pace = seconds if in_turn else seconds / self._places
        self._pace = _nearer(None if self._mean is None else self._pace, pace, weight)
        self._mean = _nearer(self._mean, seconds, weight)
        self._of_task[task] = _nearer(self._of_task.get(task), seconds, weight)

    def waited(self, task: Any = None) -> None:
        """Something had to be handed back, behind a job of this task: forget what was measured."""
        self._mean = None
        self._of_task.pop(task, None)

    def is_short(self, task: Any) -> bool:
        """Whether its jobs are known to be."""
        limit = SHORT_SECONDS if self._places > 1 else SHORT_ALONE_SECONDS
        return self._of_task.get(task, limit) < limit

    def in_seconds(self, task: Any, seconds: float) -> int:
        """How many of its jobs take so long, one after the other; of short ones."""
        return int(seconds / max(self._of_task[task], 1e-6)) + 1

    @property
    def jobs(self) -> int:
        """How many may wait for a place."""
        if self._mean is None or self._mean > AHEAD_SECONDS or self.careful:
            return 0
        return min(MOST, int(AHEAD_SECONDS / max(self._pace, 1e-6)))

    @property
    def worth_a_claim(self) -> float:
        """How many there must be room for: a third of what may wait. Where that is few, two thirds:
        a claim costs as much as several jobs, and what is left still lasts for a slow one."""
        return self.jobs / 3 if self.jobs >= MANY else self.jobs * 2 / 3


def _nearer(mean: float | None, seconds: float, weight: float) -> float:
    return seconds if mean is None else mean + (seconds - mean) * weight


def most_in_a_call(lease_seconds: Sequence[float]) -> int:
    """How many jobs like these may be claimed in one: it has to be over long before their leases
    are."""
    return min(MAX_CLAIM, int(min(lease_seconds) * CLAIM_A_SECOND) + 1)


def ending_in_a_call(lease_seconds: Sequence[float]) -> int:
    """How many of these, from the first on, may be settled in one. More than may be claimed, so
    that those which wait become fewer also while all goes as fast as it can."""
    if len(lease_seconds) <= _may_end(min(lease_seconds)):
        return len(lease_seconds)
    shortest = lease_seconds[0]
    for count, seconds in enumerate(lease_seconds):
        shortest = min(shortest, seconds)
        if count >= _may_end(shortest):
            return count  # with this one they would be too many for it
    return len(lease_seconds)


def _may_end(lease_seconds: float) -> int:
    return min(MAX_ENDINGS, int(lease_seconds * END_A_SECOND) + 1)


def patience(lease_seconds: float) -> float:
    """How long a claimed job may wait for a place."""
    return min(WAIT_SECONDS, lease_seconds / 4)
