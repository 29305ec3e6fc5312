"""`make comparison`: run it, show it, write reports/latest/comparison.json.

Exits with 1 if Faultline broke its promise, or if the run is invalid; says why.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from faultline.config import Settings
from faultline.connect import connect
from faultline.demo.comparison.contenders import CONCURRENCY
from faultline.demo.comparison.driver import WORKERS
from faultline.demo.comparison.schedule import LEASE_SECONDS, plan
from faultline.demo.comparison.showing import progress, table
from faultline.demo.comparison.side_by_side import arena, compare
from faultline.demo.ground import installation
from faultline.provenance import provenance
from proofs.race import ended_cleanly
from proofs.stopwatch import finish

RESULT = Path("reports/latest/comparison.json")
RATES = (0.05, 0.1, 0.2)
JOBS = 200
SEED = 1


def summary(rates: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All rates together, in one line."""

    def total(name: str, key: str) -> int:
        return sum(rate[name][key] for rate in rates)

    return {
        "fault_rates": [rate["fault_rate"] for rate in rates],
        "jobs": total("faultline", "jobs"),
        "faults": total("faultline", "faults"),
        "faultline_duplicates": total("faultline", "duplicates"),
        "naive_duplicates": total("naive", "duplicates"),
        "faultline_lost": total("faultline", "lost"),
        "naive_lost": total("naive", "lost"),
        "invariant_violations": max(rate["faultline"]["violations"] for rate in rates),
        "stale_writes_prevented": total("faultline", "stale_refused"),
        "valid": not any(rate["invalid"] for rate in rates),
    }


def held(found: dict[str, Any]) -> bool:
    """Whether Faultline kept its promise, in a run that could have shown otherwise."""
    broken = ("faultline_duplicates", "faultline_lost", "invariant_violations")
    return found["valid"] and not any(found[key] for key in broken)


def comparison(settings: Settings, console: Console, arguments: argparse.Namespace) -> int:
    """Every rate in turn."""
    began = time.monotonic()
    rates = []
    with installation(settings) as (url, schema):
        with connect(url, schema=schema) as conn:
            server_version = conn.info.server_version
        for fault_rate in arguments.rates:
            schedule = plan(arguments.seed, fault_rate, arguments.jobs)
            console.print(
                f"{len(schedule)} jobs, {len(schedule.faults)} of them hit by a fault, "
                f"on {WORKERS} workers of each queue …"
            )
            with arena(url, schema), progress(console) as listener:
                rates.append(compare(url, schema, schedule, listener))
    console.print(table(rates))
    for complaint in (text for rate in rates for text in rate["invalid"]):
        print(f"invalid: {complaint}", file=sys.stderr)
    found = summary(rates)
    result = {
        **provenance(arguments.command, server_version),
        "seed": arguments.seed,
        "seconds": round(time.monotonic() - began, 1),
        "lease_seconds": LEASE_SECONDS,
        "workers": WORKERS,
        "concurrency": CONCURRENCY,
        **found,
        "rates": rates,
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    console.file.flush()
    finish("comparison", found)
    return 0 if held(found) else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m proofs.comparison`."""
    parser = argparse.ArgumentParser(
        prog="proofs.comparison", description="Faultline and a naive queue under the same faults."
    )
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"at each rate (default {JOBS})")
    parser.add_argument("--seed", type=int, default=SEED, help=f"of everything (default {SEED})")
    parser.add_argument(
        "--rates", type=float, nargs="+", default=RATES, help="parts of the jobs that are hit"
    )
    given = list(sys.argv[1:] if arguments is None else arguments)
    parsed = parser.parse_args(given)
    parsed.command = " ".join(["python -m proofs.comparison", *given]) if given else COMMAND
    return ended_cleanly(lambda settings: comparison(settings, Console(), parsed))


COMMAND = "make comparison"

if __name__ == "__main__":
    sys.exit(main())
