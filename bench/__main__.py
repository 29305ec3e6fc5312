"""`make bench`: what Faultline does against what the same server could do, on this machine.

Each scenario makes a database of its own and says what it counts in its module. Figures are medians
of rounds in which ours and what it is compared with alternate. The last line on stdout is one JSON
object; all of it, with plots, is in reports/bench. The exit status is 1 if a bar was missed.

    python -m bench --only drain,fence
    python -m bench --quick
    python -m bench --markdown            the table of the last run, as in docs/benchmarks.md
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import psycopg
from rich.console import Console

from bench.arena import ground
from bench.plan import Plan
from bench.report import facts, markdown, publish
from bench.rows import Row, failed
from bench.scenarios import NAMES, scenario
from faultline.config import Settings
from faultline.errors import FaultlineError
from proofs.race import ended_cleanly

OUT = Path("reports/bench")


def run(settings: Settings, plan: Plan, names: list[str], out: Path) -> int:
    """The scenarios one after the other."""
    console = Console(stderr=True)

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    rows: list[Row] = []
    took: dict[str, int] = {}
    with ground(settings) as place:
        for name in names:
            say(f"{name} …")
            began = time.monotonic()
            try:
                rows += scenario(name)(place, plan, say)
            except (RuntimeError, AssertionError, OSError, psycopg.Error, FaultlineError) as error:
                say(f"  failed: {error!r}")
                rows.append(failed(name, error))
            took[name] = round(time.monotonic() - began)
        report = facts(
            place.url,
            f"python -m bench {' '.join(sys.argv[1:])}".strip(),
            jobs=plan.jobs,
            rounds=plan.rounds,
            own_server=place.server is not None,
            seconds=took,
        )
    return publish(out, "bench", f"Faultline, {plan.rounds} rounds", report, rows)


def plan_of(arguments: argparse.Namespace) -> Plan:
    """The full plan or the quick one, with what was asked for otherwise."""
    plan = Plan.quick() if arguments.quick else Plan()
    if arguments.jobs is not None:
        plan = replace(plan, jobs=arguments.jobs)
    if arguments.rounds is not None:
        plan = replace(plan, rounds=arguments.rounds)
    return plan


def chosen(only: str | None) -> list[str]:
    """All, or those named."""
    if only is None:
        return list(NAMES)
    names = [name.strip() for name in only.split(",")]
    if unknown := [name for name in names if name not in NAMES]:
        sys.exit(f"no scenario is named {', '.join(unknown)}; there are {', '.join(NAMES)}")
    return names


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="A,B", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="smaller, and one round (a look)")
    parser.add_argument("--rounds", type=int, metavar="N", help="medians of so many (3)")
    parser.add_argument("--jobs", type=int, metavar="N", help="in a drain (100000)")
    parser.add_argument("--out", type=Path, default=OUT, metavar="DIR", help=f"({OUT})")
    parser.add_argument("--markdown", action="store_true", help="the last run's table, and end")
    arguments = parser.parse_args()
    names = chosen(arguments.only)
    if arguments.markdown:
        print(markdown(json.loads((arguments.out / "bench.json").read_text())))
        return 0
    plan = plan_of(arguments)
    return ended_cleanly(lambda settings: run(settings, plan, names, arguments.out))


if __name__ == "__main__":
    sys.exit(main())
