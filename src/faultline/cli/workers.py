"""`faultline workers`: who is there, what each holds, and who has gone silent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from faultline.beats import is_silent
from faultline.cli import options
from faultline.cli.database import installation
from faultline.cli.display import Column, nothing, print_json, print_table
from faultline.log import duration


def workers(as_json: options.AsJson = False) -> None:
    """List the workers, and what each holds.

    A worker that was killed stays listed, as silent, until it is forgotten after a day. Exit status
    3 if there is none.

    \b
    Example:
      faultline workers
    """
    with installation() as here:
        found = here.reading.workers(here.conn)
    if as_json:
        print_json(found)
    if not found:
        nothing("there are no workers: start one with faultline worker module:app")
    if not as_json:
        print_table(found, COLUMNS)


def _condition(worker: Mapping[str, Any]) -> str:
    if is_silent(worker):
        return "silent"
    return "idle" if worker["asleep"] or not worker["leases"] else "busy"


COLUMNS = [
    Column("worker", lambda worker: worker["worker"]),
    Column("", _condition, state=True),
    Column("queues", lambda worker: worker["queues"]),
    Column("jobs", lambda worker: worker["leases"], number=True),
    Column("seen", lambda worker: f"{duration(worker['silent_seconds'])} ago"),
    Column("", lambda worker: _off(worker["clock_difference_seconds"])),
]


def _off(seconds: float | None) -> str:
    return "" if seconds is None or abs(seconds) < 1 else f"its clock is off by {duration(seconds)}"
