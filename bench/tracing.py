"""`make bench-tracing`: what tracing costs, as a ratio to a process without OpenTelemetry.

    absent       the process has not imported it
    api          it has the API and no SDK: spans are not made
    unsampled    it has an SDK whose sampler takes nothing
    recorded     every span is recorded and exported, to nowhere

    enqueue      jobs one by one, each a round trip and a commit
    drain        a worker and jobs that do nothing: what tracing costs is nowhere larger

Counted are the microseconds of CPU that the producer's or the worker's process spends on a job, as
the kernel says: what the server does, and who else is on the machine, is not in it. Blocks of the
kinds alternate, each in a process of its own; medians of all rounds, and ratios of each to the
`absent` of its own round. The last line is one JSON object. Compare only figures of one run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

from bench.arena import Arena, ground
from bench.blocks import Measured, alternated, medians
from bench.traced import KINDS
from faultline.config import Settings
from proofs.stopwatch import finish

ROUNDS = 7
ENQUEUED = 1_500
DRAINED = 30_000


def say(line: str) -> None:
    """For people."""
    print(line, file=sys.stderr, flush=True)


def enqueue(arena: Arena, kind: str) -> float:
    """Microseconds a job, of a producer's process."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.traced", str(ENQUEUED)],
        env={**os.environ, "FAULTLINE_DATABASE_URL": arena.producer_url, "BENCH_TRACING": kind},
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout)


def drain(arena: Arena, kind: str) -> float:
    """Microseconds a job, of a worker's process, from when it has started and waits."""
    arena.empty()
    arena.settle()
    worker = arena.worker(app="bench.traced:app", BENCH_TRACING=kind)
    arena.wait_until_asleep(worker)
    before = worker.cpu_seconds()
    arena.enqueue(DRAINED)
    arena.wait_until_done(worker)
    spent = worker.cpu_seconds() - before
    worker.end()
    arena.run("delete from {schema}.sleeper")
    return spent / DRAINED * 1e6


def to_absent(rounds: Measured) -> Measured:
    """Each figure as a ratio to that of its round without OpenTelemetry."""
    return {
        kind: [one / absent for one, absent in zip(figures, rounds["absent"], strict=True)]
        for kind, figures in rounds.items()
    }


def main() -> None:
    """Both, and the ratios."""
    seen: dict[str, Measured] = {}
    with ground(Settings.from_environment()) as server, server.arena() as arena:
        for name, measure in {"enqueue": enqueue, "drain": drain}.items():
            say(f"{name}:")
            kinds = {kind: partial(measure, arena, kind) for kind in KINDS}
            seen[name] = alternated(ROUNDS, kinds, say, "µs")
    ratios = {name: medians(to_absent(rounds)) for name, rounds in seen.items()}
    figures = {name: medians(rounds) for name, rounds in seen.items()}
    for name, by_kind in figures.items():
        for kind, spent in by_kind.items():
            say(f"{name:8} {kind:10} {spent:8.0f} µs  {ratios[name][kind]:.2f}")
    finish("bench-tracing", {"cpu_us_per_job": figures, "ratio_to_absent": ratios})


if __name__ == "__main__":
    main()
