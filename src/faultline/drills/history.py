"""The history: what every process of a drill set out to do, and what it was told came of it.

One line of JSON an operation, appended by whoever does it, at the moment it does it. All write to
one file, so its order is the order of real time, whatever their clocks say, and a line outlives the
process that wrote it. An operation that was begun and has no end has an unknown outcome.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from psycopg import Connection

_SAMPLES = 5
Phase = Literal["invoke", "ok", "fail", "unknown"]
Doing = Literal["enqueue", "claim", "execute", "write", "complete", "retry", "fault"]


@dataclass(frozen=True, slots=True)
class Operation:
    """One line."""

    doing: Doing
    phase: Phase
    job_id: str
    token: int | None = None  # None: nobody's attempt, as in enqueue
    effect: str | None = None  # which of the job's effects is written
    pid: int = 0
    at: str = ""  # by the database's clock
    why: str | None = None


class History:
    """A file to which one process appends."""

    def __init__(self, path: Path, now: Callable[[], str]) -> None:
        self._path = path
        self._now = now
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    def add(self, doing: Doing, phase: Phase, job_id: object, **facts: Any) -> None:
        """Append one line, whole: a single write to a file opened for appending is not mixed."""
        done = Operation(doing, phase, str(job_id), pid=os.getpid(), at=self._now(), **facts)
        line = {name: value for name, value in asdict(done).items() if value is not None}
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        """Nothing more is added."""
        os.close(self._file)


def read(path: Path, start: int = 0) -> tuple[list[Operation], int]:
    """The operations from this place in the file on, and the place where they end."""
    if not path.exists():
        return [], start
    with path.open("rb") as file:
        file.seek(start)
        text = file.read()
    whole = text[: text.rfind(b"\n") + 1]
    return [Operation(**json.loads(line)) for line in whole.splitlines()], start + len(whole)


class DatabaseClock:
    """The database's time, in a process that may be cut off from it or have a wrong clock.

    Asked in the beginning, a few times, of which the quickest answer counts; from then on this
    process's own monotonic clock counts the seconds since.
    """

    def __init__(self, conn: Connection[Any]) -> None:
        self._ahead = min(_ahead(conn) for _ in range(_SAMPLES))[1]

    def now(self) -> str:
        """As an ISO date."""
        return datetime.fromtimestamp(time.monotonic() + self._ahead, UTC).isoformat()


def _ahead(conn: Connection[Any]) -> tuple[float, float]:
    """How long the answer took, and how far ahead of this process's clock the database is."""
    before = time.monotonic()
    row = conn.execute("select extract(epoch from clock_timestamp())::float8").fetchone()
    after = time.monotonic()
    assert row is not None
    return after - before, float(row[0]) - (before + after) / 2
