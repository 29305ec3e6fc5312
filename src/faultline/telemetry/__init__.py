"""What a process has done, as metrics (Prometheus) and traces (OpenTelemetry).

    app.telemetry.tally         what was counted; cheap enough to be always on
    app.telemetry.tracing       spans, where the application has OpenTelemetry

The worker knows none of this: it is given an `Observer`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from faultline.observer import Observer, Sending
from faultline.telemetry.tally import Tally
from faultline.telemetry.tracing import Tracing

if TYPE_CHECKING:
    from faultline.events import Event
    from faultline.jobs import Lane, Reconciled, Stale
    from faultline.worker.attempt import Attempt
    from faultline.worker.endings import Ending


class Telemetry(Observer):
    """Both, of one app in one process."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.tracing = Tracing()

    @contextmanager
    def enqueueing(self, task: str, counts: Mapping[str, int]) -> Iterator[Sending]:
        with self.tracing.enqueueing(task, counts) as sending:
            yield sending
        self.tally.enqueued(task, counts)

    def headers(self) -> Mapping[str, Any]:
        return self.tracing.headers()

    def called(self, verb: str, seconds: float, *, failed: bool) -> None:
        self.tally.called(verb, seconds, failed=failed)

    def lanes(self, lanes: Sequence[Lane]) -> None:
        self.tally.lanes(lanes)
        self.tracing.lanes(lanes)

    def claimed(self, attempts: Sequence[Attempt], sent: float) -> None:
        self.tally.claimed(attempts, sent)
        self.tracing.claimed(attempts, sent)

    def settled(self, endings: Sequence[Ending], stale: Sequence[Stale]) -> None:
        self.tally.settled(endings, stale)
        self.tracing.settled(endings, stale)

    def renewed(self, attempts: Sequence[Attempt]) -> None:
        self.tally.renewed(attempts)

    def reconciled(self, done: Reconciled) -> None:
        self.tally.reconciled(done)

    def event(self, event: Event) -> None:
        self.tally.event(event)
        self.tracing.event(event)

    def flush(self) -> None:
        self.tracing.flush()
