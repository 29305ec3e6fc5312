"""The service as a real process, and a client of it that can also be rude."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import uvicorn
from fastapi import FastAPI

from tests.command import FAULTLINE
from tests.stage import DEADLINE_SECONDS, until

TOKEN = "a-token-that-may-do-everything"
READ_TOKEN = "a-token-that-may-only-read"


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def body(self) -> Any:
        return json.loads(self.text)

    def problem(self, status: int, kind: str) -> dict[str, Any]:
        """The body, which has to be a problem of this kind."""
        assert self.status == status, self
        assert self.headers["content-type"] == "application/problem+json"
        body = dict(self.body)
        assert body["type"] == f"faultline:{kind}", body
        assert body["status"] == status
        assert body["title"]
        assert body["detail"]
        return body


class Client:
    """Requests to one address; a new connection for each."""

    def __init__(self, host: str, port: int, token: str | None = None) -> None:
        self.host = host
        self.port = port
        self.token = token

    def __call__(
        self, method: str, path: str, body: Any = None, *, raw: bytes | None = None, **headers: str
    ) -> Answer:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token is not None:
            given.setdefault("Authorization", f"Bearer {self.token}")
        if body is not None:
            raw = json.dumps(body).encode()
        if raw is not None:
            given.setdefault("Content-Type", "application/json")
        conn = http.client.HTTPConnection(self.host, self.port, timeout=DEADLINE_SECONDS)
        try:
            conn.request(method, path, body=raw, headers=given)
            answer = conn.getresponse()
            heads = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, heads, answer.read().decode())
        finally:
            conn.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        return self("POST", path, body, **headers)

    def bearing(self, token: str | None) -> Client:
        return Client(self.host, self.port, token)


@contextmanager
def served(web: FastAPI, host: str = "127.0.0.1") -> Iterator[Client]:
    """The application behind a real socket, served by a thread of this process."""
    with socket.create_server((host, 0)) as listening:
        config = uvicorn.Config(web, log_config=None, ws="none", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        until(lambda: server.started, "the service listens")
        try:
            yield Client(host, listening.getsockname()[1])
        finally:
            if hasattr(web.state, "watch"):
                web.state.watch.close()
            server.should_exit = True
            thread.join(DEADLINE_SECONDS)
            web.state.access.close()
            assert not thread.is_alive()


class Serving:
    """`faultline api` or `inspector serve` on a free port, with all it has written."""

    def __init__(
        self, url: str, *arguments: str, home: Path | None = None, **environment: str
    ) -> None:
        kept = {n: os.environ[n] for n in ("PATH", "LANG", "PYTHONPATH") if n in os.environ}
        self.process = subprocess.Popen(
            [*FAULTLINE, *(arguments or ("api",)), "--port", "0"],
            env={
                **kept,
                "FAULTLINE_HOME": str(home or "/nonexistent"),
                "FAULTLINE_DATABASE_URL": url,
                "PYTHONUNBUFFERED": "1",
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=home,
        )
        self.written = ""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        found = until(
            lambda: re.search(r"serves http://([\d.]+):(\d+)", self.written) or self._gone(),
            "the service listens",
        )
        assert found is not True, self.written
        self.client = Client(found[1], int(found[2]), environment.get("FAULTLINE_API_TOKEN"))

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.written += line

    def _gone(self) -> bool:
        return self.process.poll() is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.ended()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def terminate(self) -> None:
        self.process.terminate()

    def ended(self) -> int:
        """Its exit status, once it has ended."""
        status = self.process.wait(DEADLINE_SECONDS)
        self._thread.join(DEADLINE_SECONDS)
        return status
