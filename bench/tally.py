"""What the always-on tally costs: the same drain with it and without, in turn.

    python -m bench.tally [--rounds 9] [--jobs 40000]

The last line is JSON. CPU is of the worker's process alone; the other tenants of a machine disturb
it less than they do the wall clock, and still by more than what is measured here. So the tally is
also called by itself, for batches of 500: `tally_us_a_job`, the best of many.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from contextlib import AbstractContextManager, nullcontext
from io import StringIO
from typing import Any

import psycopg

from faultline import App
from faultline.ids import Ids
from faultline.jobs import Lane, Lease
from faultline.launcher import Server
from faultline.log import log_to
from faultline.migrate import migrate
from faultline.observer import NOBODY, Observer
from faultline.worker import Worker, WorkerOptions
from faultline.worker.attempt import Attempt
from faultline.worker.endings import Completed


def main() -> None:
    """Print the costs of both, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--jobs", type=int, default=40_000)
    given = parser.parse_args()
    seen: dict[str, list[tuple[float, float]]] = {"with": [], "without": []}
    with Server.temporary() as server, psycopg.connect(server.url, autocommit=True) as conn:
        migrate(conn, "faultline")
        for round_ in range(-1, given.rounds):  # the first one warms up
            for name in random.sample(list(seen), len(seen)):
                conn.execute("truncate faultline.job, faultline.attempt")
                conn.execute("checkpoint")
                took = drain(server.url, given.jobs, None if name == "with" else NOBODY)
                if round_ >= 0:
                    seen[name].append(took)
    print(json.dumps(summary(seen)))


def drain(
    url: str,
    jobs: int,
    observer: Observer | None = None,
    around: AbstractContextManager[object] | None = None,
) -> tuple[float, float]:
    """CPU and wall microseconds a job, while the worker runs; and that in this context."""
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
        with around or nullcontext():
            await worker.run()
        return time.process_time() - cpu, time.monotonic() - wall

    cpu, wall = asyncio.run(run())
    app.close()
    return cpu / jobs * 1e6, wall / jobs * 1e6


def by_itself(jobs: int = 500) -> float:
    """Microseconds a job, of claiming and settling a batch; nobody else has a say in the best."""
    app = App("postgresql://nowhere")

    @app.task
    async def noop() -> None:
        return None

    tally, now = app.telemetry.tally, time.monotonic()
    tally.lanes([Lane(1, "default", 0)])
    attempts = [
        Attempt(Lease(job_id, 1, 1, 1, 0, 0, 0, 30.0, "noop", {}, None), noop, now)
        for job_id in Ids().many(jobs)
    ]
    for attempt in attempts:
        attempt.took_seconds = 1e-5
    endings = [Completed(attempt, None) for attempt in attempts]
    best = float("inf")
    for _ in range(300):
        began = time.perf_counter()
        tally.claimed(attempts, now)
        tally.settled(endings, [])
        best = min(best, time.perf_counter() - began)
    return best / jobs * 1e6


def summary(seen: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """Medians, and their ratios."""
    cpu = {name: [c for c, _ in took] for name, took in seen.items()}
    wall = {name: [w for _, w in took] for name, took in seen.items()}

    def ratio(of: dict[str, list[float]]) -> float:
        return round(statistics.median(of["with"]) / statistics.median(of["without"]), 4)

    return {
        "tally_us_a_job": round(by_itself(), 2),
        "rounds": len(cpu["with"]),
        "cpu_us_a_job": {name: round(statistics.median(c), 2) for name, c in cpu.items()},
        "wall_us_a_job": {name: round(statistics.median(w), 2) for name, w in wall.items()},
        "cpu_ratio": ratio(cpu),
        "wall_ratio": ratio(wall),
    }


if __name__ == "__main__":
    main()
