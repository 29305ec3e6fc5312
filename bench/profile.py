"""`make bench-profile`: where the microseconds of a job go, in the worker and in the server.

    python -m bench.profile [--rounds 5] [--jobs 100000]

One worker drains no-op async jobs. Rounds without a profiler say what a job costs the processor, in
the worker's process and in all of the server's. In the others a timer looks a thousand times a
second at what the worker's main thread is doing; each look at work, and not at waiting, counts for
the innermost module of Faultline's on the stack, and these shares are those of the worker's
microseconds. The last line is JSON.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import psycopg

import faultline
from bench.tally import drain
from faultline.drills.workers import descendants
from faultline.launcher import Server
from faultline.migrate import migrate
from proofs.stopwatch import finish

EVERY_SECONDS = 0.001
PACKAGE = f"{Path(faultline.__file__).parent}{os.sep}"
WAITS = ("selectors.py", "threading.py")  # for the server, and for the keeper to begin and end
ELSEWHERE = "asyncio"


def main() -> None:
    """Print what was found, the most first."""
    parser = argparse.ArgumentParser(prog="bench.profile", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="of each kind (5)")
    parser.add_argument("--jobs", type=int, default=100_000, metavar="N", help="(100000)")
    given = parser.parse_args()
    worker: list[float] = []
    server: list[float] = []
    looks: Counter[str] = Counter()
    with Server.temporary() as place, psycopg.connect(place.url, autocommit=True) as conn:
        migrate(conn, "faultline")
        for number in range(-1, given.rounds):  # the first one warms up
            empty(conn)
            used: list[float] = []
            cpu, _ = drain(place.url, given.jobs, around=measuring(place.pid, used))
            empty(conn)
            found: Counter[str] = Counter()
            drain(place.url, given.jobs, around=looking(found))
            if number >= 0:
                worker.append(cpu)
                server.append(1e6 * used[0] / given.jobs)
                looks += found
    worker_us = statistics.median(worker)
    by_module = {
        name: round(worker_us * seen / looks.total(), 2) for name, seen in looks.most_common()
    }
    for name, us in by_module.items():
        print(f"{us:7.2f} us  {name}")
    told = {
        "worker_us_a_job": round(worker_us, 2),
        "server_us_a_job": round(statistics.median(server), 2),
        "looks": looks.total(),
        "worker_us_by_module": by_module,
    }
    finish("bench-profile", {"jobs": given.jobs, "rounds": given.rounds, **told})


def empty(conn: psycopg.Connection[tuple[object, ...]]) -> None:
    """The same start for every drain."""
    conn.execute("truncate faultline.job, faultline.attempt")
    conn.execute("checkpoint")


@contextmanager
def measuring(postmaster: int, used: list[float]) -> Iterator[None]:
    """Processor seconds of the server and all its processes, also those that end meanwhile."""
    before = cpu_seconds(postmaster)
    yield
    used.append(cpu_seconds(postmaster) - before)


def cpu_seconds(postmaster: int) -> float:
    """Until now: of these that run, and of the children that each has seen end."""
    ticks = 0
    for pid in [postmaster, *descendants(postmaster)]:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def looking(found: Counter[str]) -> Iterator[None]:
    """Count where the main thread is, now and then."""

    def look(_: int, frame: FrameType | None) -> None:
        if frame is not None and not frame.f_code.co_filename.endswith(WAITS):
            found[module_of(frame)] += 1

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, EVERY_SECONDS, EVERY_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def module_of(innermost: FrameType) -> str:
    """Of Faultline's, the innermost; the loop's own work has none."""
    frame: FrameType | None = innermost
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            return frame.f_code.co_filename.removeprefix(PACKAGE)
        frame = frame.f_back
    return ELSEWHERE


if __name__ == "__main__":
    main()
