"""`make mutants`: remove each guard in turn, and see a named test fail.

A guard without a test that goes red when it is gone is not proven. The guards are listed in
guards.toml. Each mutant is a copy of the package with one piece of text replaced; the tests named
for it run against that copy, on a server that all share. First the same tests run on the untouched
package and have to pass. Beside the test's verdict stands the scenario of the schedule explorer in
which a guard of the SQL is missed, if there is one. The last line on stdout is one JSON object; the
exit code is 0 when no mutant survives. `python -m proofs.mutants WORD` tries only guards with that
word in their name.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from faultline.launcher import Server
from proofs.explore.arena import install

ROOT = Path(__file__).parent.parent
OPTIONS = {
    "fsync": "off",
    "max_connections": "300",
    "autovacuum": "off",
    "deadlock_timeout": "50ms",
}
FAILED = 1  # pytest's exit code for "tests ran, and some failed"; any other is no verdict
PARALLEL = 3


@dataclass(frozen=True, slots=True)
class Guard:
    """One guard: where it is, what it looks like, what is there without it, who notices."""

    name: str
    file: str
    text: str
    without: str
    tests: list[str]


def guards() -> list[Guard]:
    """All of them, in the order of the file."""
    listed = tomllib.loads((ROOT / "proofs" / "guards.toml").read_text("utf-8"))
    return [Guard(**entry) for entry in listed["guard"]]


def mutate(guard: Guard, package: Path) -> None:
    """Take the guard out of a copy of the package."""
    source = package / "faultline" / guard.file
    text = source.read_text("utf-8")
    assert text.count(guard.text) == 1, f"{guard.name}: not exactly once in {guard.file}"
    source.write_text(text.replace(guard.text, guard.without), "utf-8")


def run_tests(package: Path, server: Server, tests: list[str]) -> subprocess.CompletedProcess[str]:
    """The named tests against a copy of the package."""
    environment = {
        **os.environ,
        "FAULTLINE_TEST_PATIENCE": "20",  # a mutant is often caught by waiting in vain
        "PYTHONPATH": str(package),
        "FAULTLINE_TEST_SERVERS": json.dumps({"18": server.url}),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def try_guard(guard: Guard, server: Server) -> str:
    """`caught`, or why it was not."""
    with tempfile.TemporaryDirectory(prefix="faultline-mutant-") as folder:
        package = Path(folder)
        shutil.copytree(ROOT / "src", package, dirs_exist_ok=True)
        mutate(guard, package)
        done = run_tests(package, server, guard.tests)
    if done.returncode == FAILED:
        return "caught"
    if done.returncode == 0:
        return "SURVIVED"
    return f"no verdict ({done.returncode}): {(done.stdout + done.stderr).strip()[-600:]}"


def explored(guard: Guard, server: Server, template: str) -> str:
    """In which scenario the schedule explorer misses the guard; - if in none."""
    from proofs.explore.broken import hunt_mutant  # which reads the guards from here

    if not guard.file.startswith("sql/functions/"):
        return ""
    try:
        found = hunt_mutant(server.url, template, guard)
    except LookupError:  # not in the body of a function
        return "-"
    return found[0] if found else "-"


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
    with Server.temporary(options=OPTIONS) as server, ThreadPoolExecutor(PARALLEL) as pool:
        print(f"{len(chosen)} guards; first the tests with all of them in place …", file=sys.stderr)
        if not baseline_holds(server, chosen):
            print("the tests fail without any mutant: nothing can be concluded", file=sys.stderr)
            return 2
        caught = seen = 0
        template = install(server.url)
        verdicts = pool.map(
            lambda guard: (try_guard(guard, server), explored(guard, server, template)), chosen
        )
        print(f"  {'guard':<68} {'unit':<9} explorer", file=sys.stderr)
        for guard, (verdict, scenario) in zip(chosen, verdicts, strict=True):
            caught += verdict == "caught"
            seen += scenario not in ("", "-")
            print(f"  {guard.name:<68} {verdict:<9} {scenario}", file=sys.stderr, flush=True)
    survivors = len(chosen) - caught
    counts = {"mutants": len(chosen), "caught": caught, "survivors": survivors}
    print(json.dumps({**counts, "caught_by_explorer": seen}))
    return 0 if survivors == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
