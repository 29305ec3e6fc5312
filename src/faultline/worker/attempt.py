"""An attempt in a worker's hands, and all of them together.

An attempt has a deadline of its own, by this process's monotonic clock: the moment its last claim
or renewal was *sent*, plus the lease, minus a margin. The database counts from a later moment, so
past the deadline nobody can have taken over yet: it is when the worker stops the handler itself.
It decides nothing else; whether a write is accepted, the database says.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from faultline.context import Context, Means
from faultline.jobs import Lease
from faultline.observer import Trace

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
OVERDUE = 0.4  # of the lease before the deadline: by then a renewal, and a second try, was due
ABANDON_SECONDS = 5.0  # how long a handler that was told to stop may take


class Attempt:
    """One claimed job, from its claim until its ending is in the database."""

    # What most attempts never change stands in the class: a worker makes 100,000 of them a second.
    _context: Context | None = None
    placed = False  # it has one of the worker's places
    shares = False  # its task or thread with others, one after the other
    begun = False  # not while it waits, for a place or in a shared thread
    entered = False  # its handler has been called
    told: Told | None = None
    reason = ""  # for which it was told
    abandon_at: float | None = None
    done = False  # the handler has ended, or was given up
    apart = False  # runs, or is going to run, in a process of its own
    alone = False  # which now also keeps its lease
    over = False  # its thread has ended; the loop may not know yet
    took_seconds: float | None = None  # its handler, once that has ended
    trace: Trace | None = None  # the observer's, of one that it follows
    left_behind = False  # its thread was given up
    lost = False  # the database said so: its lease cannot be renewed any more
    interrupt: Callable[[Attempt], None] | None = None
    running: asyncio.Task[Any] | None = None  # of an async handler
    report: Any = None
    held = 0  # transactions in which a renewal would do harm
    held_at = 0.0  # when the last of them began

    def __init__(
        self,
        lease: Lease,
        task: Task[Any, Any] | None,
        sent: float,
        means: Means | None = None,
    ) -> None:
        self.lease = lease
        self.task = task
        self.means = means
        self.claimed_at = self.started_at = sent
        self.kept(sent)

    @property
    def context(self) -> Context:
        """What its handler gets; made when somebody asks for it."""
        if self._context is None:
            lease = self.lease
            self._context = Context(
                lease.job_id,
                lease.token,
                attempt=lease.attempts + 1,
                task=lease.task,
                headers=lease.headers,
                attempt_of=self,
                means=self.means,
            )
            if self.told is not None:  # by the keeper's thread, which found none to tell
                self._tell_context()
        return self._context

    @property
    def is_usual(self) -> bool:
        """Whether nothing has happened to it but that it was run."""
        return self.told is None and self._context is None

    @property
    def has_ended_itself(self) -> bool:
        """Whether a commit of its own has ended the job."""
        return self._context is not None and self._context._completed is not None

    @property
    def is_ending_itself(self) -> bool:
        """Whether one is just about to, or has."""
        return self._context is not None and self._context._is_ending()

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
        return self.lease[:2]  # a lease is a tuple that begins with them

    @property
    def overdue_at(self) -> float:
        """From when on its lease should have been renewed; to be told, not to be acted upon."""
        return self.deadline - OVERDUE * self.lease.lease_seconds

    @property
    def timeout_at(self) -> float | None:
        """When its task's timeout is over; None while it has none or has not begun."""
        seconds = self.task.timeout_seconds if self.task is not None and self.begun else None
        return None if seconds is None else self.started_at + seconds

    @property
    def timeout_at_least(self) -> float:
        """Not before this moment, whenever it begins."""
        seconds = self.task.timeout_seconds if self.task is not None else None
        return math.inf if seconds is None else self.started_at + seconds

    def kept(self, sent: float) -> None:
        """The lease was given or renewed by a call that was sent at this moment."""
        seconds = self.lease.lease_seconds
        margin = seconds * MARGIN
        self.deadline = sent + seconds - (margin if margin < MARGIN_SECONDS else MARGIN_SECONDS)
        self.renew_at = sent + seconds / 3

    def tell(self, why: Told, reason: str | None = None) -> bool:
        """Tell the handler to stop; False if it has ended or was told before."""
        if self.done or self.told is not None:
            return False
        self.reason = reason or WORDS[why]
        self.told = why
        self.abandon_at = time.monotonic() + ABANDON_SECONDS
        if self._context is not None:
            self._tell_context()
        if self.interrupt is not None:
            self.interrupt(self)
        return True

    def _tell_context(self) -> None:
        assert self._context is not None
        self._context._tell(self.reason, sever=self.told in ("refused", "deadline"))

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
        self._attempts: set[Attempt] = set()
        self._lock = threading.Lock()

    def take(self, attempts: Iterable[Attempt]) -> None:
        """These are ours now."""
        with self._lock:
            self._attempts.update(attempts)

    def drop(self, attempts: Iterable[Attempt]) -> None:
        """Their endings are in the database, or they are lost."""
        with self._lock:
            self._attempts.difference_update(attempts)

    def all(self) -> list[Attempt]:
        """A copy, to be looked at in peace."""
        with self._lock:
            return list(self._attempts)

    def of(self, job_id: UUID) -> list[Attempt]:
        """The attempts of one job; two, when a lost one has not ended yet."""
        return [attempt for attempt in self.all() if attempt.job_id == job_id]

    def __len__(self) -> int:
        return len(self._attempts)
