"""A job from outside: where it stands, what came of it, and please stop it.

A `Job` is an id and the app to ask; it holds no connection and nothing that goes stale. The plain
methods block, also inside an event loop; there, await their twins: astatus, aresult, acancel.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar
from uuid import UUID

from faultline.errors import JobCancelled, JobFailed, JobNotFound
from faultline.states import State

if TYPE_CHECKING:
    from faultline.jobs import Cancelled, Status
    from faultline.producer import Producer

R = TypeVar("R")
Verdict = Literal["cancelled", "requested", "finished"]

_FIRST_POLL_SECONDS = 0.02
_LAST_POLL_SECONDS = 1.0
_GROWTH = 1.5


class Job(Generic[R]):
    """One job; R is what its handler returns."""

    __slots__ = ("_load", "_producer", "id")

    def __init__(
        self, job_id: UUID, producer: Producer, load: Callable[[Any], Any] | None = None
    ) -> None:
        self.id = job_id
        self._producer = producer
        self._load = load

    def __repr__(self) -> str:
        return f"Job({self.id})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def status(self) -> Status:
        """Where the job stands; its result and error are as they are stored."""
        return self._found(self._producer.run(self._producer.verbs.status(self.id)))

    async def astatus(self) -> Status:
        """As `status`, for asyncio."""
        return self._found(await self._producer.arun(self._producer.verbs.status(self.id)))

    def result(self, timeout: float | None = None) -> R:
        """Wait for the end and answer with what the handler returned.

        Raises JobFailed, JobCancelled, or TimeoutError after so many seconds; the job goes on then.
        """
        for pause in self._pauses(timeout):
            status = self.status()
            if _has_ended(status):
                return self._outcome(status)
            time.sleep(pause)
        raise self._too_long(timeout)

    async def aresult(self, timeout: float | None = None) -> R:
        """As `result`, for asyncio."""
        import asyncio

        for pause in self._pauses(timeout):
            status = await self.astatus()
            if _has_ended(status):
                return self._outcome(status)
            await asyncio.sleep(pause)
        raise self._too_long(timeout)

    def cancel(self, reason: str | None = None) -> Verdict:
        """A waiting job ends as "cancelled"; a running one is asked to stop ("requested")."""
        return self._verdict(self._producer.run(self._producer.verbs.cancel([self.id], reason)))

    async def acancel(self, reason: str | None = None) -> Verdict:
        """As `cancel`, for asyncio."""
        call = self._producer.verbs.cancel([self.id], reason)
        return self._verdict(await self._producer.arun(call))

    def _found(self, status: Status | None) -> Status:
        if status is None:
            raise JobNotFound(self.id)
        return status

    def _verdict(self, answer: list[Cancelled]) -> Verdict:
        if not answer:
            raise JobNotFound(self.id)
        return answer[0].verdict

    def _outcome(self, status: Status) -> R:
        if status.state == State.CANCELLED:
            error = status.error if isinstance(status.error, dict) else {}
            raise JobCancelled(self.id, error.get("reason"))
        if status.state != State.SUCCEEDED:
            raise JobFailed(self.id, status.state, status.error)
        loaded: R = self._load(status.result) if self._load is not None else status.result
        return loaded

    def _pauses(self, timeout: float | None) -> Iterator[float]:
        """How long to wait after each look: longer and longer, and never past the timeout."""
        pause, waited_out = _FIRST_POLL_SECONDS, False
        deadline = None if timeout is None else time.monotonic() + timeout
        while not waited_out:
            left = pause if deadline is None else deadline - time.monotonic()
            waited_out = left <= 0
            yield max(0.0, min(pause, left))
            pause = min(pause * _GROWTH, _LAST_POLL_SECONDS)

    def _too_long(self, timeout: float | None) -> TimeoutError:
        return TimeoutError(f"job {self.id} has not ended within {timeout} s; it goes on")


def _has_ended(status: Status) -> bool:
    return status.state in _ENDED


_ENDED = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.QUARANTINED})
