"""When a job is tried again: the task's backoff, and what a handler raises to decide for itself.

    raise Retry(after=30)       this attempt failed; the next one in half a minute
    raise Snooze(60)            not now: again in a minute, and this was no attempt
    raise Cancel("sold out")    nothing more to do; the job ends as cancelled

They are words of the handler to its worker, not errors of Faultline: `except FaultlineError` does
not swallow them. The delays themselves are computed by the database.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from faultline.errors import InvalidArgument

_LONGEST_BACKOFF_SECONDS = 1e9  # as the database has it
_LONGEST_DELAY_SECONDS = 1e10


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds before the next try: base, 2·base, 4·base … up to the cap, each shortened at random
    by up to half."""

    base: float = 2
    cap: float = 300

    def __post_init__(self) -> None:
        as_seconds("Backoff: base", self.base, _LONGEST_BACKOFF_SECONDS)
        as_seconds("Backoff: cap", self.cap, _LONGEST_BACKOFF_SECONDS)


class Retry(Exception):
    """The attempt failed; try again after so many seconds, or after the task's own backoff.

    It counts as an attempt: a job without any left is dead.
    """

    def __init__(self, after: float | timedelta | None = None, reason: str | None = None) -> None:
        self.after = None if after is None else as_seconds("Retry: after", after)
        self.reason = reason
        super().__init__(reason or "the handler asks for another try")


class Snooze(Exception):
    """Not now: the job comes back after so many seconds, and no attempt is used up."""

    def __init__(self, seconds: float | timedelta) -> None:
        self.seconds = as_seconds("Snooze: seconds", seconds)
        super().__init__(f"the handler puts the job off by {self.seconds:g} s")


class Cancel(Exception):
    """The job ends as cancelled, whatever attempts are left."""

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason
        super().__init__(reason or "the handler cancels the job")


def as_seconds(what: str, value: Any, most: float = _LONGEST_DELAY_SECONDS) -> float:
    """A length of time as seconds, or InvalidArgument naming `what` was wrong."""
    given = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= most:
        raise InvalidArgument(f"{what} is {value!r}, it must be seconds from 0 to {most:g}")
    return float(given)
