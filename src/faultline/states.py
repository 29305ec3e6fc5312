"""The states of a job, and the moves between them, as data.

`MOVES` is the same table as the view `faultline.moves`; a test compares the two and makes every
move for real. docs/states.md has it as a table and as a picture.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class State(StrEnum):
    """Where a job stands. A running job holds exactly one lease."""

    SCHEDULED = "scheduled"
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # the dead letter: no attempts left
    QUARANTINED = "quarantined"
    CANCELLED = "cancelled"


FINAL: Final = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})

# (from, to, verb); from is None for a job that does not exist yet.
MOVES: Final[frozenset[tuple[State | None, State, str]]] = frozenset(
    {
        (None, State.QUEUED, "enqueue"),
        (None, State.SCHEDULED, "enqueue"),
        (State.SCHEDULED, State.QUEUED, "promote"),
        (State.SCHEDULED, State.QUEUED, "retry"),
        (State.SCHEDULED, State.QUEUED, "know_tasks"),  # a worker that has its handler has come
        (State.QUEUED, State.RUNNING, "claim"),
        (State.QUEUED, State.QUARANTINED, "claim"),  # its text is too large for any claim
        (State.RUNNING, State.SUCCEEDED, "complete"),
        (State.RUNNING, State.SCHEDULED, "fail"),
        (State.RUNNING, State.FAILED, "fail"),
        (State.RUNNING, State.SCHEDULED, "snooze"),
        (State.RUNNING, State.SCHEDULED, "decline"),  # its worker has no handler for its task
        (State.RUNNING, State.QUEUED, "release"),
        (State.RUNNING, State.QUEUED, "reclaim"),
        (State.RUNNING, State.SCHEDULED, "reclaim"),  # it has crashed before
        (State.RUNNING, State.QUARANTINED, "reclaim"),  # it crashed as often as it may
        (State.RUNNING, State.CANCELLED, "cancel"),
        (State.QUEUED, State.CANCELLED, "cancel"),
        (State.SCHEDULED, State.CANCELLED, "cancel"),
        (State.QUARANTINED, State.CANCELLED, "cancel"),
        (State.QUEUED, State.QUARANTINED, "promote"),  # its token has reached the top
        (State.FAILED, State.QUEUED, "requeue"),
        (State.QUARANTINED, State.QUEUED, "requeue"),
    }
)
