"""A receiver of OTLP over HTTP in a process of its own, as a collector is; and what it has got.

python -m tests.collector        says its port, then takes POST /v1/traces; GET and DELETE /spans
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Span:
    """One exported span, as it arrived."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    began: int
    ended: int
    status: str
    said: str
    attributes: dict[str, Any]
    events: list[dict[str, Any]]
    links: list[tuple[str, str]]
    process: int  # which exported it

    @property
    def context(self) -> tuple[str, str]:
        return (self.trace_id, self.span_id)

    def event(self, name: str, **facts: Any) -> dict[str, Any]:
        """The attributes of its only event of this name with these facts."""
        wanted = {f"faultline.{key}": value for key, value in facts.items()}
        (found,) = [
            event["attributes"]
            for event in self.events
            if event["name"] == name and wanted.items() <= event["attributes"].items()
        ]
        return dict(found)


class Collector:
    """The receiver, from outside."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"

    def spans(self, **wanted: Any) -> list[Span]:
        """All that have arrived so far, in the order of their beginnings; with these facts."""
        with urllib.request.urlopen(f"{self.endpoint}/spans") as answer:
            found = [Span(**span) for span in json.load(answer)]
        found = [
            span
            for span in found
            if all(getattr(span, name) == value for name, value in wanted.items())
        ]
        return sorted(found, key=lambda span: (span.began, span.ended))

    def span(self, **wanted: Any) -> Span:
        """The only one with these facts."""
        found = self.spans(**wanted)
        assert len(found) == 1, [(span.name, span.attributes) for span in found or self.spans()]
        return found[0]

    def forget(self) -> None:
        """Begin anew."""
        urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/spans", method="DELETE"))

    @property
    def environment(self) -> dict[str, str]:
        """For a process that shall export here."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint, "NO_PROXY": "127.0.0.1"}

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[Self]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.collector"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        with process, process.stdout:
            try:
                yield cls(int(process.stdout.readline()))
            finally:
                process.kill()


# ── the process ──────────────────────────────────────────────────────────────────────────────────


def _read(body: bytes) -> list[dict[str, Any]]:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    request = ExportTraceServiceRequest.FromString(body)
    return [
        _span(span, _plain(resource.resource.attributes).get("process.pid", 0))
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _span(span: Any, process: int) -> dict[str, Any]:
    return {
        "name": span.name,
        "kind": span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        "trace_id": span.trace_id.hex(),
        "span_id": span.span_id.hex(),
        "parent_id": span.parent_span_id.hex(),
        "began": span.start_time_unix_nano,
        "ended": span.end_time_unix_nano,
        "status": span.status.StatusCode.Name(span.status.code).removeprefix("STATUS_CODE_"),
        "said": span.status.message,
        "attributes": _plain(span.attributes),
        "events": [
            {"name": event.name, "attributes": _plain(event.attributes)} for event in span.events
        ],
        "links": [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        "process": process,
    }


def _plain(attributes: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in attributes}


class _Receiver(BaseHTTPRequestHandler):
    spans: list[dict[str, Any]] = []  # noqa: RUF012

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.spans.extend(_read(body))
        self._answer(b"", "application/x-protobuf")

    def do_DELETE(self) -> None:
        self.spans.clear()
        self._answer(b"", "text/plain")

    def do_GET(self) -> None:
        self._answer(json.dumps(self.spans).encode(), "application/json")

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def main() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Receiver) as server:
        sys.stdout.write(f"{server.server_address[1]}\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    main()
