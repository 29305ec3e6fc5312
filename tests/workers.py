"""Real worker processes for the tests: started as a user starts them, read through their log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self
from uuid import UUID

from faultline.drills.workers import descendants
from tests.playground import TABLES
from tests.stage import DEADLINE_SECONDS, Stage, until

ROOT = Path(__file__).parent.parent
# A copy of the package with a guard taken out comes first, where mutants are tried.
PATH = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))


class Process:
    """One `faultline worker`, with all it has logged so far."""

    def __init__(
        self, url: str, *arguments: str, app: str = "tests.playground:app", **variables: str
    ) -> None:
        folder = variables.pop("FOLDER", "")  # where else the app may be
        usual = ("--log", "json", "--log-level", "debug")
        command = [sys.executable, "-m", "faultline", "worker", app, *usual, *arguments]
        self.process = subprocess.Popen(
            [*variables.pop("prefix", "").split(), *command],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, [folder, PATH])),
                "FAULTLINE_DATABASE_URL": url,
                **variables,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        self.events: list[dict[str, Any]] = []
        self._reading = threading.Event()
        self._reading.set()
        self.errors: list[str] = []
        self._threads = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._reading.wait()
            self.events.append(json.loads(line))

    @contextmanager
    def unread(self) -> Iterator[None]:
        """For a while nobody reads its log."""
        self._reading.clear()
        yield
        self._reading.set()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors.extend(self.process.stderr)

    @property
    def pid(self) -> int:
        return self.process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        orphans = [seen["pid"] for seen in self.told("worker_started") if is_child(seen["pid"])]
        family = {*descendants(self.pid), *orphans}
        if self.process.poll() is None:
            self.process.kill()
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(DEADLINE_SECONDS)
        pipes = (self.process.stdout, self.process.stderr)
        for thread, pipe in zip(self._threads, pipes, strict=True):
            thread.join(DEADLINE_SECONDS)
            assert not thread.is_alive(), "somebody still holds the worker's output"
            assert pipe is not None
            pipe.close()

    def told(self, event: str, **facts: Any) -> list[dict[str, Any]]:
        """The events of this name with these facts."""
        wanted = {k: str(v) if isinstance(v, UUID) else v for k, v in facts.items()}
        return [
            seen
            for seen in list(self.events)
            if seen["event"] == event and wanted.items() <= seen.items()
        ]

    def until(self, event: str, **facts: Any) -> dict[str, Any]:
        """Wait until it has logged this."""
        try:
            seen: list[dict[str, Any]] = until(
                lambda: self.told(event, **facts), f"{event} {facts}"
            )
        except AssertionError as error:
            error.add_note(f"the worker said: {self.events[-20:]} {self.errors}")
            raise
        return seen[0]

    def ready(self) -> Self:
        self.until("worker_started")
        return self

    def stall(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_SECONDS)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def ended(self) -> int:
        """Its exit status, once it has ended by itself."""
        status = self.process.wait(DEADLINE_SECONDS)
        for thread in self._threads:
            thread.join(DEADLINE_SECONDS)
        return status


def is_child(pid: int) -> bool:
    """Whether this is a child process of a worker, and not somebody who got its number."""
    with suppress(OSError):
        return b"\0faultline.worker\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


class Ground:
    """A stage with the playground's tables: what its handlers marked, and leave to go on."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        stage.execute(TABLES)

    def go(self, job_id: UUID, token: int) -> None:
        self.stage.execute("insert into go values (%s, %s)", job_id, token)

    def marks(self, job_id: UUID) -> list[tuple[int, str]]:
        return [
            (token, note)
            for token, note in self.stage.execute(
                "select token, note from mark where job_id = %s order by at", job_id
            )
        ]

    def until_in(self, job_id: UUID, token: int) -> None:
        """Until the handler of this attempt is inside."""
        until(lambda: (token, "in") in self.marks(job_id), f"attempt {token} of {job_id} is inside")

    def until_state(self, job_id: UUID, state: str) -> None:
        until(lambda: self.stage.state(job_id) == state, f"{job_id} is {state}")

    def effects(self, job_id: UUID) -> list[int]:
        return [
            row[0]
            for row in self.stage.execute("select token from effect where job_id = %s", job_id)
        ]
