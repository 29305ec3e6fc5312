"""`faultline api` as a process of its own, and callers of it, for the proofs of the service."""

from __future__ import annotations

import http.client
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from faultline.drills.workers import end_with_parent

PATIENCE_SECONDS = 30.0
HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, and how long it took from sending to the last byte."""

    status: int
    text: str
    seconds: float

    @property
    def body(self) -> Any:
        """As JSON."""
        return json.loads(self.text)


class Caller:
    """One client: one connection, opened anew when it broke."""

    def __init__(self, port: int, token: str, timeout_seconds: float = PATIENCE_SECONDS) -> None:
        self._conn = http.client.HTTPConnection(HOST, port, timeout=timeout_seconds)
        self._token = token

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """One request; raises OSError or HTTPException when there is no whole answer."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        given |= {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        sent = json.dumps(body) if body is not None else None
        began = time.monotonic()
        try:
            self._conn.request(method, path, sent, given)
            answer = self._conn.getresponse()
            text = answer.read().decode()
        except BaseException:
            self._conn.close()
            raise
        return Answer(answer.status, text, time.monotonic() - began)

    def lines(self, method: str, path: str) -> Iterator[str]:
        """The lines of an answer that does not end by itself, as they come."""
        self._conn.request(method, path, headers={"Authorization": f"Bearer {self._token}"})
        answer = self._conn.getresponse()
        while line := answer.readline():
            yield line.decode().rstrip("\n")

    def close(self) -> None:
        """Let go of the connection."""
        self._conn.close()


class Service:
    """The process, from its first request to be answered until the end of the block."""

    def __init__(self, url: str) -> None:
        self.token = secrets.token_urlsafe(32)
        self._url = url
        self._log = tempfile.TemporaryDirectory(prefix="faultline-service-")

    @property
    def written(self) -> str:
        """All that it has logged."""
        return Path(self._log.name, "log").read_text("utf-8")

    @property
    def address(self) -> str:
        """Where it is."""
        return f"http://{HOST}:{self.port}"

    def __enter__(self) -> Self:
        given = {"FAULTLINE_DATABASE_URL": self._url, "FAULTLINE_API_TOKEN": self.token}
        with Path(self._log.name, "log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "faultline", "api", "--port", "0"],
                env={**os.environ, **given, "PYTHONUNBUFFERED": "1"},
                stdout=log,
                stderr=log,
                preexec_fn=end_with_parent,
            )
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (found := re.search(r"serves http://[\d.]+:(\d+)", self.written)) is None:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the service did not start: {self.written}")
            time.sleep(0.01)
        self.port = int(found[1])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.terminate()
        try:
            self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.cleanup()

    def caller(self, timeout_seconds: float = PATIENCE_SECONDS) -> Caller:
        """A client with the token."""
        return Caller(self.port, self.token, timeout_seconds)
