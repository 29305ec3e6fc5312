"""`make bench-first`: how long the first enqueue of a process takes, and `import faultline`.

    opened    the process has called `app.open()`; then it enqueues every 20 ms
    lazy      the same without `open`: the first enqueue imports and connects
    import    a process that imports faultline and ends, less one that does nothing

A figure is the median of ten processes; the kinds take turns. Of the later enqueues, the slowest of
the twenty medians counts. Python's bytecode is there already, as after an installation. The last
line is one JSON object; the exit status is 1 if a bar was missed.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping

from bench.arena import ground
from faultline.config import Settings

PROCESSES = 10
LATER = 20
BARS_MS = {"first": 10.0, "later": 2.0, "import": 40.0, "import_cpu": 40.0}  # at most

PROGRAM = f"""
import sys, time
from faultline import App
app = App()
if sys.argv[1] == "opened":
    app.open()
for _ in range({LATER + 1}):
    sent = time.perf_counter()
    app.enqueue("bench")
    print((time.perf_counter() - sent) * 1e3)
    time.sleep(0.02)
"""


def enqueues(kind: str, environment: Mapping[str, str]) -> list[float]:
    """Milliseconds of each enqueue of one process."""
    command = [sys.executable, "-c", PROGRAM, kind]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return [float(line) for line in done.stdout.splitlines()]


def interpreter(program: str, environment: Mapping[str, str]) -> tuple[float, float]:
    """Milliseconds from start to end of a process, and of its CPU time."""
    before, started = _cpu_seconds(), time.perf_counter()
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    return (time.perf_counter() - started) * 1e3, (_cpu_seconds() - before) * 1e3


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def imports(environment: Mapping[str, str]) -> dict[str, float]:
    """Milliseconds that importing adds to a process: by the wall's clock, and of CPU time."""
    seen: dict[str, list[tuple[float, float]]] = {"pass": [], "import faultline": []}
    for program in seen:
        interpreter(program, environment)  # writes bytecode; not counted
    for _ in range(PROCESSES):
        for program, figures in seen.items():
            figures.append(interpreter(program, environment))
    (wall, cpu), (wall_with, cpu_with) = (
        map(statistics.median, zip(*figures, strict=True)) for figures in seen.values()
    )
    return {"import": wall_with - wall, "import_cpu": cpu_with - cpu}


def first(environment: Mapping[str, str]) -> dict[str, float]:
    """Milliseconds of the first enqueue and of the later ones, and of the first without `open`."""
    seen: dict[str, list[list[float]]] = {"opened": [], "lazy": []}
    for kind in seen:
        enqueues(kind, environment)  # writes bytecode and makes the lane; not counted
    for _ in range(PROCESSES):
        for kind, figures in seen.items():
            figures.append(enqueues(kind, environment))
    medians = {
        kind: [statistics.median(sample) for sample in zip(*figures, strict=True)]
        for kind, figures in seen.items()
    }
    opened = medians["opened"]
    return {"first": opened[0], "later": max(opened[1:]), "first_lazy": medians["lazy"][0]}


def main() -> int:
    """Measure on an embedded server, or on that of FAULTLINE_DATABASE_URL."""
    usual = {name: v for name, v in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with ground(Settings.from_environment()) as server, server.arena() as arena:
        here = {"FAULTLINE_DATABASE_URL": arena.producer_url, "FAULTLINE_SCHEMA": arena.schema}
        figures = first({**usual, **here}) | imports(usual)
    missed = [name for name, bar in BARS_MS.items() if figures[name] > bar]
    for name, figure in figures.items():
        bar = f"at most {BARS_MS[name]:g}" if name in BARS_MS else "-"
        print(f"{name:11} {figure:6.1f} ms   {bar}", file=sys.stderr)
    rounded = {name: round(figure, 2) for name, figure in figures.items()}
    print(json.dumps({"median_ms": rounded, "bars_ms": BARS_MS, "missed": missed}))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
