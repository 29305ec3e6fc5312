"""An attempt in a worker's hands, and all of them together.

An attempt has a deadline of its own, by this process's monotonic clock: the moment its last claim
or renewal was *sent*, plus the lease, minus a margin. The database counts from a later moment, so
past the deadline nobody can have taken over yet: it is when the worker stops the handler itself.
It decides nothing else; whether a write is accepted, the database says.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from faultline.context import Context, Means
from faultline.jobs import Lease

if TYPE_CHECKING:
    from faultline.task import Task

# Why a handler was told to stop. `refused`: the database said that the lease is lost; `deadline`:
# it may be lost before another renewal succeeds.
Told = Literal["refused", "deadline", "timeout", "cancelled", "shutdown"]

# What a handler reads in ctx.cancel_reason, where nobody gave one.
WORDS: dict[Told, str] = {
    "refused": "lease lost",
    "deadline": "lease lost",
    "timeout": "timeout",
    "cancelled": "cancelled",
    "shutdown": "shutdown",
}
MARGIN = 0.1  # of the lease, and at most
MARGIN_SECONDS = 1.0
ABANDON_SECONDS = 5.0  # how long a handler that was told to stop may take


class Attempt:
    """One claimed job, from its claim until its ending is in the database."""

    __slots__ = (
        "abandon_at",
        "alone",
        "apart",
        "context",
        "deadline",
        "done",
        "held",
        "held_at",
        "interrupt",
        "lease",
        "left_behind",
        "lost",
        "over",
        "renew_at",
        "report",
        "running",
        "started_at",
        "task",
        "told",
    )

    def __init__(
        self,
        lease: Lease,
        task: Task[Any, Any] | None,
        sent: float,
        means: Means | None = None,
    ) -> None:
        self.lease = lease
        self.task = task
        self.context = Context(
            lease.job_id,
            lease.token,
            attempt=lease.attempts + 1,
            task=lease.task,
            headers=lease.headers,
            attempt_of=self,
            means=means,
        )
        self.started_at = sent
        self.told: Told | None = None
        self.abandon_at: float | None = None
        self.done = False  # the handler has ended, or was given up
        self.apart = False  # runs, or is going to run, in a process of its own
        self.alone = False  # which now also keeps its lease
        self.over = False  # its thread has ended; the loop may not know yet
        self.left_behind = False  # its thread was given up
        self.lost = False  # the database said so: its lease cannot be renewed any more
        self.interrupt: Callable[[], None] | None = None
        self.running: asyncio.Task[Any] | None = None  # of an async handler
        self.report: Any = None
        self.held = 0  # transactions in which a renewal would do harm
        self.held_at = sent
        self.kept(sent)

    @property
    def job_id(self) -> UUID:
        """The job's id."""
        return self.lease.job_id

    @property
    def token(self) -> int:
        """Under which the attempt may end."""
        return self.lease.token

    @property
    def key(self) -> tuple[UUID, int]:
        """As the verbs name an attempt."""
        return (self.lease.job_id, self.lease.token)

    @property
    def timeout_at(self) -> float | None:
        """When its task's timeout is over; None while it has none or has not begun."""
        seconds = self.task.timeout_seconds if self.task is not None else None
        return None if seconds is None else self.started_at + seconds

    def kept(self, sent: float) -> None:
        """The lease was given or renewed by a call that was sent at this moment."""
        seconds = self.lease.lease_seconds
        self.deadline = sent + seconds - min(seconds * MARGIN, MARGIN_SECONDS)
        self.renew_at = sent + seconds / 3

    def tell(self, why: Told, reason: str | None = None) -> bool:
        """Tell the handler to stop; False if it has ended or was told before."""
        if self.done or self.told is not None:
            return False
        self.told = why
        self.abandon_at = time.monotonic() + ABANDON_SECONDS
        self.context._tell(reason or WORDS[why], sever=why in ("refused", "deadline"))
        if self.interrupt is not None:
            self.interrupt()
        return True

    # ── what its context says ────────────────────────────────────────────────────────────────────

    def reported(self, report: Any) -> None:
        """The handler says how far it is."""
        self.report = (report,)  # a tuple, because None is a report too

    def hold(self) -> None:
        """Its transaction renews the lease itself now, and nobody else while it is open."""
        self.held += 1
        self.held_at = time.monotonic()

    def renewed(self) -> None:
        """It has."""
        self.kept(self.held_at)

    def let_go(self) -> None:
        """That transaction has ended."""
        self.held -= 1

    def dumped(self, result: Any) -> Any:
        """A result as it is stored, or InvalidArgument."""
        assert self.task is not None
        return self.task.dump_result(result)[0]


class Hands:
    """All attempts of a worker, seen by the event loop and by the keeper's thread."""

    def __init__(self) -> None:
        self._attempts: dict[tuple[UUID, int], Attempt] = {}
        self._lock = threading.Lock()

    def take(self, attempts: Iterable[Attempt]) -> None:
        """These are ours now."""
        with self._lock:
            self._attempts.update((attempt.key, attempt) for attempt in attempts)

    def drop(self, attempt: Attempt) -> None:
        """Its ending is in the database, or it is lost."""
        with self._lock:
            self._attempts.pop(attempt.key, None)

    def all(self) -> list[Attempt]:
        """A copy, to be looked at in peace."""
        with self._lock:
            return list(self._attempts.values())

    def of(self, job_id: UUID) -> list[Attempt]:
        """The attempts of one job; two, when a lost one has not ended yet."""
        return [attempt for attempt in self.all() if attempt.job_id == job_id]

    def __len__(self) -> int:
        return len(self._attempts)
