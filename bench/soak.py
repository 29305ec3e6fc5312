"""`make soak`: enqueue and drain at half of what this machine can, for minutes: does it stay fast?

First the maximum is measured: the median of three drains by one worker. Then one worker with its
defaults runs while jobs come in fifty times a second at half that rate, and twenty probes a second
one by one, through the public API. For each window (30 s) there are the rate of endings, the
probes' pickup latency (return of the enqueue to the first line of the handler) and the largest
sizes of the hot tables with their indexes, looked at twice a second. Compared are the first and the
last third; the first ten seconds count for nothing. Finished jobs are kept: ten minutes may be some
gigabytes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psycopg import sql
from rich.console import Console

from bench.arena import ENQUEUE_BATCH, Arena, Ground, ground
from bench.blocks import Say
from bench.report import facts, publish
from bench.rows import Bar, Row, percentile
from bench.scenarios.drain import block, warm_up
from faultline import App
from faultline.config import Settings
from faultline.connect import connect
from proofs.race import ended_cleanly

OUT = Path("reports/bench")
WINDOW_SECONDS = 30.0
START_SECONDS = 10.0
TICK_SECONDS = 0.02
PROBES_PER_SECOND = 20
SIZES_SECONDS = 0.5  # between two looks: vacuum comes every two seconds
HOT = ("ready", "lease", "scheduled")
# No drift, as far as a machine that is not all ours can tell.
RATE, P50, P99 = Bar(least=0.95), Bar(most=1.25), Bar(most=1.5)
HOT_MB = Bar(most=50)

ENDED = """
select floor(extract(epoch from at - %s) / %s)::integer, count(*)
  from {schema}.attempt where at >= %s group by 1"""


@dataclass
class Seen:
    """What was noted while it ran."""

    returned: dict[int, float]  # of each probe: when its enqueue had returned, by time.time
    sizes: list[tuple[float, dict[str, float]]]  # when, by time.time, and in MB
    enqueued: int = 0


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Measure the maximum, soak, judge."""
    minutes: float = arguments.minutes
    console = Console(stderr=True)

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    with ground(settings) as place:
        with place.arena() as arena:
            most = maximum(arena, arguments.jobs, say)
        rate: float = arguments.rate or most / 2
        say(f"at most {most:,.0f} jobs/s; {minutes:g} minutes at {rate:,.0f} …")
        windows = soak(place, rate, minutes * 60, say)
        command = f"python -m bench.soak {' '.join(sys.argv[1:])}".strip()
        report = facts(place.url, command, most_per_second=round(most), rate=round(rate))
    title = f"{minutes:g} minutes at {rate:,.0f} jobs/s; one worker drains {most:,.0f}"
    return publish(
        arguments.out, "soak", title, {**report, "windows": windows}, judged(windows, rate)
    )


def maximum(arena: Arena, jobs: int, say: Say) -> float:
    """What one worker drains, jobs a second."""
    warm_up(arena)
    measure = block(arena, jobs, lambda: arena.drain(jobs=jobs))
    found = [measure() for _ in range(3)]
    say(f"  drains: {', '.join(f'{one:,.0f}' for one in found)} jobs/s")
    return statistics.median(found)


def soak(place: Ground, rate: float, seconds: float, say: Say) -> list[dict[str, Any]]:
    """What was seen in each window."""
    length = min(WINDOW_SECONDS, seconds / 6)
    begun = place.folder / "begun"
    seen = Seen({}, [])
    with place.arena() as arena:
        worker = arena.worker(BENCH_BEGUN=str(begun))
        arena.wait_until_asleep(worker)
        with ExitStack() as stack:
            stack.enter_context(beside(lambda stop: feed(arena, rate, seen, stop)))
            stack.enter_context(beside(lambda stop: probe(arena, seen, stop)))
            stack.enter_context(beside(lambda stop: watch(arena, seen, stop)))
            time.sleep(min(START_SECONDS, seconds / 6))
            since, started = arena.now(), time.time()
            for number in range(round(seconds / length)):
                time.sleep(max(0.0, started + (number + 1) * length - time.time()))
                worker.check()
                told = largest(seen, started + number * length, length)
                say(f"  {(number + 1) * length:5.0f} s: {_told(told)}")
        arena.wait_until_done(worker)
        ended = dict(arena.rows(ENDED, since, length, since))
    began = _began(begun)
    return [
        window_of(number, seen, ended, began, started, length)
        for number in range(round(seconds / length))
    ]


@contextmanager
def beside(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run it in a thread until the block ends; what it raised is raised then."""
    stop, failed = threading.Event(), []

    def guarded() -> None:
        try:
            work(stop)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if failed:
        raise failed[0]


def feed(arena: Arena, rate: float, seen: Seen, stop: threading.Event) -> None:
    """Enqueue what is due at this rate, every tick."""
    with connect(arena.url, schema=None) as conn:
        started = time.monotonic()
        while not stop.wait(TICK_SECONDS):
            due = int(rate * (time.monotonic() - started)) - seen.enqueued
            arena.enqueue(min(due, ENQUEUE_BATCH), conn=conn)
            seen.enqueued += min(due, ENQUEUE_BATCH)


def probe(arena: Arena, seen: Seen, stop: threading.Event) -> None:
    """Enqueue one by one, through the public API."""
    with App(arena.producer_url, schema=arena.schema) as app:
        number = 0
        while not stop.wait(1 / PROBES_PER_SECOND):
            app.enqueue("probe", {"n": number})
            seen.returned[number] = time.time()
            number += 1


def watch(arena: Arena, seen: Seen, stop: threading.Event) -> None:
    """How large the hot tables are with their indexes, in MB."""
    asked = ", ".join(f"pg_total_relation_size('{arena.schema}.{table}')" for table in HOT)
    with connect(arena.url, schema=None) as conn:
        while not stop.wait(SIZES_SECONDS):
            row = conn.execute(sql.SQL(f"select {asked}")).fetchone()
            assert row is not None
            found = {table: round(size / 1e6, 2) for table, size in zip(HOT, row, strict=True)}
            seen.sizes.append((time.time(), found))


def window_of(
    number: int,
    seen: Seen,
    ended: dict[int, int],
    began: dict[int, float],
    started: float,
    length: float,
) -> dict[str, Any]:
    """When it ended, its rate, its latencies, and the largest sizes."""
    start = started + number * length
    waits = [
        1000 * (began[n] - at)
        for n, at in seen.returned.items()
        if start <= at < start + length and n in began
    ]
    return {
        "seconds": round((number + 1) * length, 1),
        "jobs_per_second": round(ended.get(number, 0) / length),
        "waits_ms": waits,
        "p50_ms": round(percentile(waits, 0.5), 2) if waits else None,
        "p99_ms": round(percentile(waits, 0.99), 2) if waits else None,
        "hot_mb": largest(seen, start, length),
    }


def largest(seen: Seen, start: float, length: float) -> dict[str, float]:
    """Of each table, from then on, in so many seconds."""
    found = [size for at, size in seen.sizes if start <= at < start + length]
    return {table: max((size[table] for size in found), default=0.0) for table in HOT}


def judged(windows: list[dict[str, Any]], rate: float) -> list[Row]:
    """The last third against the first."""
    third = max(1, len(windows) // 3)
    first, last = windows[:third], windows[-third:]
    rates = [statistics.mean(w["jobs_per_second"] for w in part) for part in (first, last)]
    rows = [
        Row("soak", "rate, last third against first", rates[1] / rates[0], "times", RATE),
        Row("soak", "rate of endings against the rate asked for", rates[1] / rate, "times", RATE),
    ]
    for name, part, bar in (("p50", 0.5, P50), ("p99", 0.99, P99)):
        a, b = (
            percentile([wait for window in these for wait in window["waits_ms"]], part)
            for these in (first, last)
        )
        told = {"first_ms": round(a, 2), "last_ms": round(b, 2)}
        what = f"pickup {name}, last third against first"
        rows.append(Row("soak", what, b / a, "times", bar, told))
    for table in HOT:
        most = max(window["hot_mb"][table] for window in windows)
        rows.append(Row("soak", f"largest size of {table}, with indexes", most, "MB", HOT_MB))
    for window in windows:
        del window["waits_ms"]  # thousands of numbers
    return rows


def _began(file: Path) -> dict[int, float]:
    pairs = (line.split() for line in file.read_text().splitlines())
    return {int(n): float(at) for n, at in pairs}


def _told(size: dict[str, float]) -> str:
    return ", ".join(f"{table} {mb:.1f} MB" for table, mb in size.items())


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="bench.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, metavar="N", help="(10)")
    parser.add_argument(
        "--jobs", type=int, default=100_000, metavar="N", help="in a drain that finds the maximum"
    )
    parser.add_argument("--rate", type=float, metavar="N", help="jobs/s (half of that maximum)")
    parser.add_argument("--out", type=Path, default=OUT, metavar="DIR", help=f"({OUT})")
    arguments = parser.parse_args()
    return ended_cleanly(lambda settings: run(settings, arguments))


if __name__ == "__main__":
    sys.exit(main())
