"""Points in a handler at which it can be held, so that a fault hits exactly there.

Both sides know a folder. The first attempt that comes to a point at which its job is to be held
says so in a file and waits for another one; every later attempt passes. Files, because they work
for a process that is stopped, killed, or cut off from the database.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

_LOOK_SECONDS = 0.004


@dataclass(frozen=True, slots=True)
class Arrival:
    """Who waits at a point."""

    job_id: str
    point: str
    token: int
    pid: int
    clock: float  # what that process believes the time is, in seconds since 1970


class Points:
    """The points of one arena."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    # ── the handler's side ──────────────────────────────────────────────────────────────────────

    def arrive(self, job_id: str, point: str, token: int) -> bool:
        """Whether this attempt is the first one here, and has to wait."""
        arrival = Arrival(job_id, point, token, os.getpid(), time.time())
        draft = self._folder / f"{job_id}.{point}.{token}.{os.getpid()}"
        draft.write_text(json.dumps(asdict(arrival)))
        try:
            os.link(draft, self._arrived(job_id, point))  # with its content, or not at all
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        return True

    def is_open(self, job_id: str, point: str) -> bool:
        """Whether the attempt that waits may go on."""
        return self._go(job_id, point).exists()

    def wait(self, job_id: str, point: str) -> None:
        """In a thread; or in an event loop that is to be blocked."""
        while not self.is_open(job_id, point):
            time.sleep(_LOOK_SECONDS)

    async def wait_deaf(self, job_id: str, point: str) -> None:
        """In an event loop, deaf to cancellation: the handler that does not listen."""
        while not self.is_open(job_id, point):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(_LOOK_SECONDS)

    def leave_note(self, job_id: str, name: str, text: str) -> None:
        """Something that only the handler can know."""
        draft = self._folder / f"{job_id}.{name}.draft"
        draft.write_text(text)
        draft.rename(self._note(job_id, name))

    # ── the driver's side ───────────────────────────────────────────────────────────────────────

    def arrival(self, job_id: str, point: str) -> Arrival | None:
        """Who waits there, if anybody does."""
        try:
            return Arrival(**json.loads(self._arrived(job_id, point).read_text()))
        except FileNotFoundError:
            return None

    def open(self, job_id: str, point: str) -> None:
        """Whoever waits there goes on, and whoever comes."""
        self._go(job_id, point).touch()

    def note(self, job_id: str, name: str) -> str | None:
        """What was left, if anything was."""
        try:
            return self._note(job_id, name).read_text()
        except FileNotFoundError:
            return None

    def _note(self, job_id: str, name: str) -> Path:
        return self._folder / f"{job_id}.{name}.note"

    def _arrived(self, job_id: str, point: str) -> Path:
        return self._folder / f"{job_id}.{point}.arrived"

    def _go(self, job_id: str, point: str) -> Path:
        return self._folder / f"{job_id}.{point}.go"
