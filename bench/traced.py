"""The app that is measured, in a process with as much of OpenTelemetry as BENCH_TRACING says.

python -m bench.traced JOBS      enqueues so many, one by one, and prints µs of CPU for each
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from bench.app import app

KINDS = ("absent", "api", "unsampled", "recorded")


def set_up(kind: str) -> None:
    """As an application would; what is recorded is exported to nowhere."""
    if kind == "absent":
        return
    from opentelemetry import trace

    if kind == "api":
        return
    from opentelemetry.sdk.trace import TracerProvider, sampling
    from opentelemetry.sdk.trace.export import (
        BatchSpanProcessor,
        SpanExporter,
        SpanExportResult,
    )

    class Nowhere(SpanExporter):
        def export(self, _: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    root = sampling.ALWAYS_OFF if kind == "unsampled" else sampling.ALWAYS_ON
    provider = TracerProvider(sampling.ParentBased(root))
    provider.add_span_processor(BatchSpanProcessor(Nowhere(), max_queue_size=1_000_000))
    trace.set_tracer_provider(provider)


def main(jobs: int) -> None:
    """Enqueue, and say what that took."""
    noop = app.tasks["noop"]
    noop.enqueue()  # connects
    started = time.process_time()
    for _ in range(jobs):
        noop.enqueue()
    print((time.process_time() - started) / jobs * 1e6)


set_up(os.environ.get("BENCH_TRACING", "absent"))
if __name__ == "__main__":
    main(int(sys.argv[1]))
