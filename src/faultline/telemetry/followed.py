"""One attempt that is followed: what is kept of it between its spans, and how they end.

`receive` is made only when the handler begins: what is handed back unbegun was never received by
anybody. `settle` is made when the ending is written, with the moment at which the handler ended as
its beginning. What happens to the attempt is noted in `process`, or in `settle` if that has ended.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Link, Span, Status, StatusCode

from faultline.errors import StaleLease
from faultline.events import StaleWriteBlocked, UnknownTask
from faultline.retry import Cancel, Snooze
from faultline.telemetry import conventions as names
from faultline.telemetry.careful import careful
from faultline.worker.endings import (
    Declined,
    Died,
    Failed,
    Released,
    Snoozed,
    Unstorable,
    describe,
    refusal_of,
)

if TYPE_CHECKING:
    from faultline.jobs import Stale
    from faultline.telemetry.spans import Spans
    from faultline.worker.attempt import Attempt
    from faultline.worker.endings import Ending

_lock = threading.Lock()  # the keeper notes what happens while a handler ends


class Followed:
    """The trace of one attempt. It does not refer to its attempt, which refers to it."""

    # What most of them never change stands in the class.
    _attributes: dict[str, Any] | None = None
    _parent: Context | None = None
    _links: Sequence[Link] = ()
    _process: Span | None = None  # while it is open
    _has_begun = False
    _is_recorded = True
    _is_settled = False
    _has_ended_itself = False
    _has_told = False  # of the refusal with which the handler ended
    _notes: Sequence[tuple[str, Mapping[str, Any], int]] = ()

    def __init__(
        self,
        spans: Spans,
        attempt: Attempt,
        queue: str | None,
        *,
        carries: bool,
        sent_at: int,
        answered_at: int,
    ) -> None:
        self._spans = spans
        self._lease = attempt.lease
        self._carries = carries  # a context, in its headers
        self._worker = attempt.means.worker if attempt.means is not None else ""
        self._queue = queue
        self._sent_at = sent_at
        self._answered_at = self._ended_at = answered_at

    def running(self, attempt: Attempt) -> _Running:
        """Around the handler."""
        return _Running(self, attempt)

    def begin(self, attempt: Attempt) -> Context:
        """The handler begins: what is to be its context. Its own span decides about the others."""
        parent = self._find_parent()
        if not self._spans.are_made:
            self._is_recorded = False
            return parent
        self._has_begun = True
        process = self._start(names.PROCESS, self._lease.task)
        context = trace.set_span_in_context(process, parent)
        self._is_recorded = process.is_recording()
        if self._is_recorded:
            if not self._links:  # its sender has no trace: this is where it begins
                self._parent = context
            self._start(names.RECEIVE, self._queue, self._sent_at).end(self._answered_at)
            self._process = process
            self._spans.follow(attempt.key, self)
        return context

    def end(self, attempt: Attempt, raised: BaseException | None) -> None:
        """The handler has ended."""
        process = self._close()
        self._has_ended_itself = attempt.has_ended_itself
        if process is None:
            return
        if attempt.told is not None:
            process.set_attribute(names.TOLD, attempt.told)
        if self._has_ended_itself:
            process.set_attribute(names.OUTCOME, "succeeded")
        elif raised is not None and (stale := refusal_of(attempt, raised)) is not None:
            self._has_told = True
            _refuse(process, _facts(stale))
        else:
            _judge(process, attempt, raised)
        process.end(self._ended_at)

    def abandoned(self) -> None:
        """The handler may go on, but nobody waits for it any more."""
        if (process := self._close()) is not None:
            process.set_status(Status(StatusCode.ERROR, "did not stop when told to"))
            process.end(self._ended_at)

    def note(self, name: str, facts: Mapping[str, Any]) -> None:
        """Something has happened to it."""
        with _lock:
            if self._process is not None:
                _note(self._process, name, facts)
                return
            if not self._is_settled:
                self._notes = [*self._notes, (name, facts, time.time_ns())]
                return
        # The answer to a renewal that was under way when the attempt ended: refused, it is shown.
        if facts.get(names.ours("operation")) == names.RENEW and self._is_shown:
            span = self._start(names.RENEW, self._queue)
            _note(span, name, facts)
            span.end()

    def settled(self, ending: Ending, stale: Stale | None) -> None:
        """Its ending is written, or was refused."""
        if (process := self._close() if self._process is not None else None) is not None:
            process.end(self._ended_at)  # handed back at a shutdown, with its thread
        with _lock:
            self._is_settled = True
            notes, self._notes = self._notes, ()
        nothing_new = (self._has_ended_itself and not notes) or not ending.is_last
        if (nothing_new and stale is None) or not self._is_shown:
            return
        self._find_parent()
        span = self._start(names.SETTLE, self._queue, self._ended_at)
        for name, facts, at in notes:
            _note(span, name, facts, at)
        if stale is not None:
            self._refused(span, stale)
        else:
            self._written(span, ending)
        span.end()

    @property
    def _is_shown(self) -> bool:
        return self._is_recorded and self._spans.are_made

    def _refused(self, span: Span, stale: Stale) -> None:
        span.set_attribute(names.OUTCOME, "refused")
        if not self._has_told:
            _refuse(span, _facts(stale) | {names.ours("late_seconds"): stale.late_seconds})
        elif stale.late_seconds is not None:
            span.set_attribute(names.ours("late_seconds"), stale.late_seconds)

    def _written(self, span: Span, ending: Ending) -> None:
        if ending.outcome is not None:
            span.set_attribute(names.OUTCOME, ending.outcome)
        if isinstance(ending, Snoozed):
            span.set_attribute(names.DELAY_SECONDS, ending.seconds)
        elif isinstance(ending, Declined):
            span.add_event(UnknownTask.event)
        elif isinstance(ending, Released):
            span.set_attribute(names.REASON, ending.reason)
        elif isinstance(ending, Died):
            _fail(span, "Died", "the process that ran it alone has died")
        elif isinstance(ending, Failed) and not self._has_begun:
            # The message quotes the payload, where that did not fit its task.
            said = ending.said or ending.error["message"]
            _fail(span, ending.error["type"], said)

    def _close(self) -> Span | None:
        """Nothing more happens to its process span, which is to be ended as of now."""
        with _lock:
            process, self._process = self._process, None
        self._ended_at = time.time_ns()
        return process

    def _find_parent(self) -> Context:
        """What its headers carry."""
        if self._parent is None and not self._carries:
            self._parent = Context()
        elif self._parent is None:
            self._parent = self._spans.extract(self._lease.headers)
            sender = trace.get_current_span(self._parent).get_span_context()
            if sender.is_valid:
                self._links = [Link(sender)]
        return self._parent

    def _start(self, operation: str, where: str | None, at: int | None = None) -> Span:
        if self._attributes is None:
            lease, job_id = self._lease, str(self._lease.job_id)
            self._attributes = {
                names.MESSAGE_ID: job_id,
                names.CLIENT_ID: self._worker,
                names.JOB_ID: job_id,
                names.TOKEN: lease.token,
                names.ATTEMPT: lease.attempts + 1,
                names.TASK: lease.task,
            }
        return self._spans.start(
            operation,
            where,
            self._parent,
            self._attributes,
            queue=self._queue,
            links=self._links,
            at=at,
        )


class _Running:
    """The block around a handler."""

    __slots__ = ("_attempt", "_followed", "_token")

    def __init__(self, followed: Followed, attempt: Attempt) -> None:
        self._followed = followed
        self._attempt = attempt
        self._token: Any = None

    def __enter__(self) -> None:
        with careful:
            self._token = attach(self._followed.begin(self._attempt))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with careful:
            self._followed.end(self._attempt, error)
        if self._token is not None:
            detach(self._token)


def _judge(process: Span, attempt: Attempt, raised: BaseException | None) -> None:
    """Whether it is an error that the handler ended so, and which."""
    told = attempt.told
    if told == "timeout":
        _fail(process, "TimeoutError", "ran longer than its timeout")
    elif raised is None or isinstance(raised, Snooze | Cancel):
        return
    elif told in ("refused", "deadline"):
        _fail(process, "StaleLease", "lease lost")
    elif told is not None and isinstance(raised, asyncio.CancelledError):
        return  # as it was asked to
    else:
        cause = raised.__cause__ if isinstance(raised, Unstorable) else None
        error = describe(cause or raised)
        process.add_event(
            names.EXCEPTION,
            {
                names.EXCEPTION_TYPE: error["type"],
                names.EXCEPTION_MESSAGE: error["message"],
                names.EXCEPTION_TRACEBACK: error["traceback"],
            },
        )
        _fail(process, error["type"], error["message"])


def _fail(span: Span, kind: str, said: str) -> None:
    span.set_attribute(names.ERROR_TYPE, kind)
    span.set_status(Status(StatusCode.ERROR, said))


def _note(span: Span, name: str, facts: Mapping[str, Any], at: int | None = None) -> None:
    """An event; one of them is an error in itself."""
    known = {key: value for key, value in facts.items() if value is not None}
    span.add_event(name, known, at)
    if name == StaleWriteBlocked.event:
        _fail(span, StaleLease.__name__, "stale write refused")


def _refuse(span: Span, facts: Mapping[str, Any]) -> None:
    _note(span, StaleWriteBlocked.event, facts)


def _facts(stale: Stale | StaleLease) -> dict[str, Any]:
    """As the event has them."""
    return {
        names.ours("stale_token"): stale.token,
        names.ours("current_token"): stale.current_token,
        names.ours("reason"): stale.reason,
        names.ours("operation"): stale.operation,
    }
