"""The command line; see the package."""

from __future__ import annotations

import argparse
import json
import sys
import time

from proofs.explore.arena import Arena, install, server
from proofs.explore.broken import hunt_mutant, mutants
from proofs.explore.run import run
from proofs.explore.search import replay
from proofs.explore.small import SCENARIOS
from proofs.explore.timeline import timeline


def main(arguments: list[str]) -> int:
    """Explore, unless another command is given."""
    if arguments[:1] == ["replay"]:
        return replay_one(arguments[1])
    if arguments[:1] == ["mutants"]:
        return find_mutants(arguments[1:])
    if arguments[:1] == ["list"]:
        for scenario in SCENARIOS:
            print(f"{scenario.name:<32} {scenario.about}")
        return 0
    return explore_all(arguments)


def explore_all(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m proofs.explore")
    parser.add_argument("words", nargs="*", help="only scenarios with one of these in their names")
    parser.add_argument("--quick", action="store_true", help="a subset, for `make test`")
    parser.add_argument("--processes", type=int, help="default: one a core")
    options = parser.parse_args(arguments)
    chosen = [
        scenario
        for scenario in SCENARIOS
        if (scenario.quick or not options.quick)
        and (not options.words or any(word in scenario.name for word in options.words))
    ]
    began = time.monotonic()
    print(
        f"{len(chosen)} scenarios; reductions: BEGIN is no turn of its own, of twins one begins",
        file=sys.stderr,
    )
    with server() as running:
        tally = run(running.url, chosen, options.processes)
    print(
        f"{time.monotonic() - began:.0f} s; {tally.raced} turns that a race inside the server did "
        "not give again were passed over",
        file=sys.stderr,
    )
    counts = ("schedules", "violations", "deadlocks", "blocked_steps")
    print(json.dumps({name: getattr(tally, name) for name in counts}))
    return 0 if tally.holds and tally.schedules else 1


def find_mutants(words: list[str]) -> int:
    """Remove each guard of the SQL in turn, and say which schedule shows it, if any does."""
    chosen = [g for g in mutants() if not words or any(word in g.name for word in words)]
    found = tried = 0
    with server() as running:
        template = install(running.url)
        for guard in chosen:
            try:
                caught = hunt_mutant(running.url, template, guard)
            except LookupError:
                print(f"  {guard.name:<60} cannot be removed here", file=sys.stderr, flush=True)
                continue
            tried += 1
            found += caught is not None
            where = f"{caught[0]}, schedule {caught[1].schedules}" if caught else "-"
            print(f"  {guard.name:<60} {where}", file=sys.stderr, flush=True)
            if caught and words:
                print(caught[1].told[0] + "\n", file=sys.stderr, flush=True)
    print(json.dumps({"mutants": tried, "found_by_explorer": found}))
    return 0


def replay_one(identity: str) -> int:
    """One schedule, as a timeline; exit code 1 if it is bad."""
    name, _, turns = identity.partition(":")
    scenario = next((scenario for scenario in SCENARIOS if scenario.name == name), None)
    if scenario is None:
        print(f"there is no scenario {name}; `list` has them", file=sys.stderr)
        return 2
    with (
        server() as running,
        Arena(running.url, install(running.url), splits=scenario.splits) as arena,
    ):
        played = replay(arena, scenario, turns)
    print(timeline(played))
    return 1 if played.bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
