"""Who is told of what is done, many at a time: metrics and traces hang here.

An `Emit` hears of what a person would want to read; an observer of everything, on the path of every
job. Its methods are called from any thread, never block and never fail. By itself it does nothing;
what is observed is in `faultline.telemetry`, which the app chooses and the worker never imports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from uuid import UUID

    from faultline.events import Event
    from faultline.jobs import Lane, Reclaimed, Reconciled, Stale
    from faultline.worker.attempt import Attempt
    from faultline.worker.endings import Ending


class Sending:
    """An enqueue under way, as its observer sees it."""

    headers: Mapping[str, Any] = {}  # shall travel with the jobs; nobody changes it

    def accepted(self, ids: Sequence[UUID]) -> None:
        """These are the jobs in force."""


_NOTHING: AbstractContextManager[Sending] = nullcontext(Sending())


class Trace(Protocol):
    """What an observer keeps with an attempt that it follows."""

    def running(self, attempt: Attempt) -> AbstractContextManager[None]:
        """Around the handler, in the handler's own context."""
        ...


@dataclass(frozen=True, slots=True)
class Standing:
    """How a worker stands, for who probes it; nothing is decided by it."""

    trouble: str | None = None  # why it cannot renew or claim, in a few words
    turned_at: float | None = None  # when its loop last turned, by the process's monotonic clock
    # The processes that speak for themselves, and when each was started, by that clock.
    children: Mapping[str, float] = field(default_factory=dict)


class Observer:
    """Is told, and does nothing about it."""

    def enqueueing(
        self,
        task: str,  # noqa: ARG002
        counts: Mapping[str, int],  # noqa: ARG002
    ) -> AbstractContextManager[Sending]:
        """Around an enqueue of so many jobs by queue."""
        return _NOTHING

    def headers(self) -> Mapping[str, Any]:
        """What shall travel with a job that is sent from here without an enqueue of its own."""
        return {}

    def called(self, verb: str, seconds: float, *, failed: bool) -> None:
        """The database was asked, and answered after so long, or did not."""

    def clock(self, database_seconds: float) -> None:
        """The database's clock says so many seconds since 1970, now."""

    def lanes(self, lanes: Sequence[Lane]) -> None:
        """Which numbers the lanes of the worker's queues have."""

    def claimed(self, attempts: Sequence[Attempt], sent: float) -> None:
        """These were claimed by a call that was sent at this moment and has just been answered; it
        may set their `trace`."""

    def adopted(self, attempts: Sequence[Attempt], sent: float) -> None:
        """These were claimed by another process and are this one's from now on; as `claimed`."""

    def settled(self, endings: Sequence[Ending], stale: Sequence[Stale]) -> None:
        """These attempts have ended: their endings were just written, but for the stale ones."""

    def renewed(self, attempts: Sequence[Attempt]) -> None:
        """These leases were extended."""

    def reconciled(self, done: Reconciled) -> None:
        """A round of the reconciler."""

    def reclaimed(self, taken: Sequence[Reclaimed]) -> None:
        """These leases were taken away from a process that is known to be dead."""

    def event(self, event: Event) -> None:
        """Something that is reported; here at once, and none is left out."""

    def flush(self) -> None:
        """The process is about to end without further notice: let out what is held back."""

    def working(self, worker: str, look: Callable[[], Mapping[str, Any]]) -> None:
        """A worker begins; how it stands (running, concurrency, draining) may be asked at any time,
        from any thread."""

    def standing(self, worker: str, look: Callable[[], Standing]) -> None:
        """A worker or reconciler begins, or a process of one job, or the parent of several; how it
        stands may be asked likewise."""

    def left(self, worker: str) -> None:
        """It has ended."""

    # A worker may have children that observe for themselves. What they have observed so far comes
    # as a line, again and again; the last one stands when the child is no more.

    def words(self) -> bytes:
        """All that was observed here so far, as a line for the process above."""
        return b"\n"

    def heard(self, child: str, line: bytes) -> None:
        """The words of a child."""

    def lost(self, child: str) -> None:
        """It has ended, and says no more."""


NOBODY = Observer()
