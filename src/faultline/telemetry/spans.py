"""Spans by OpenTelemetry, which only this module and `followed` import, when the application has.

    send {queue}       PRODUCER   around an enqueue; its context travels in the jobs' headers
    receive {queue}    CLIENT     from the sending of the claim until its answer
    process {task}     CONSUMER   around the handler, in whose context it is the current span
    settle {queue}     CLIENT     from the handler's end until the attempt's is in the database

The last three are children of the first, and link to it. Only what is said when a span begins can
decide whether it is sampled, so nearly all is said then. No payload, result or header is in a span.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from opentelemetry import propagate, trace
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from faultline import __version__, events
from faultline.observer import Sending
from faultline.telemetry import conventions as names
from faultline.telemetry.careful import careful
from faultline.telemetry.followed import Followed

if TYPE_CHECKING:
    from faultline.jobs import Stale
    from faultline.worker.attempt import Attempt
    from faultline.worker.endings import Ending

FLUSH_SECONDS = 5.0
_KINDS = {
    names.SEND: SpanKind.PRODUCER,
    names.RECEIVE: SpanKind.CLIENT,
    names.PROCESS: SpanKind.CONSUMER,
    names.SETTLE: SpanKind.CLIENT,
    names.RENEW: SpanKind.CLIENT,
}
_NOTED = (
    events.StaleWriteBlocked,
    events.LeaseLost,
    events.ExecutionTimedOut,
    events.HandlerAbandoned,
    events.EndingIgnored,
)


class Spans:
    """Makes the spans of one app."""

    def __init__(self) -> None:
        self._tracer = trace.get_tracer(names.NAME, __version__)
        self._open: weakref.WeakValueDictionary[tuple[UUID, int], Followed] = (
            weakref.WeakValueDictionary()
        )

    @property
    def are_made(self) -> bool:
        """Whether there is more than the API: without an SDK contexts are only passed on."""
        nobody = trace.ProxyTracerProvider | trace.NoOpTracerProvider
        return not isinstance(trace.get_tracer_provider(), nobody)

    def start(
        self,
        operation: str,
        where: str | None,
        parent: Context | None,
        attributes: Mapping[str, Any],
        *,
        queue: str | None = None,
        links: Sequence[Link] = (),
        at: int | None = None,
    ) -> Span:
        """A new span, with what all of them say."""
        said = {
            names.SYSTEM: names.NAME,
            names.OPERATION_NAME: operation,
            names.OPERATION_TYPE: operation,
            **attributes,
        }
        if queue is not None:
            said[names.DESTINATION] = queue
        return self._tracer.start_span(
            operation if where is None else f"{operation} {where}",
            parent,
            _KINDS[operation],
            said,
            links,
            at,
        )

    # ── producers ────────────────────────────────────────────────────────────────────────────────

    def sending(self, task: str, counts: Mapping[str, int]) -> AbstractContextManager[Sending]:
        """A span around an enqueue; without an SDK only the caller's context goes with it."""
        if self.are_made:
            return Sent(self, task, counts)
        passed_on = Sending()
        passed_on.headers = self.headers()
        return nullcontext(passed_on)

    def headers(self) -> dict[str, Any]:
        """The current context, as it travels."""
        carrier: dict[str, Any] = {}
        if get_current():  # else there is nothing to write down, which takes longer to find out
            with careful:
                propagate.inject(carrier)
        return carrier

    @contextmanager
    def asked(self, headers: Mapping[str, str]) -> Iterator[None]:
        """With a request's context as the current one, unless there is one."""
        token = None
        with careful:
            if not trace.get_current_span().get_span_context().is_valid:
                token = attach(self.extract(headers))
        try:
            yield
        finally:
            if token is not None:
                detach(token)

    def extract(self, headers: Mapping[str, Any]) -> Context:
        """The context that these carry; an empty one, if there is none or it cannot be read."""
        with careful:
            return propagate.extract(headers, Context(), _TEXTS)
        return Context()

    # ── workers ──────────────────────────────────────────────────────────────────────────────────

    def claimed(self, attempts: Sequence[Attempt], sent: float, queues: Mapping[int, str]) -> None:
        """Follow these from now on, if there is something to follow."""
        all_of_them = self.are_made
        fields = propagate.get_global_textmap().fields
        answered_at = time.time_ns()
        sent_at = answered_at - int((time.monotonic() - sent) * 1e9)
        for attempt in attempts:
            headers = attempt.lease.headers
            carries = isinstance(headers, dict) and not fields.isdisjoint(headers)
            if all_of_them or carries:
                attempt.trace = Followed(
                    self,
                    attempt,
                    queues.get(attempt.lease.lane),
                    carries=carries,
                    sent_at=sent_at,
                    answered_at=answered_at,
                )

    def follow(self, key: tuple[UUID, int], followed: Followed) -> None:
        """What happens to this attempt is to be noted, for as long as somebody has it."""
        self._open[key] = followed

    def settled(self, endings: Sequence[Ending], stale: Sequence[Stale]) -> None:
        """These are in the database, but for the stale ones."""
        refused = {(item.job_id, item.token): item for item in stale}
        for ending in endings:
            if isinstance(followed := ending.attempt.trace, Followed):
                followed.settled(ending, refused.get(ending.attempt.key))

    def event(self, event: events.Event) -> None:
        """To be found in the span of its attempt, if it has one here."""
        if not isinstance(event, _NOTED):
            return
        fields = event.fields()
        token = event.stale_token if isinstance(event, events.StaleWriteBlocked) else event.token
        if (followed := self._open.get((event.job_id, token))) is not None:
            left_out = ("event", "worker", "job_id", "token", "task")
            facts = {names.ours(k): v for k, v in fields.items() if k not in left_out}
            followed.note(event.event, facts)
            if isinstance(event, events.HandlerAbandoned):
                followed.abandoned()

    def flush(self) -> None:
        """Send what is held back, if the SDK can, and wait a moment for it: its own timeouts are
        not kept by all versions."""
        if (flush := getattr(trace.get_tracer_provider(), "force_flush", None)) is not None:
            thread = threading.Thread(target=flush, name="faultline-flush", daemon=True)
            thread.start()
            thread.join(FLUSH_SECONDS)


class Sent(Sending):
    """One enqueue, as the block around it."""

    _span: Span | None = None
    _token: Any = None

    def __init__(self, spans: Spans, task: str, counts: Mapping[str, int]) -> None:
        self._spans = spans
        self._task = task
        self._counts = counts
        self.headers = {}

    def __enter__(self) -> Self:
        with careful:
            self._begin()
        self.headers = self._spans.headers()
        return self

    def _begin(self) -> None:
        queue = next(iter(self._counts)) if len(self._counts) == 1 else None
        attributes: dict[str, Any] = {names.TASK: self._task}
        if (count := sum(self._counts.values())) > 1:
            attributes[names.MESSAGE_COUNT] = count
        self._span = self._spans.start(names.SEND, queue, None, attributes, queue=queue)
        self._token = attach(trace.set_span_in_context(self._span))

    def accepted(self, ids: Sequence[UUID]) -> None:
        with careful:
            if self._span is not None and len(ids) == 1:
                self._span.set_attribute(names.MESSAGE_ID, str(ids[0]))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with careful:
            if self._token is not None:
                detach(self._token)
            if self._span is not None:
                if kind is not None:  # its message may quote what was to be sent
                    self._span.set_attribute(names.ERROR_TYPE, kind.__name__)
                    self._span.set_status(Status(StatusCode.ERROR, kind.__name__))
                self._span.end()


class _Texts(Getter[Mapping[str, Any]]):
    """Headers are any JSON: what is no text is no context."""

    def get(self, carrier: Mapping[str, Any], key: str) -> list[str] | None:
        value = carrier.get(key)
        return [value] if isinstance(value, str) else None

    def keys(self, carrier: Mapping[str, Any]) -> list[str]:
        return list(carrier)


_TEXTS = _Texts()
