"""How an attempt ends, seen from the worker: one class an ending, each with its verb.

`ending_of` is the table that turns what a handler did into its ending. Nothing here runs a call.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from faultline import events
from faultline.call import Call, Row, to_json
from faultline.errors import InvalidArgument, StaleLease
from faultline.jobs import Reclaimed, Stale
from faultline.protocol import Protocol
from faultline.retry import Cancel, Retry, Snooze
from faultline.worker.attempt import Attempt

RESULT_LIMIT_BYTES = 1_048_576
MESSAGE_LIMIT = 2_000
TRACEBACK_LIMIT = 20_000


class Abandoned(Exception):
    """The handler did not stop when it was told to."""


@dataclass(frozen=True, slots=True, eq=False)
class Ending:
    """One attempt, ended. Endings of one `batch` can be written by one call."""

    outcome: ClassVar[str | None] = None  # what the database calls it, once it is written
    attempt: Attempt

    @property
    def batch(self) -> Any:
        """What has to be equal for two endings to share a call."""
        return type(self)

    def call(self, verbs: Protocol, batch: Sequence[Any]) -> Call[list[Stale]]:
        """The call that writes a batch; answers with what was refused."""
        raise NotImplementedError

    def event(self, worker: str, seconds: float) -> events.Event | None:
        """What to report once it is written."""
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Completed(Ending):
    """The handler returned."""

    outcome = "succeeded"
    result: Any
    size: int = 0  # of the result, roughly

    def call(self, verbs: Protocol, batch: Sequence[Completed]) -> Call[list[Stale]]:
        return verbs.complete(keys(batch), results(batch))

    def event(self, worker: str, seconds: float) -> events.Event:
        return events.JobCompleted(worker, *self.attempt.key, self.attempt.lease.task, seconds)


@dataclass(frozen=True, slots=True, eq=False)
class Failed(Ending):
    """The handler raised, or ran too long."""

    outcome = "failed"
    error: dict[str, str]
    delay_seconds: float | None = None
    dead: bool = False
    said: str | None = None  # instead of the message, where that quotes the payload

    def call(self, verbs: Protocol, batch: Sequence[Failed]) -> Call[list[Stale]]:
        return verbs.fail(
            keys(batch),
            [ending.error for ending in batch],
            delays=[ending.delay_seconds for ending in batch],
            dead=[ending.dead for ending in batch],
        )

    def event(self, worker: str, seconds: float) -> events.Event:
        kind = self.error["type"]
        message = self.said or self.error["message"].partition("\n")[0][:200]
        return events.JobFailed(
            worker, *self.attempt.key, self.attempt.lease.task, kind, message, seconds
        )


@dataclass(frozen=True, slots=True, eq=False)
class Snoozed(Ending):
    """The handler wants to be called again later."""

    outcome = "snoozed"
    seconds: float

    def call(self, verbs: Protocol, batch: Sequence[Snoozed]) -> Call[list[Stale]]:
        return verbs.snooze(keys(batch), [ending.seconds for ending in batch])

    def event(self, worker: str, seconds: float) -> events.Event:
        return events.JobSnoozed(worker, *self.attempt.key, self.attempt.lease.task, self.seconds)


@dataclass(frozen=True, slots=True, eq=False)
class Released(Ending):
    """The handler was stopped, or never begun: somebody else shall do it."""

    outcome = "released"
    reason: str

    def call(self, verbs: Protocol, batch: Sequence[Released]) -> Call[list[Stale]]:
        return verbs.release(keys(batch))

    def event(self, worker: str, seconds: float) -> events.Event:
        return events.JobReleased(worker, *self.attempt.key, self.attempt.lease.task, self.reason)


@dataclass(frozen=True, slots=True, eq=False)
class Cancelled(Ending):
    """The handler, or somebody outside, ends the job."""

    outcome = "cancelled"
    reason: str | None

    @property
    def batch(self) -> Any:
        return (Cancelled, self.reason)

    def call(self, verbs: Protocol, batch: Sequence[Cancelled]) -> Call[list[Stale]]:
        return verbs.cancel_attempt(keys(batch), self.reason)

    def event(self, worker: str, seconds: float) -> events.Event:
        return events.JobCancelled(worker, *self.attempt.key, self.attempt.lease.task, self.reason)


@dataclass(frozen=True, slots=True, eq=False)
class Refused(Ending):
    """The fence refused a write of the handler's own: the transaction that would have recorded it
    was rolled back, so it is recorded now."""

    operation: str

    @property
    def batch(self) -> Any:
        return self

    def call(self, verbs: Protocol, batch: Sequence[Refused]) -> Call[list[Stale]]:
        call = verbs.report_refusal(*self.attempt.key, self.operation)
        return _read_as(call, lambda rows: [Stale(*row) for row in rows])


@dataclass(frozen=True, slots=True, eq=False)
class Died(Ending):
    """The process that ran the job alone is dead: its lease ends now."""

    outcome = "expired"
    worker: str

    def call(self, verbs: Protocol, batch: Sequence[Died]) -> Call[list[Stale]]:
        call = verbs.reclaim_dead(self.worker, [ending.attempt.job_id for ending in batch])
        return _read_as(call, lambda _: [])


@dataclass(frozen=True, slots=True, eq=False)
class Gone(Ending):
    """Nothing to write: the database knows, or nobody here may say."""


def _read_as(call: Call[Any], read: Callable[[list[Row]], list[Stale]]) -> Call[list[Stale]]:
    return Call(call.schema, call.verb, call.statement, call.parameters, read)


def keys(batch: Sequence[Ending]) -> list[tuple[Any, int]]:
    """The attempts, as the verbs name them."""
    return [ending.attempt.key for ending in batch]


def results(batch: Sequence[Completed]) -> list[Any] | None:
    """Their results; None when there is none, which spares the server a JSON array."""
    values = [ending.result for ending in batch]
    return values if any(value is not None for value in values) else None


def ending_of(attempt: Attempt, raised: BaseException | None, returned: Any = None) -> Ending:
    """What the handler did, as an ending."""
    if raised is None:  # too late for its timeout is failed, whatever it returned
        return _stopped(attempt) if attempt.told == "timeout" else _returned(attempt, returned)
    match raised:
        case StaleLease() if (raised.job_id, raised.token) == attempt.key:
            return Refused(attempt, "handler")
        case Abandoned():
            return _stopped(attempt, still_running=True)
        case Snooze():
            return Snoozed(attempt, raised.seconds)
        case Cancel():
            return Cancelled(attempt, None if raised.reason is None else _clean(str(raised.reason)))
        case Retry():
            return Failed(attempt, describe(raised), raised.after)
        case asyncio.CancelledError() if attempt.told is not None:
            return _stopped(attempt)
        case _ if attempt.told in ("refused", "deadline", "shutdown"):
            return _stopped(attempt)  # it failed because it was stopped
    return Failed(attempt, describe(raised))


def _returned(attempt: Attempt, value: Any) -> Ending:
    """Also after it was told that its lease is lost: the database decides whether it was in
    time."""
    assert attempt.task is not None
    try:
        result = attempt.task.dump_result(value)
        text = "" if result is None else to_json(result, "result")
        if len(text) > RESULT_LIMIT_BYTES and len(text.encode()) > RESULT_LIMIT_BYTES:
            raise InvalidArgument(
                f"the result has more than {RESULT_LIMIT_BYTES} bytes: store it elsewhere and "
                "return a reference"
            )
    except InvalidArgument as error:
        # Trying again would do the work again and end in the same way.
        return Failed(attempt, describe(error), dead=True)
    return Completed(attempt, result, len(text))


def _stopped(attempt: Attempt, *, still_running: bool = False) -> Ending:
    """It was told to stop, and did, or was given up."""
    match attempt.told:
        case "timeout":
            assert attempt.task is not None
            seconds = attempt.task.timeout_seconds
            return Failed(
                attempt,
                {
                    "type": "TimeoutError",
                    "message": f"ran longer than its timeout of {seconds} s"
                    + (", and did not stop when told to" if still_running else ""),
                },
            )
        case "cancelled":
            return Cancelled(attempt, attempt.context.cancel_reason)
        case "shutdown":
            return Released(attempt, "shutdown")
        case "deadline" if not still_running:
            return Released(attempt, "deadline")
    return Gone(attempt)


def describe(error: BaseException) -> dict[str, str]:
    """The error as it is kept: type, message, where; cut to a size, and fit for JSON."""
    return {
        "type": type(error).__name__,
        "message": _clean(_said(lambda: str(error)))[:MESSAGE_LIMIT],
        "traceback": _clean(_said(lambda: "".join(traceback.format_exception(error))))[
            -TRACEBACK_LIMIT:
        ],
    }


def _said(say: Callable[[], str]) -> str:
    """What an error says of itself, if it can: its `__str__` is the user's code."""
    try:
        return say()
    except Exception:
        return "(it cannot be shown)"


def _clean(text: str) -> str:
    return text.replace("\0", "").encode(errors="replace").decode()


def reclaimed_events(worker: str, taken: Sequence[Reclaimed]) -> list[events.Event]:
    """What to report of leases that were taken away from others."""
    found: list[events.Event] = []
    for item in taken:
        found.append(events.LeaseReclaimed(worker, item.job_id, item.token, item.worker))
        if item.state == "quarantined":
            found.append(events.JobQuarantined(worker, item.job_id, item.token, item.crashes))
    return found
