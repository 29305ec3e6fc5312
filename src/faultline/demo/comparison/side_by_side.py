"""Both contenders under the same schedule, at the same time, on the same server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from faultline.demo import naive
from faultline.demo.comparison import tables
from faultline.demo.comparison.contenders import Contender, Faultline, Naive
from faultline.demo.comparison.driver import Drive
from faultline.demo.comparison.schedule import Schedule
from faultline.demo.comparison.verdict import complaints, figures

STEP_SECONDS = 0.02

Listener = Callable[[Drive], None]


@contextmanager
def arena(url: str, schema: str) -> Iterator[None]:
    """The tables of the harness and of the naive queue; both go again."""
    with tables.harness(url) as conn:
        for home in (tables, naive):
            conn.execute(home.at_home(home.CLEAR_UP, schema))  # of a run that was killed
            conn.execute(home.at_home(home.SETUP, schema))
    try:
        yield
    finally:
        with tables.harness(url) as conn:
            for home in (tables, naive):
                conn.execute(home.at_home(home.CLEAR_UP, schema))


def compare(
    url: str, schema: str, schedule: Schedule, listener: Listener | None = None
) -> dict[str, Any]:
    """One fault rate: what came out for each, and why it would be invalid."""
    contenders: list[Contender] = [Faultline(schema), Naive(schema)]
    with ExitStack() as stack:
        drives = []
        for contender in contenders:
            conn = stack.enter_context(tables.harness(url))
            drives.append(stack.enter_context(Drive(url, contender, schedule, conn)))
        while waiting := [drive for drive in drives if not drive.over]:
            for drive in waiting:
                drive.step()
                if listener is not None:
                    listener(drive)
            time.sleep(STEP_SECONDS)
        runs = {drive.contender.name: drive.finish() for drive in drives}
    return {
        "fault_rate": schedule.fault_rate,
        "jobs": len(schedule),
        "seed": schedule.seed,
        "schedule": schedule.listed(),
        "invalid": [text for run in runs.values() for text in complaints(run)],
        **{name: figures(run) for name, run in runs.items()},
    }
