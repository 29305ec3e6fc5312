"""The command line; see the package."""

from __future__ import annotations

import argparse
import sys

from proofs.explore.arena import Arena, install, server
from proofs.explore.broken import hunt_mutant, mutants
from proofs.explore.play import Diverged
from proofs.explore.run import run
from proofs.explore.search import replay
from proofs.explore.small import SCENARIOS
from proofs.explore.timeline import timeline
from proofs.stopwatch import finish


def main(arguments: list[str]) -> int:
    """One of the four commands."""
    options = parser().parse_args(arguments)
    if options.command == "run":
        return explore_all(options.words, options.quick, options.processes)
    if options.command == "replay":
        return replay_one(options.id)
    if options.command == "hunt":
        return find_mutants(options.words)
    for scenario in SCENARIOS:
        print(f"{scenario.name:<32} {scenario.about}")
    return 0


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(prog="python -m proofs.explore")
    commands = whole.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="all schedules of all scenarios")
    run.add_argument("words", nargs="*", help="only scenarios with one of these in their names")
    run.add_argument("--quick", action="store_true", help="a subset, for `make test`")
    run.add_argument("--processes", type=int, help="default: one a core")
    one = commands.add_parser("replay", help="one schedule, as a timeline")
    one.add_argument("id", help="SCENARIO:TURNS, as a run prints it")
    hunt = commands.add_parser("hunt", help="remove guards of the SQL; which schedule misses them?")
    hunt.add_argument("words", nargs="*", help="only guards with one of these in their names")
    commands.add_parser("list", help="the scenarios")
    return whole


def explore_all(words: list[str], quick: bool, processes: int | None) -> int:
    """Exit code 1 if a schedule is bad, or if there is none."""
    chosen = [
        scenario
        for scenario in SCENARIOS
        if (scenario.quick or not quick)
        and (not words or any(word in scenario.name for word in words))
    ]
    if not chosen:
        return nothing_called(words)
    print(
        f"{len(chosen)} scenarios; reductions: BEGIN is no turn of its own, of twins one begins",
        file=sys.stderr,
    )
    with server() as running:
        tally = run(running.url, chosen, processes)
    print(
        f"{tally.passed_over} turns that a race inside the "
        "server did not give again were passed over",
        file=sys.stderr,
    )
    counts = ("schedules", "violations", "deadlocks", "blocked_steps", "passed_over")
    finish("explore", {name: getattr(tally, name) for name in counts})
    return 0 if tally.holds and tally.schedules else 1


def find_mutants(words: list[str]) -> int:
    """Remove each of these guards in turn, and say which schedule shows it, if any does."""
    chosen = [g for g in mutants() if not words or any(word in g.name for word in words)]
    if not chosen:
        return nothing_called(words)
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
            told = caught.told[0] if caught else "-"
            print(f"  {guard.name:<60} {told.split(' ')[0]}", file=sys.stderr, flush=True)
            if caught and words:
                print(told + "\n", file=sys.stderr, flush=True)
    finish("explore mutants", {"mutants": tried, "found_by_explorer": found})
    return 0


def nothing_called(words: list[str]) -> int:
    print(f"nothing is called {' or '.join(map(repr, words))}", file=sys.stderr)
    return 2


def replay_one(identity: str) -> int:
    """One schedule, as a timeline; exit code 1 if it is bad, 2 if there is no such schedule."""
    name, _, turns = identity.partition(":")
    scenario = next((scenario for scenario in SCENARIOS if scenario.name == name), None)
    if scenario is None:
        print(f"there is no scenario {name!r}; `list` has them", file=sys.stderr)
        return 2
    with (
        server() as running,
        Arena(running.url, install(running.url), splits=scenario.splits) as arena,
    ):
        try:
            played = replay(arena, scenario, turns)
        except Diverged as error:
            print(f"these turns cannot be given: {error}", file=sys.stderr)
            return 2
    print(timeline(played))
    if len(turns) > len(played.turns):
        print(f"it ends after {len(played.turns)} of the {len(turns)} turns", file=sys.stderr)
        return 2
    return 1 if played.bad else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:  # the server has been stopped on the way out
        sys.exit("stopped")
