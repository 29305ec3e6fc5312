"""What a process has done, as metrics (Prometheus) and traces (OpenTelemetry).

    app.telemetry.tally         what was counted; cheap enough to be always on
    app.telemetry.tracing       spans, where the application has OpenTelemetry
    app.telemetry.pulse         whether its workers live and are ready

    catalogue    every metric there is
    sums         numbers by metric and labels; tally counts them, exposition shows them
    answering    metrics and probes over HTTP

The worker knows none of this: it is given an `Observer`. A mistake in here costs a line in the log
and no job (`careful`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from faultline.errors import FaultlineError
from faultline.observer import Observer, Sending, Standing
from faultline.telemetry.careful import careful
from faultline.telemetry.pulse import Pulse
from faultline.telemetry.tally import Tally
from faultline.telemetry.tracing import Tracing

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from faultline.events import Event
    from faultline.jobs import Lane, Reclaimed, Reconciled, Stale
    from faultline.task import Task
    from faultline.worker.attempt import Attempt
    from faultline.worker.endings import Ending


class Telemetry(Observer):
    """All of it, of one app in one process."""

    def __init__(self, tasks: Mapping[str, Task[Any, Any]] | None = None) -> None:
        self.tally = Tally(tasks)
        self.tracing = Tracing()
        self.pulse = Pulse()

    # ── for whoever shows it ─────────────────────────────────────────────────────────────────────

    def collector(self) -> Collector:
        """What this process has counted, for a registry of prometheus_client."""
        with _needs_metrics():
            from faultline.telemetry.exposition import Exposition
        return Exposition(self.tally.snapshot)

    def serving(self, host: str, port: int) -> AbstractContextManager[int]:
        """Answer Prometheus and probes at this address for the duration of a block, which is given
        the port; with ours goes what is in prometheus_client's own registry."""
        with _needs_metrics():
            from faultline.telemetry.answering import serving
        return serving(self.collector(), self.pulse, host, port)

    # ── what is observed ─────────────────────────────────────────────────────────────────────────

    def enqueueing(self, task: str, counts: Mapping[str, int]) -> AbstractContextManager[Sending]:
        return _Enqueueing(self, task, counts)

    def headers(self) -> Mapping[str, Any]:
        return self.tracing.headers()

    def called(self, verb: str, seconds: float, *, failed: bool) -> None:
        try:
            self.tally.called(verb, seconds, failed=failed)
        except Exception as error:
            careful.failed(error)

    def clock(self, database_seconds: float) -> None:
        with careful:
            self.tally.clock(database_seconds)

    def lanes(self, lanes: Sequence[Lane]) -> None:
        with careful:
            self.tally.lanes(lanes)
        with careful:
            self.tracing.lanes(lanes)

    def claimed(self, attempts: Sequence[Attempt], sent: float) -> None:
        try:
            self.tally.claimed(attempts, sent)
        except Exception as error:
            careful.failed(error)
        with careful:
            self.tracing.claimed(attempts, sent)

    def adopted(self, attempts: Sequence[Attempt], sent: float) -> None:
        with careful:
            self.tally.adopted(attempts, sent)
        with careful:
            self.tracing.claimed(attempts, sent)

    def settled(self, endings: Sequence[Ending], stale: Sequence[Stale]) -> None:
        with careful:
            self.tally.settled(endings, stale)
        with careful:
            self.tracing.settled(endings, stale)

    def renewed(self, attempts: Sequence[Attempt]) -> None:
        with careful:
            self.tally.renewed(attempts)

    def reconciled(self, done: Reconciled) -> None:
        with careful:
            self.tally.reconciled(done)

    def reclaimed(self, taken: Sequence[Reclaimed]) -> None:
        with careful:
            self.tally.reclaimed(taken)

    def event(self, event: Event) -> None:
        with careful:
            self.tally.event(event)
        with careful:
            self.tracing.event(event)

    def flush(self) -> None:
        with careful:
            self.tracing.flush()

    def working(self, worker: str, look: Callable[[], Mapping[str, Any]]) -> None:
        with careful:
            self.tally.working(worker, look)

    def standing(self, worker: str, look: Callable[[], Standing]) -> None:
        with careful:
            self.pulse.standing(worker, look)

    def left(self, worker: str) -> None:
        with careful:
            self.tally.left(worker)
        with careful:
            self.pulse.left(worker)

    def words(self) -> bytes:
        """Both on one line; no JSON has a tab in it."""
        return self.tally.words().rstrip(b"\n") + b"\t" + self.pulse.words()

    def heard(self, child: str, line: bytes) -> None:
        numbers, _, stands = line.partition(b"\t")
        with careful:
            self.tally.heard(child, numbers)
        with careful:
            self.pulse.heard(child, stands)

    def lost(self, child: str) -> None:
        with careful:
            self.tally.lost(child)
        with careful:
            self.pulse.lost(child)


class _Enqueueing:
    """A span around an enqueue, and a count if it went well; no generator, as it is around each."""

    __slots__ = ("_counts", "_span", "_tally", "_task")

    def __init__(self, telemetry: Telemetry, task: str, counts: Mapping[str, int]) -> None:
        self._tally = telemetry.tally
        self._span = telemetry.tracing.enqueueing(task, counts)
        self._task = task
        self._counts = counts

    def __enter__(self) -> Sending:
        return self._span.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._span.__exit__(kind, error, trace)
        if error is None:
            try:
                self._tally.enqueued(self._task, self._counts)
            except Exception as mistake:
                careful.failed(mistake)


@contextmanager
def _needs_metrics() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "prometheus_client":
            raise
        raise FaultlineError(
            "this needs prometheus_client, which is not installed: "
            "pip install 'faultline-queue[metrics]'"
        ) from error
