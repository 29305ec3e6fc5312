"""`make mutants`: remove each guard in turn, and see the proofs that are named for it fail.

A guard that nothing misses when it is gone is not proven. The guards are listed in guards.toml,
each with its proofs:

    unit      a test fails; every guard has one
    explorer  a schedule of `make explore` breaks a rule
    drills    a scenario of `make drills` ends with a violation
    model     the variant of `make model` that leaves out the same has a counterexample

Each mutant is a copy of the package with one piece of text replaced, on a server that all share.
First the same tests run on the untouched package; a test that fails there proves nothing. What
counts as a failure is in evidence.py. Mutants that were caught are not tried again until something
changes: see resuming.py.

    python -m proofs.mutants WORD …          only guards with one of these words in their name
    python -m proofs.mutants --since COMMIT  only guards that changed since this commit
    python -m proofs.mutants --fresh         forget the results of earlier runs

The last line on stdout is one JSON object; the exit code is 0 when every proof that is named has
missed its guard.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psycopg

from faultline.launcher import Server
from faultline.migrate import migrate
from proofs.evidence import BROKEN_SQL, FILE, LIMIT, Ran, broken, read
from proofs.explore.arena import database_url, install
from proofs.explore.broken import play_without
from proofs.guards import ROOT, Guard, guards, package_without
from proofs.model.run import BROKEN, Unavailable, break_it
from proofs.race import ended_cleanly
from proofs.resuming import CAUGHT, NO_JAVA, NONE, Result, Results, UnknownCommit, since
from proofs.stopwatch import finish

OPTIONS = {
    "fsync": "off",
    "max_connections": "300",
    "autovacuum": "off",
    "deadlock_timeout": "50ms",
}
FAILED = 1  # pytest's exit code for "tests ran, and some failed"; any other is no verdict
PARALLEL = 4  # on two cores: a mutant mostly waits for what it makes impossible
PATIENCE_SECONDS = 20  # of a test, for what happens at once where nothing is missing
DRILL_PATIENCE = ("PATIENCE_SECONDS = 120.0", "PATIENCE_SECONDS = 30.0")  # of a drill, likewise
LIMIT_SECONDS = 180  # of a test with a mutant: one that hangs is no verdict
TRIES = 3  # of a test or a drill: real processes do not meet in the same way every time
MEMORY = Path("/dev/shm")
ROOM = 4 << 30  # bytes
SURVIVED = "SURVIVED"


@dataclass(frozen=True, slots=True)
class Bench:
    """Where the mutants are tried: a server, the databases to copy, the package to copy."""

    server: Server
    arenas: str  # the explorer's database
    tests: str  # the tests' database, migrated by the untouched package
    package: Path
    seconds: dict[str, float]  # of each test that passes on the untouched package

    def trusted(self, guard: Guard) -> list[str]:
        """The tests of this guard that pass while it is there, the fastest first."""
        return sorted(filter(self.seconds.__contains__, guard.tests), key=self.seconds.__getitem__)


def by_unit(guard: Guard, bench: Bench) -> str:
    """One of the named tests fails."""
    tests = bench.trusted(guard)
    if not tests:
        return "no verdict: its tests fail, or are skipped, with the guard in place"
    with package_without(guard, bench.package) as package:
        template = "" if installs_otherwise(guard) else bench.tests
        for _try in range(TRIES):
            done, phases = run_tests(package, bench.server, tests, template=template)
            if done.returncode not in (0, FAILED):
                said = (done.stdout + done.stderr).strip()
                return f"no verdict ({done.returncode}): {said[-600:]}"
            failed = next((ran for ran in phases if ran.outcome == "failed"), None)
            if done.returncode == FAILED and failed is None:
                return f"no verdict: a test did not end in {LIMIT_SECONDS} s"
            if failed:
                why = broken(failed, package / "faultline" / guard.file, guard.raises)
                return f"no verdict: {why}" if why else CAUGHT
    return SURVIVED


def installs_otherwise(guard: Guard) -> bool:
    """Whether a database that the mutant has migrated is another one."""
    return guard.file.startswith("sql/") or guard.file in ("script.py", "migrate.py")


def by_explorer(guard: Guard, bench: Bench) -> str:
    """The named schedule breaks a rule, by more than an error in the function's text."""
    if not guard.schedule:
        return NONE
    try:
        played = play_without(bench.server.url, bench.arenas, guard)
    except psycopg.Error as error:
        return f"no verdict: {error}"
    rules = [said for said in played.broken if not _is_of_broken_sql(said)]
    return CAUGHT if rules or played.deadlocks else SURVIVED


def _is_of_broken_sql(said: str) -> bool:
    """Whether the explorer's sentence is of an SQL error that says that code cannot run."""
    return said.partition(" raised ")[2][:5] in BROKEN_SQL


def by_drills(guard: Guard, bench: Bench) -> str:
    """The named scenario ends with a violation; one that merely did not work says nothing."""
    if not guard.drill:
        return NONE
    with package_without(guard, bench.package) as package:
        arena = package / "faultline" / "drills" / "arena.py"
        text = arena.read_text("utf-8")
        assert text.count(DRILL_PATIENCE[0]) == 1
        arena.write_text(text.replace(*DRILL_PATIENCE), "utf-8")
        for _try in range(TRIES):
            done = run(package, ["-m", "faultline", "drill", "replay", guard.drill, "--json"])
            try:
                said = json.loads(done.stdout)["violations"]
            except (ValueError, KeyError):
                return f"no verdict ({done.returncode}): {done.stderr.strip()[-600:]}"
            if any(not sentence.startswith("the drill broke") for sentence in said):
                return CAUGHT
    return SURVIVED


def by_model(guard: Guard, _: Bench) -> str:
    """The named variant has a counterexample."""
    return counterexample(guard.model) if guard.model else NONE


@cache
def counterexample(variant: str) -> str:
    """Whether TLC finds what this variant of the model breaks."""
    named = next(named for named in BROKEN if named.variant == variant)
    try:
        return CAUGHT if break_it(named).violated == named.breaks else SURVIVED
    except Unavailable:
        return NO_JAVA


PROOFS = {"unit": by_unit, "explorer": by_explorer, "drills": by_drills, "model": by_model}


def run(package: Path, arguments: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    """Run Python with this copy of the package; it may keep the bytecode of the tests."""
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**inherited, "PYTHONPATH": str(package), **more},
        capture_output=True,
        text=True,
        check=False,
    )


def run_tests(
    package: Path, server: Server, tests: list[str], *more: str, template: str = ""
) -> tuple[subprocess.CompletedProcess[str], list[Ran]]:
    """Run the tests against a copy of the package; without more options, up to the first failure.

    Plugins that no mutant's tests need are left out: to import them takes half of a test's time.
    """
    options = ["-p", "proofs.evidence", "-p", "no:cacheprovider"]
    options += ["-p", "no:schemathesis", "-p", "no:hypothesispytest"]
    with tempfile.TemporaryDirectory(prefix="faultline-evidence-") as folder:
        evidence = Path(folder) / "phases.jsonl"
        done = run(
            package,
            ["-m", "pytest", "-q", *options, *(more or ["-x"]), *tests],
            FAULTLINE_TEST_PATIENCE=str(PATIENCE_SECONDS),
            FAULTLINE_TEST_SERVERS=json.dumps({"18": server.url}),
            FAULTLINE_TEST_TEMPLATE=template,
            **{FILE: str(evidence)},
            **({} if more else {LIMIT: str(LIMIT_SECONDS)}),
        )
        return done, read(evidence)


def baseline(server: Server, template: str, chosen: list[Guard]) -> dict[str, float]:
    """The seconds of each named test that passes while all guards are there.

    A test that did not pass beside others has a second chance, alone.
    """
    found: dict[str, float] = {}
    left = {test for guard in chosen for test in guard.tests}
    for at_once in (PARALLEL, 0):
        options = ["-n", str(at_once), "--dist", "worksteal"]
        done, phases = run_tests(ROOT / "src", server, sorted(left), *options, template=template)
        if done.returncode not in (0, FAILED):
            said = f"{done.stdout[-3000:]}{done.stderr[-1000:]}"
            raise SystemExit(f"the tests cannot run without a mutant:\n{said}")
        found |= passing(phases, left)
        left -= found.keys()
        if not left:
            break
    for test in sorted(left):
        print(f"does not pass with all guards in place: {test}", file=sys.stderr)
    return found


def passing(phases: Iterable[Ran], named: Iterable[str]) -> dict[str, float]:
    """The seconds of each of these tests that passed, in at least one of its parametrizations."""
    seconds: dict[str, float] = defaultdict(float)
    outcomes: dict[str, list[set[str]]] = defaultdict(list)
    by_node: dict[str, set[str]] = defaultdict(set)
    for ran in phases:
        by_node[ran.test].add(ran.outcome)
        seconds[ran.test] += ran.seconds
    for node, had in by_node.items():
        for test in {node, node.partition("[")[0]}:
            outcomes[test].append(had)
            seconds[test] += seconds[node] if test != node else 0
    return {
        test: seconds[test]
        for test in named
        if {"passed"} in outcomes[test] and not any("failed" in had for had in outcomes[test])
    }


@contextmanager
def bench(chosen: list[Guard]) -> Iterator[Bench]:
    """Everything that the mutants share; the files are in memory where there is room."""
    with ExitStack() as stack:
        in_memory = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM
        # Under this name a run of the tests removes what is left by one that was killed.
        scratch = Path(MEMORY if in_memory else tempfile.gettempdir())
        scratch /= f"faultline-suite-{os.getpid()}"
        scratch.mkdir()
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        scratch.chmod(0o1777)  # root's server is run by another user
        os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
        server = stack.enter_context(Server.temporary(options=OPTIONS))
        package = scratch / "whole"
        shutil.copytree(ROOT / "src", package)
        compileall.compile_dir(package, quiet=1)
        template = "faultline_tests"
        with psycopg.connect(server.url, autocommit=True) as conn:
            conn.execute(f"create database {template}")
        with psycopg.connect(database_url(server.url, template), autocommit=True) as conn:
            migrate(conn, "faultline")
        print(f"{len(chosen)} guards; first their tests with all of them …", file=sys.stderr)
        seconds = baseline(server, template, chosen)
        yield Bench(server, install(server.url), template, package, seconds)


def tried(bench: Bench, chosen: list[Guard]) -> Iterator[tuple[Guard, dict[str, str], float]]:
    """Each guard with the verdicts of its proofs and their seconds, as they come."""

    def try_one(guard: Guard) -> tuple[Guard, dict[str, str], float]:
        began = time.monotonic()
        verdicts = {name: proof(guard, bench) for name, proof in PROOFS.items()}
        return guard, verdicts, time.monotonic() - began

    pool = ThreadPoolExecutor(PARALLEL)
    try:
        for future in as_completed([pool.submit(try_one, guard) for guard in chosen]):
            psycopg.connect(bench.server.url).close()  # without a server each test fails
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def run_all(chosen: list[Guard], results: Results) -> int:
    """Try what has to be tried, tell of each mutant, and count."""
    had = {guard.name: result for guard in chosen if (result := results.caught(guard))}
    left = [guard for guard in chosen if guard.name not in had]
    left.sort(key=results.seconds, reverse=True)  # no long one is left alone at the end
    all_results = dict(had)
    if had:
        print(f"{len(had)} guards were caught before and are unchanged", file=sys.stderr)
    if left:
        with bench(left) as place:
            print(f"  {'':<76} " + " ".join(f"{name:<8}" for name in PROOFS), file=sys.stderr)
            for number, (guard, verdicts, seconds) in enumerate(tried(place, left), 1):
                all_results[guard.name] = results.keep(guard, verdicts, seconds)
                said = " ".join(f"{verdict:<8}" for verdict in verdicts.values())
                line = f"  {number:>3}/{len(left)} {guard.name:<68} {said} {seconds:5.1f} s"
                print(line, file=sys.stderr, flush=True)
    finish("mutants", figures(chosen, all_results, len(had)))
    return 0 if all(result.is_caught for result in all_results.values()) else 1


def figures(chosen: list[Guard], results: dict[str, Result], kept: int) -> dict[str, object]:
    """What the run came to."""
    caught = sum(result.is_caught for result in results.values())
    verdicts = [item for result in results.values() for item in result.verdicts.items()]
    return {
        "mutants": len(chosen),
        "caught": caught,
        "survivors": len(chosen) - caught,
        "caught_before": kept,
        "caught_by": {name: verdicts.count((name, CAUGHT)) for name in PROOFS},
    }


def main() -> int:
    """All guards, or those that are asked for."""
    parser = argparse.ArgumentParser(prog="proofs.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", metavar="WORD", help="of a guard's name")
    parser.add_argument("--since", metavar="COMMIT", help="only what changed since this commit")
    parser.add_argument("--fresh", action="store_true", help="forget the earlier results")
    asked = parser.parse_args()
    chosen = [g for g in guards() if not asked.words or any(w in g.name for w in asked.words)]
    if not chosen:
        parser.error(f"no guard has {' or '.join(asked.words)} in its name")
    if asked.since:
        try:
            chosen = since(asked.since, chosen)
        except UnknownCommit as error:
            parser.error(f"--since needs a commit of this repository: {error}")
    results = Results()
    if asked.fresh:
        results.forget(chosen)
    return ended_cleanly(lambda _: run_all(chosen, results))


if __name__ == "__main__":
    sys.exit(main())
