"""How an attempt ends, seen from the worker: one class an ending, each with its verb.

`ending_of` is the table that turns what a handler did into its ending. Nothing here runs a call.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from faultline import events
from faultline.call import Call, Row, reported
from faultline.errors import InvalidArgument, StaleLease, from_sqlstate
from faultline.jobs import Reclaimed, Stale
from faultline.protocol import Protocol
from faultline.retry import Cancel, Retry, Snooze
from faultline.worker.attempt import Attempt

MESSAGE_LIMIT = 2_000
TRACEBACK_LIMIT = 20_000


class Unstorable(Exception):
    """What a transactional handler returned cannot be stored; its cause says why."""


class Abandoned(Exception):
    """The handler did not stop when it was told to."""


@dataclass(slots=True, eq=False)
class Ending:
    """One attempt, ended. Endings of one `batch` can be written by one call."""

    outcome: ClassVar[str | None] = None  # what the database calls it, once it is written
    is_last: ClassVar[bool] = True  # nothing remains to be written for this attempt
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


@dataclass(slots=True, eq=False)
class Completed(Ending):
    """The handler returned."""

    outcome = "succeeded"
    result: Any
    size: int = 0  # of the result, roughly

    def call(self, verbs: Protocol, batch: Sequence[Completed]) -> Call[list[Stale]]:
        return verbs.complete(keys(batch), results(batch))

    def event(self, worker: str, seconds: float) -> events.Event:
        return events.JobCompleted(worker, *self.attempt.key, self.attempt.lease.task, seconds)


@dataclass(slots=True, eq=False)
class Failed(Ending):
    """The handler raised, or ran too long."""

    outcome = "failed"
    error: dict[str, str]
    delay_seconds: float | None = None
    dead: bool = False
    said: str | None = None  # instead of the message, where that quotes the payload
    final: bool | None = None  # whether the job has ended with it, once the database has said so

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
            worker, *self.attempt.key, self.attempt.lease.task, kind, message, seconds, self.final
        )


@dataclass(slots=True, eq=False)
class Snoozed(Ending):
    """The handler wants to be called again later."""

    outcome = "snoozed"
    seconds: float

    def call(self, verbs: Protocol, batch: Sequence[Snoozed]) -> Call[list[Stale]]:
        return verbs.snooze(keys(batch), [ending.seconds for ending in batch])

    def event(self, worker: str, seconds: float) -> events.Event:
        return events.JobSnoozed(worker, *self.attempt.key, self.attempt.lease.task, self.seconds)


@dataclass(slots=True, eq=False)
class Declined(Ending):
    """This worker has no handler for the job's task. The database chooses the pause."""

    outcome = "snoozed"

    def call(self, verbs: Protocol, batch: Sequence[Declined]) -> Call[list[Stale]]:
        return verbs.decline(keys(batch))

    def event(self, worker: str, seconds: float) -> events.Event:
        return events.JobDeclined(worker, *self.attempt.key, self.attempt.lease.task)


@dataclass(slots=True, eq=False)
class Released(Ending):
    """The handler was stopped, or never begun: somebody else shall do it."""

    outcome = "released"
    reason: str

    def call(self, verbs: Protocol, batch: Sequence[Released]) -> Call[list[Stale]]:
        return verbs.release(keys(batch))

    def event(self, worker: str, seconds: float) -> events.Event:
        return events.JobReleased(worker, *self.attempt.key, self.attempt.lease.task, self.reason)


@dataclass(slots=True, eq=False)
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


@dataclass(slots=True, eq=False)
class Late(Ending):
    """The fence refused a write of a handler that had been given up: the transaction that would
    have recorded it was rolled back, so it is recorded now. Its ending is another."""

    is_last = False
    operation: str

    @property
    def batch(self) -> Any:
        return self

    def call(self, verbs: Protocol, batch: Sequence[Late]) -> Call[list[Stale]]:
        operation = self.operation[:100] or "unknown"  # whatever a sink of the user's calls it
        call = verbs.report_refusal(*self.attempt.key, operation)
        return _read_as(call, lambda rows: [Stale(*row) for row in rows])


@dataclass(slots=True, eq=False)
class Refused(Late):
    """The fence refused a write of the handler's own, which ended with that. If the database knows
    better and the lease is alive, somebody else refused: then it has failed like any other."""

    is_last = True
    error: dict[str, str]


@dataclass(slots=True, eq=False)
class Settled(Ending):
    """The handler ended its job itself, in a commit of its own: nothing to write."""

    outcome = "succeeded"

    def event(self, worker: str, seconds: float) -> events.Event:
        return events.JobCompleted(worker, *self.attempt.key, self.attempt.lease.task, seconds)


@dataclass(slots=True, eq=False)
class Unsure(Settled):
    """It may have: the answer to its COMMIT was lost, or has not come yet. To be looked up, for as
    long as it is under way, and else ended so."""

    otherwise: Ending

    @property
    def is_open(self) -> bool:
        """Whether that COMMIT is still under way; nobody else may end the attempt meanwhile."""
        return bool(self.attempt.context._closing)


@dataclass(slots=True, eq=False)
class Died(Ending):
    """The process that ran the job alone is dead: its lease ends now."""

    outcome = "expired"
    worker: str
    taken: Sequence[Reclaimed] = ()  # what became of it, once that is written

    @property
    def batch(self) -> Any:
        return self

    def call(self, verbs: Protocol, batch: Sequence[Died]) -> Call[list[Stale]]:
        call = verbs.reclaim_dead(self.worker, [self.attempt.job_id])

        def read(rows: list[Row]) -> list[Stale]:
            self.taken = call.read(rows)
            return []

        return _read_as(call, read)


@dataclass(slots=True, eq=False)
class Gone(Ending):
    """Nothing to write: the database knows, or nobody here may say."""


def _read_as(call: Call[Any], read: Callable[[list[Row]], list[Stale]]) -> Call[list[Stale]]:
    return Call(call.schema, call.verb, call.statement, call.parameters, read)


def keys(batch: Sequence[Ending]) -> list[Any]:
    """The attempts, as the verbs name them: by tuples that begin with id and token."""
    return [ending.attempt.lease for ending in batch]


def results(batch: Sequence[Completed]) -> list[Any] | None:
    """Their results; None when there is none, which spares the server a JSON array."""
    values = [ending.result for ending in batch]
    return None if values.count(None) == len(values) else values


def ending_of(attempt: Attempt, raised: BaseException | None, returned: Any = None) -> Ending:
    """What the handler did, as an ending."""
    if attempt.has_ended_itself:
        return Settled(attempt)
    ending = _ending_of(attempt, raised, returned)
    # Still closing: the handler was given up in the middle of the COMMIT that ends its job.
    context = attempt._context
    unsure = context is not None and (context._unsure or context._closing)
    return Unsure(attempt, ending) if unsure else ending


def second_ending(attempt: Attempt, raised: BaseException | None, returned: Any) -> str | None:
    """What a handler said about its job's end after it had completed it; None if nothing new."""
    if attempt._context is None or attempt._context._completed is None:
        return None
    if raised is not None:
        return None if attempt.told is not None else f"raised {type(raised).__name__}"
    (result,) = attempt._context._completed
    assert attempt.task is not None
    with suppress(InvalidArgument):  # no JSON: not the same, then
        if returned is None or attempt.task.dump_result(returned)[0] == result:
            return None
    return "returned another result"


def _ending_of(attempt: Attempt, raised: BaseException | None, returned: Any) -> Ending:
    if raised is None:  # too late for its timeout is failed, whatever it returned
        return _stopped(attempt) if attempt.told == "timeout" else _returned(attempt, returned)
    if (stale := refusal_of(attempt, raised)) is not None:
        return Refused(attempt, stale.operation, describe(raised))
    match raised:
        case Unstorable():  # trying again would end in the same way
            return Failed(attempt, describe(raised.__cause__ or raised), dead=True)
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


def late_refusal(attempt: Attempt, raised: BaseException | None) -> Late | None:
    """What a handler that was given up still has to say: that the fence refused it."""
    stale = None if raised is None else refusal_of(attempt, raised)
    return None if stale is None else Late(attempt, stale.operation)


def refusal_of(attempt: Attempt, raised: BaseException) -> StaleLease | None:
    """The refusal of this very attempt, if that is what was raised."""
    stale = raised if isinstance(raised, StaleLease) else _stale_in(raised)
    mine = stale is not None and (stale.job_id, stale.token) == attempt.key
    return stale if mine else None


def _stale_in(error: BaseException) -> StaleLease | None:
    """The refusal, where a driver's own error carries it: a COMMIT on the handler's connection."""
    code, message, detail = reported(error)
    found = from_sqlstate(code, message, detail) if code == "LF001" else None
    return found if isinstance(found, StaleLease) else None


def _returned(attempt: Attempt, value: Any) -> Ending:
    """Also after it was told that its lease is lost: the database decides whether it was in
    time."""
    assert attempt.task is not None
    try:
        result, size = attempt.task.dump_result(value)
    except InvalidArgument as error:
        # Trying again would do the work again and end in the same way.
        return Failed(attempt, describe(error), dead=True)
    return Completed(attempt, result, size)


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
