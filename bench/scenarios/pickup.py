"""Pickup latency: a job comes every 20 ms to a worker that has nothing else to do.

Counted from the moment at which `enqueue` has returned, so that its commit is done, to the first
line of the handler; both read the same machine's clock. A worker may begin before the enqueuer has
heard of its own commit: such a latency is below zero and is kept.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from bench.arena import Arena, Ground
from bench.blocks import Say
from bench.plan import Plan
from bench.rows import Row, percentile
from bench.workers import Worker
from faultline import App

PER_SECOND = 50
SECONDS = 10.0  # of a round


def run(ground: Ground, plan: Plan, say: Say) -> list[Row]:
    """p50 and p99 of each round, and their medians."""
    begun = ground.folder / "begun"
    p50, p99 = [], []
    with ground.arena() as arena:
        worker = arena.worker(BENCH_BEGUN=str(begun))
        count = max(PER_SECOND // 2, round(plan.seconds(SECONDS) * PER_SECOND))
        measure(arena, worker, begun, PER_SECOND)  # warm
        for number in range(plan.rounds):
            found = measure(arena, worker, begun, count)
            p50.append(percentile(found, 0.5) * 1000)
            p99.append(percentile(found, 0.99) * 1000)
            say(f"  round {number + 1} of {plan.rounds}: p50 {p50[-1]:.1f}, p99 {p99[-1]:.1f} ms")
    facts = {"jobs": count, "p50_ms": _tenths(p50), "p99_ms": _tenths(p99)}
    what = f"pickup latency on an idle system, {PER_SECOND} jobs/s"
    return [
        Row("pickup", f"{what}: p50", statistics.median(p50), "ms", None, facts),
        Row("pickup", f"{what}: p99", statistics.median(p99), "ms", None, facts),
    ]


def measure(arena: Arena, worker: Worker, begun: Path, count: int) -> list[float]:
    """The latency of each job, in seconds."""
    begun.write_bytes(b"")  # the worker has it open, and goes on at its end
    arena.wait_until_asleep(worker)
    arena.settle()
    with App(arena.producer_url, schema=arena.schema) as app:
        returned = trickle(app, count)
    arena.wait(lambda: begun.read_bytes().count(b"\n") >= count, worker)
    lines = (line.split() for line in begun.read_text().splitlines())
    began = {int(n): float(at) for n, at in lines}
    return [began[n] - returned[n] for n in range(count)]


def trickle(app: App, count: int, task: str = "probe") -> dict[int, float]:
    """Enqueue one job after the other, at the rate; when each enqueue had returned."""
    returned = {}
    app.enqueue("noop", queue="elsewhere")  # connected
    start = time.monotonic()
    for n in range(count):
        time.sleep(max(0.0, start + n / PER_SECOND - time.monotonic()))
        app.enqueue(task, {"n": n})
        returned[n] = time.time()
    return returned


def _tenths(values: list[float]) -> list[float]:
    return [round(value, 2) for value in values]
