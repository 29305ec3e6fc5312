"""A small HTTP server in a thread of its own: metrics for Prometheus, and two probes.

    /livez      200, or 503 and why the process should be started anew
    /readyz     200, or 503 and why it cannot renew or claim
    /metrics    and any other path: the numbers

No event loop is asked, so that a handler which blocks one keeps nobody waiting. Needs the extra
`metrics`.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app
from prometheus_client.registry import Collector

from faultline.errors import InvalidArgument
from faultline.telemetry.exposition import Beside
from faultline.telemetry.pulse import Pulse

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class _Threads(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _ThreadsV6(_Threads):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    timeout = 10.0  # a client that says nothing holds a thread

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Probes come every few seconds: nothing to write down."""


def application(ours: Collector, pulse: Pulse) -> Application:
    """What is answered, as WSGI."""
    metrics: Application = make_wsgi_app(Beside(ours))
    probes = {"/livez": (pulse.stuck, "live"), "/readyz": (pulse.trouble, "ready")}

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if (probe := probes.get(environ["PATH_INFO"])) is None:
            return metrics(environ, start)
        look, well = probe
        why = look()
        status = "200 OK" if why is None else "503 Service Unavailable"
        start(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{why or well}\n".encode()]

    return answer


@contextmanager
def serving(ours: Collector, pulse: Pulse, host: str, port: int) -> Iterator[int]:
    """Answer for the duration of a block; gives the port."""
    kind = _ThreadsV6 if ":" in host else _Threads
    try:
        server = make_server(host, port, application(ours, pulse), kind, _Quiet)
    except (OSError, OverflowError) as error:
        raise InvalidArgument(
            f"cannot serve metrics on {host} port {port} ({error}): take another with "
            "--metrics-port, or end whoever has it"
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="faultline-metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(1.0)
