"""Real `faultline worker` processes in a play: started, read by their log, never left over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Self

from faultline.drills.workers import end_with_parent

Line = dict[str, Any]
PATIENCE_SECONDS = 30.0


class Cast:
    """The workers of one play; whoever is still on stage at the end of the block is ended."""

    def __init__(
        self, app: str, url: str, schema: str, listener: Callable[[Line], None] | None = None
    ) -> None:
        self._command = [sys.executable, "-m", "faultline", "worker", app]
        self._environment = {
            **os.environ,
            "FAULTLINE_DATABASE_URL": url,
            "FAULTLINE_SCHEMA": schema,
        }
        self._listener = listener
        self._lines: SimpleQueue[Line] = SimpleQueue()
        self._seen: list[Line] = []
        self._actors: dict[str, subprocess.Popen[str]] = {}

    def enter(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a worker under this name."""
        actor = subprocess.Popen(
            [*self._command, *arguments, "--log", "json", "--log-level", "debug"],
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
            preexec_fn=end_with_parent,
        )
        self._actors[name] = actor
        threading.Thread(target=self._read, args=(name, actor), daemon=True).start()
        return actor

    def note(self, name: str, event: str, **facts: Any) -> None:
        """What was done to an actor, as a line among its own."""
        at = datetime.now(UTC).isoformat()
        self._show({"at": at, "event": event, "actor": name, **facts})

    def wait(self, name: str, event: str) -> Line:
        """Until this actor says so, once more than before; shows what the others say meanwhile."""
        while True:
            for line in self._seen:
                if (line["actor"], line["event"]) == (name, event):
                    self._seen.remove(line)
                    return line
            try:
                line = self._lines.get(timeout=PATIENCE_SECONDS)
            except Empty as error:
                raise RuntimeError(f"worker {name} never said {event}") from error
            if line["event"] == "process_ended" and line["status"] != 0:
                raise RuntimeError(f"worker {line['actor']} ended with {line['status']}")
            self._show(line)
            self._seen.append(line)

    def _show(self, line: Line) -> None:
        if self._listener is not None:
            self._listener(line)

    def _read(self, name: str, actor: subprocess.Popen[str]) -> None:
        assert actor.stdout is not None
        for text in actor.stdout:
            self._lines.put({**json.loads(text), "actor": name})
        self._lines.put({"event": "process_ended", "actor": name, "status": actor.wait()})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for actor in self._actors.values():
            actor.kill()
            actor.wait()
