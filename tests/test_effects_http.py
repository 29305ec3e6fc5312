"""The headers of a request, and a real service that keeps answers by key and compares tokens."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from faultline import App, Context, InvalidArgument, StaleLease
from faultline.effects.http import KEY_LIMIT, fenced_headers
from tests.sinks import HUGE, attempts, race


class Service(ThreadingHTTPServer):
    """POST /charge answers a known key with its first answer; POST /label refuses lower tokens."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.lock = threading.Lock()
        self.answers: dict[str, bytes] = {}
        self.charges: list[str] = []
        self.seen: dict[str, int] = {}
        self.labels: list[tuple[str, str]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class Request(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        with self.server.lock:
            if self.path == "/charge":
                self._answer(200, self._charge(self.headers["Idempotency-Key"], text))
            else:
                self._label(self.headers["Fencing-Job"], int(self.headers["Fencing-Token"]), text)

    def _charge(self, key: str, text: str) -> bytes:
        if key not in self.server.answers:
            self.server.charges.append(text)
            self.server.answers[key] = json.dumps({"charge": len(self.server.charges)}).encode()
        return self.server.answers[key]

    def _label(self, job: str, token: int, text: str) -> None:
        seen = self.server.seen.get(job, 0)
        if seen > token:
            self._answer(412, str(seen).encode())
            return
        self.server.seen[job] = token
        self.server.labels.append((job, text))
        self._answer(200, b"done")

    def _answer(self, status: int, text: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as service:
        thread = threading.Thread(target=service.serve_forever, args=(0.01,))
        thread.start()
        yield service
        service.shutdown()
        thread.join()


def charge(service: Service, ctx: Context, name: str = "charge") -> Any:
    return json.loads(post(f"{service.url}/charge", f"under token {ctx.token}", ctx, name))


def label(service: Service, ctx: Context) -> None:
    """A client of a service that compares: its refusal becomes a StaleLease."""
    try:
        post(f"{service.url}/label", f"of token {ctx.token}", ctx, "label")
    except urllib.error.HTTPError as refused:
        with refused:
            current = int(refused.read())
        raise StaleLease(ctx.job_id, ctx.token, current, "token_mismatch") from None


def post(url: str, text: str, ctx: Context, name: str) -> bytes:
    request = urllib.request.Request(url, text.encode(), fenced_headers(ctx, name))
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


def labels(service: Service, ctx: Context) -> list[str]:
    return [text for job, text in service.labels if job == str(ctx.job_id)]


# ── the key ──────────────────────────────────────────────────────────────────────────────────────


def test_what_two_attempts_ask_for_happens_once_and_both_get_the_answer(service: Service) -> None:
    first, second = attempts(1, 2)
    assert charge(service, first) == charge(service, second) == charge(service, first)
    assert service.charges == ["under token 1"]


def test_two_requests_of_a_job_and_two_jobs_are_different_things(service: Service) -> None:
    [one], [other] = attempts(1), attempts(1)
    found = [charge(service, one), charge(service, one, "tip"), charge(service, other)]
    assert found == [{"charge": 1}, {"charge": 2}, {"charge": 3}]


# ── the token ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("low", "high"), [(1, 2), (9, 10), (HUGE, HUGE + 1)])
def test_an_attempt_that_was_overtaken_is_refused(service: Service, low: int, high: int) -> None:
    first, second = attempts(low, high)
    label(service, first)
    label(service, second)
    label(service, second)  # its answer was lost
    with pytest.raises(StaleLease) as refused:
        label(service, first)
    assert refused.value.current_token == high
    assert labels(service, first) == [f"of token {token}" for token in (low, high, high)]


def test_tokens_of_different_jobs_are_kept_apart(service: Service) -> None:
    [one], [other] = attempts(1000), attempts(1)
    label(service, one)
    label(service, other)
    assert labels(service, other) == ["of token 1"]


def test_no_lower_token_lands_after_a_higher_one(service: Service) -> None:
    [ctx] = attempts(1)
    passed = race(lambda ctx: label(service, ctx), ctx.job_id, 200)
    assert labels(service, ctx) == [f"of token {token}" for token in passed]


# ── the headers ──────────────────────────────────────────────────────────────────────────────────


def test_the_headers_are_these() -> None:
    ctx = Context(uuid.UUID("01a1e1da-c41c-7f17-a3a0-8a32b3b5afca"), token=HUGE + 1)
    assert fenced_headers(ctx, 'the "big" \\ one') == {
        "Idempotency-Key": '01a1e1da-c41c-7f17-a3a0-8a32b3b5afca:the "big" \\ one',
        "Fencing-Job": "01a1e1da-c41c-7f17-a3a0-8a32b3b5afca",
        "Fencing-Token": "2305843009213693953",
    }
    quoted = fenced_headers(ctx, 'the "big" \\ one', quoted=True)["Idempotency-Key"]
    assert quoted == '"01a1e1da-c41c-7f17-a3a0-8a32b3b5afca:the \\"big\\" \\\\ one"'


@pytest.mark.parametrize(
    "name", ["a\r\nX-Admin: 1", "a\nb", "a\0b", "caf\xe9", "a\x7f", "x" * KEY_LIMIT]
)
def test_a_name_that_no_header_can_carry_is_refused(name: str) -> None:
    [ctx] = attempts(1)
    with pytest.raises(InvalidArgument, match="choose another name"):
        fenced_headers(ctx, name)


# ── a job ────────────────────────────────────────────────────────────────────────────────────────


def test_a_handler_that_was_taken_over_is_refused_and_that_is_recorded(
    server_url: str, service: Service
) -> None:
    app = App()
    with app.testing(server_url) as testing:

        @app.task
        def ship(ctx: Context) -> None:
            assert charge(service, ctx) == {"charge": 1}
            successor = Context(ctx.job_id, testing.take_over(ctx.job_id))
            assert charge(service, successor) == {"charge": 1}
            label(service, successor)
            label(service, ctx)

        job = ship.enqueue()
        assert testing.run(job).state == "running"  # in the other one's hands
        assert service.charges == ["under token 1"]
        assert service.labels == [(str(job.id), "of token 2")]
        [refusal] = testing.refusals(job)
        assert (refusal["stale_token"], refusal["current_token"]) == (1, 2)
        assert testing.connection.execute("select * from faultline.violations").fetchall() == []
