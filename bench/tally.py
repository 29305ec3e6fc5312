"""What the always-on tally costs: the same drain with it and without, in turn.

    python -m bench.tally [--rounds 9] [--jobs 40000]

The last line is JSON. CPU is of the worker's process alone; the other tenants of a machine disturb
it less than they do the wall clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from io import StringIO
from typing import Any

import psycopg

from faultline import App
from faultline.launcher import Server
from faultline.log import log_to
from faultline.migrate import migrate
from faultline.observer import NOBODY, Observer
from faultline.worker import Worker, WorkerOptions


def main() -> None:
    """Print the costs of both, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--jobs", type=int, default=40_000)
    given = parser.parse_args()
    seen: dict[str, list[tuple[float, float]]] = {"with": [], "without": []}
    with Server.temporary() as server:
        with psycopg.connect(server.url, autocommit=True) as conn:
            migrate(conn, "faultline")
        for round_ in range(-1, given.rounds):  # the first one warms up
            for name in ("with", "without") if round_ % 2 else ("without", "with"):
                took = drain(server.url, given.jobs, None if name == "with" else NOBODY)
                if round_ >= 0:
                    seen[name].append(took)
    print(json.dumps(summary(seen)))


def drain(url: str, jobs: int, observer: Observer | None) -> tuple[float, float]:
    """CPU and wall microseconds a job."""
    app = App(url)

    @app.task
    async def noop() -> None:
        return None

    noop.enqueue_many({} for _ in range(jobs))
    worker = Worker(app, WorkerOptions(max_jobs=jobs), log_to(StringIO(), level="info"))
    if observer is not None:
        worker._observer = observer  # type: ignore[assignment]

    async def run() -> tuple[float, float]:
        worker.prepare()
        cpu, wall = time.process_time(), time.monotonic()
        await worker.run()
        return time.process_time() - cpu, time.monotonic() - wall

    cpu, wall = asyncio.run(run())
    app.close()
    return cpu / jobs * 1e6, wall / jobs * 1e6


def summary(seen: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """Medians, and the median of the ratios of one round."""
    cpu = {name: [c for c, _ in took] for name, took in seen.items()}
    wall = {name: [w for _, w in took] for name, took in seen.items()}

    def ratio(of: dict[str, list[float]]) -> float:
        pairs = zip(of["with"], of["without"], strict=True)
        return round(statistics.median(a / b for a, b in pairs), 4)

    return {
        "rounds": len(cpu["with"]),
        "cpu_us_a_job": {name: round(statistics.median(c), 2) for name, c in cpu.items()},
        "wall_us_a_job": {name: round(statistics.median(w), 2) for name, w in wall.items()},
        "cpu_ratio": ratio(cpu),
        "wall_ratio": ratio(wall),
    }


if __name__ == "__main__":
    main()
