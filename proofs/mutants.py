"""`make mutants`: remove each guard in turn, and see the proofs that are named for it fail.

A guard that nothing misses when it is gone is not proven. The guards are listed in guards.toml,
each with its proofs:

    unit      a test fails; every guard has one
    explorer  a schedule of `make explore` breaks a rule
    drills    a scenario of `make drills` ends with a violation
    model     the variant of `make model` that leaves out the same has a counterexample

Each mutant is a copy of the package with one piece of text replaced, on a server that all share.
First the same tests run on the untouched package and have to pass. The last line on stdout is one
JSON object; the exit code is 0 when every proof that is named has missed its guard.
`python -m proofs.mutants WORD` tries only guards with that word in their name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from faultline.launcher import Server
from proofs.explore.arena import install
from proofs.explore.broken import play_without
from proofs.guards import ROOT, Guard, guards, package_without
from proofs.model.run import BROKEN, Unavailable, break_it

OPTIONS = {
    "fsync": "off",
    "max_connections": "300",
    "autovacuum": "off",
    "deadlock_timeout": "50ms",
}
FAILED = 1  # pytest's exit code for "tests ran, and some failed"; any other is no verdict
PARALLEL = 3
DRILLS = 3  # how often a drill is tried: real processes do not meet in the same way every time
CAUGHT, SURVIVED, NONE = "caught", "SURVIVED", "·"


@dataclass(frozen=True, slots=True)
class Bench:
    """Where the mutants are tried: the server of the tests, the database that arenas come from."""

    server: Server
    template: str


def by_unit(guard: Guard, bench: Bench) -> str:
    """One of the named tests fails."""
    with package_without(guard) as package:
        done = run_tests(package, bench.server, guard.tests)
    if done.returncode in (0, FAILED):
        return CAUGHT if done.returncode else SURVIVED
    return f"no verdict ({done.returncode}): {(done.stdout + done.stderr).strip()[-600:]}"


def by_explorer(guard: Guard, bench: Bench) -> str:
    """The named schedule breaks a rule."""
    if not guard.schedule:
        return NONE
    return CAUGHT if play_without(bench.server.url, bench.template, guard).bad else SURVIVED


def by_drills(guard: Guard, _: Bench) -> str:
    """The named scenario ends with a violation; one that merely did not work says nothing."""
    if not guard.drill:
        return NONE
    with package_without(guard) as package:
        for _try in range(DRILLS):
            done = run(package, ["-m", "faultline", "drill", "replay", guard.drill, "--json"])
            try:
                if json.loads(done.stdout)["violations"]:
                    return CAUGHT
            except (ValueError, KeyError):
                return f"no verdict ({done.returncode}): {done.stderr.strip()[-600:]}"
    return SURVIVED


def by_model(guard: Guard, _: Bench) -> str:
    """The named variant has a counterexample."""
    return counterexample(guard.model) if guard.model else NONE


@cache
def counterexample(variant: str) -> str:
    broken = next(broken for broken in BROKEN if broken.variant == variant)
    try:
        return CAUGHT if break_it(broken).violated == broken.breaks else SURVIVED
    except Unavailable:
        return "no Java"


PROOFS = {"unit": by_unit, "explorer": by_explorer, "drills": by_drills, "model": by_model}


def run(package: Path, arguments: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    """Python, with this copy of the package."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(package), **more},
        capture_output=True,
        text=True,
        check=False,
    )


def run_tests(package: Path, server: Server, tests: list[str]) -> subprocess.CompletedProcess[str]:
    """The named tests against a copy of the package."""
    return run(
        package,
        ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests],
        FAULTLINE_TEST_PATIENCE="20",  # a mutant is often caught by waiting in vain
        FAULTLINE_TEST_SERVERS=json.dumps({"18": server.url}),
    )


def baseline_holds(server: Server, chosen: list[Guard]) -> bool:
    """The tests pass while all guards are there; otherwise their failing proves nothing."""
    tests = sorted({test for guard in chosen for test in guard.tests})
    done = run_tests(ROOT / "src", server, tests)
    if done.returncode != 0:
        print(done.stdout[-3000:], done.stderr[-1000:], file=sys.stderr)
    return done.returncode == 0


def main(names: list[str]) -> int:
    """All guards, or those whose names contain one of the words given."""
    chosen = [g for g in guards() if not names or any(name in g.name for name in names)]
    if not chosen:
        print(f"no guard has {' or '.join(names)} in its name", file=sys.stderr)
        print(__doc__, file=sys.stderr)
        return 2
    caught, survivors = dict.fromkeys(PROOFS, 0), 0
    with Server.temporary(options=OPTIONS) as server, ThreadPoolExecutor(PARALLEL) as pool:
        print(f"{len(chosen)} guards; first the tests with all of them in place …", file=sys.stderr)
        if not baseline_holds(server, chosen):
            print("the tests fail without any mutant: nothing can be concluded", file=sys.stderr)
            return 2
        bench = Bench(server, install(server.url))
        print(f"  {'':<68} " + " ".join(f"{name:<8}" for name in PROOFS), file=sys.stderr)
        verdicts = pool.map(
            lambda guard: {name: proof(guard, bench) for name, proof in PROOFS.items()}, chosen
        )
        for guard, said in zip(chosen, verdicts, strict=True):
            line = " ".join(f"{verdict:<8}" for verdict in said.values()).rstrip()
            print(f"  {guard.name:<68} {line}", file=sys.stderr, flush=True)
            survivors += not set(said.values()) <= {CAUGHT, NONE, "no Java"}
            for name, verdict in said.items():
                caught[name] += verdict == CAUGHT
    counts = {"mutants": len(chosen), "caught": len(chosen) - survivors, "survivors": survivors}
    print(json.dumps({**counts, "caught_by": caught}))
    return 0 if survivors == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
