"""What the log says of declined jobs: one line for each unknown task and minute.

A million jobs of a renamed task would otherwise be a million lines. Each name has a line of its own
up to MOST_NAMES a minute; all names beyond that share one. Metrics and traces count every job.
"""

from __future__ import annotations

from faultline.events import Emit, UnknownTask
from faultline.jobs import Lease

LINE_SECONDS = 60.0
MOST_NAMES = 100


class UnknownTasks:
    """The lines of one worker process, and how many jobs each of them stands for."""

    def __init__(self, worker: str, emit: Emit) -> None:
        self._worker = worker
        self._emit = emit
        self._said_at: dict[
            str | None, float
        ] = {}  # None: all names that have no line of their own
        self._jobs: dict[str | None, int] = {}  # since that line

    def declined(self, lease: Lease, now: float) -> None:
        """Count a job that is declined; emit the line of its task if none came for a minute."""
        name = self._line_of(lease.task, now)
        self._jobs[name] = self._jobs.get(name, 0) + 1
        if now - self._said_at.get(name, -LINE_SECONDS) >= LINE_SECONDS:
            jobs, self._jobs[name], self._said_at[name] = self._jobs[name], 0, now
            self._emit(UnknownTask(self._worker, lease.job_id, lease.token, lease.task, jobs))

    def _line_of(self, task: str, now: float) -> str | None:
        """Return the task if it may have a line of its own. Drops names that are a minute old."""
        if task not in self._said_at and len(self._said_at) >= MOST_NAMES:
            due = now - LINE_SECONDS
            old = [name for name, at in self._said_at.items() if at <= due and not self._jobs[name]]
            for name in old:
                del self._said_at[name], self._jobs[name]
        return task if task in self._said_at or len(self._said_at) < MOST_NAMES else None
