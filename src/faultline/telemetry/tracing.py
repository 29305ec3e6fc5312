"""Spans, where the application has OpenTelemetry.

Nothing of it is imported here before the application has done so itself: a process without it pays
for one look into sys.modules a call. What is made then is in `spans`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from faultline.observer import Observer, Sending
from faultline.telemetry.careful import careful

if TYPE_CHECKING:
    from faultline.events import Event
    from faultline.jobs import Lane, Stale
    from faultline.telemetry.spans import Spans
    from faultline.worker.attempt import Attempt
    from faultline.worker.endings import Ending


class Tracing(Observer):
    """From enqueue to settle."""

    def __init__(self) -> None:
        self._spans: Spans | None = None
        self._is_broken = False  # OpenTelemetry cannot be had: it is said once
        self._queues: dict[int, str] = {}  # by lane

    def enqueueing(self, task: str, counts: Mapping[str, int]) -> AbstractContextManager[Sending]:
        """A span around an enqueue, whose context travels with the jobs."""
        if (spans := self._found()) is not None and counts:
            with careful:
                return spans.sending(task, counts)
        return super().enqueueing(task, counts)

    def headers(self) -> Mapping[str, Any]:
        """The context of the caller."""
        return {} if (spans := self._found()) is None else spans.headers()

    def asked(self, headers: Mapping[str, str]) -> AbstractContextManager[None]:
        """Around what is done for a request with these headers: their context is the caller's,
        unless something around it has said so already."""
        return nullcontext() if (spans := self._found()) is None else spans.asked(headers)

    def lanes(self, lanes: Sequence[Lane]) -> None:
        """Their queues name the spans."""
        self._queues = {lane.lane: lane.queue for lane in lanes}

    def claimed(self, attempts: Sequence[Attempt], sent: float) -> None:
        """Follow those that carry a context; all, where spans are recorded."""
        if (spans := self._found()) is not None:
            with careful:
                spans.claimed(attempts, sent, self._queues)

    def settled(self, endings: Sequence[Ending], stale: Sequence[Stale]) -> None:
        """The last span of each."""
        if self._spans is not None:
            with careful:
                self._spans.settled(endings, stale)

    def event(self, event: Event) -> None:
        """What happens to an attempt goes into its span."""
        if self._spans is not None:
            with careful:
                self._spans.event(event)

    def flush(self) -> None:
        """Nothing that was recorded shall be lost with the process."""
        if self._spans is not None:
            with careful:
                self._spans.flush()

    def _found(self) -> Spans | None:
        if self._spans is None and not self._is_broken and "opentelemetry.trace" in sys.modules:
            self._is_broken = True
            with careful:  # half installed, or told to use what is not there
                from faultline.telemetry.spans import Spans

                self._spans = Spans()
                self._is_broken = False
        return self._spans
