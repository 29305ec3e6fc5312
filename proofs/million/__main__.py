"""`make million`: a million jobs in the tables, and every endpoint answers within 300 ms.

Fills a server of its own, starts `faultline api` as a process, and asks for every operation of its
OpenAPI several times: lists by each filter, first pages and pages deep inside, for states and names
of which the newest hundred thousands have none. The table is on stderr; the last line on stdout is
one JSON object, and the exit status is 0 when every single answer was right and in time.
"""

from __future__ import annotations

import argparse
import sys

import psycopg

from faultline.launcher import Server
from faultline.migrate import migrate
from faultline.provenance import provenance
from proofs.million.asking import Timed, ask, questions
from proofs.million.filling import fill
from proofs.serving import Service
from proofs.stopwatch import finish

LIMIT_MS = 300.0
SCHEMA = "faultline"


def measure(url: str, jobs: int, times: int) -> tuple[list[Timed], set[str]]:
    """Fill the installation, ask everything; also the operations that nothing was asked of."""
    with psycopg.connect(url, autocommit=True) as conn, Service(url) as service:
        fill(conn, SCHEMA, jobs)
        asked = questions(conn, SCHEMA)
        caller = service.caller()
        caller("GET", "/jobs")  # opens its first connection
        spec = caller("GET", "/openapi.json").body
        caller.close()
        known = {
            f"{method.upper()} {path}"
            for path, methods in spec["paths"].items()
            for method in methods
        }
        timed = [ask(service, question, times) for question in asked]
    return timed, known - {question.operation for question in asked}


def main() -> int:
    """As a command."""
    options = argparse.ArgumentParser(prog="python -m proofs.million")
    options.add_argument("--jobs", type=int, default=1_000_000)
    options.add_argument("--times", type=int, default=5, help="each question is asked")
    given = options.parse_args()
    print(f"filling the tables with {given.jobs:,} jobs …", file=sys.stderr)
    with Server.temporary(options={"shared_buffers": "128MB"}) as server:
        with psycopg.connect(server.url, autocommit=True) as conn:
            migrate(conn, SCHEMA)
            version = conn.info.server_version
        timed, forgotten = measure(server.url, given.jobs, given.times)
    for one in sorted(timed, key=lambda one: -one.worst_ms):
        told = f"  {one.wrong}" if one.wrong else ""
        print(
            f"{one.median_ms:8.1f} {one.worst_ms:8.1f} ms  {one.question.name}{told}",
            file=sys.stderr,
        )
    worst = max(timed, key=lambda one: one.worst_ms)
    wrong = [one.question.name for one in timed if one.wrong]
    held = worst.worst_ms < LIMIT_MS and not wrong and not forgotten
    summary = {
        "jobs": given.jobs,
        "operations": len({one.question.operation for one in timed}),
        "questions": len(timed),
        "asked": len(timed) * given.times,
        "limit_ms": LIMIT_MS,
        "worst_ms": round(worst.worst_ms, 1),
        "worst": worst.question.name,
        "slowest_median_ms": round(max(one.median_ms for one in timed), 1),
        "wrong": wrong,
        "forgotten": sorted(forgotten),
        "held": held,
        **provenance("make million", version),
    }
    finish("million", summary)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
