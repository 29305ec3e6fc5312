"""Which mutants have to be tried: results of earlier runs, and what changed since a commit.

reports/mutants.json has for each mutant its fingerprint, the verdicts of its proofs and how many
seconds they took. It is replaced as a whole after each mutant, so that an interrupted run loses
only the mutants in flight. A mutant that was caught is not tried again while its fingerprint is the
same.

A fingerprint covers the entry in guards.toml, the mutated file, the files of its tests and the code
of the proofs. It does not cover the other modules of the package that the tests run, the modules
that the tests import, installed packages and the server. FRESH=1 tries every mutant anew.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from proofs.guards import ROOT, Guard, parsed

RESULTS = ROOT / "reports" / "mutants.json"
LISTED = "proofs/guards.toml"
CAUGHT, NONE, NO_JAVA = "caught", "·", "no Java"
NO_MATTER = (NONE, NO_JAVA)


class UnknownCommit(Exception):
    """SINCE names no commit of this repository."""


@dataclass(frozen=True, slots=True)
class Result:
    """What the proofs said of one mutant."""

    fingerprint: str
    verdicts: dict[str, str]
    seconds: float

    @property
    def is_caught(self) -> bool:
        """Whether every proof that is named has missed the guard."""
        return self.verdicts["unit"] == CAUGHT and {*self.verdicts.values()} <= {*NO_MATTER, CAUGHT}


class Results:
    """The file of results."""

    def __init__(self, path: Path = RESULTS) -> None:
        self._path = path
        kept = json.loads(path.read_text("utf-8")) if path.exists() else {}
        self._by_name = {name: Result(**result) for name, result in kept.items()}

    def keep(self, guard: Guard, verdicts: dict[str, str], seconds: float) -> Result:
        """Write a result, together with all the others."""
        result = Result(fingerprint(guard), verdicts, round(seconds, 1))
        self._by_name[guard.name] = result
        self._write()
        return result

    def forget(self, listed: Iterable[Guard]) -> None:
        """Remove the results of these mutants."""
        for guard in listed:
            self._by_name.pop(guard.name, None)
        self._write()

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({name: asdict(one) for name, one in self._by_name.items()}, indent=1)
        new = self._path.with_suffix(".new")
        new.write_text(text + "\n", "utf-8")
        new.replace(self._path)

    def caught(self, guard: Guard) -> Result | None:
        """Return the result of this mutant, if it was caught and nothing has changed since."""
        result = self._by_name.get(guard.name)
        if result is None or not result.is_caught or result.fingerprint != fingerprint(guard):
            return None
        return result

    def seconds(self, guard: Guard) -> float:
        """How long this mutant took the last time; a guess if it was never tried."""
        result = self._by_name.get(guard.name)
        return result.seconds if result else 60.0 if guard.drill else 5.0


def sources(guard: Guard) -> set[str]:
    """The mutated file and the files of the tests, relative to the checkout."""
    return {f"src/faultline/{guard.file}", *(test.partition("::")[0] for test in guard.tests)}


def fingerprint(guard: Guard) -> str:
    """A digest of what the verdicts depend on."""
    digest = hashlib.sha256(json.dumps(asdict(guard), sort_keys=True).encode())
    digest.update(digest_of(tuple(sorted(sources(guard)))))
    digest.update(digest_of(_code(guard)))
    return digest.hexdigest()[:32]


def _code(guard: Guard) -> tuple[str, ...]:
    """The code of the proofs that are named for this guard."""
    found = [ROOT / "proofs" / f"{name}.py" for name in ("mutants", "guards", "evidence")]
    found += [ROOT / "tests" / name for name in ("conftest.py", "stage.py")]
    if guard.schedule:
        found += (ROOT / "proofs" / "explore").iterdir()
    if guard.drill:
        found += (ROOT / "src" / "faultline" / "drills").rglob("*.py")
    if guard.model:
        found += (ROOT / "proofs" / "model").iterdir()
    return tuple(sorted(str(path.relative_to(ROOT)) for path in found if path.is_file()))


@cache
def digest_of(paths: tuple[str, ...]) -> bytes:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.encode() + b"\0" + (ROOT / path).read_bytes() + b"\0")
    return digest.digest()


def since(commit: str, listed: Iterable[Guard]) -> list[Guard]:
    """The guards whose entry, file or tests' files changed since this commit, in any way."""
    changed = {
        *_git("diff", "--name-only", commit, "--").splitlines(),
        *_git("ls-files", "--others", "--exclude-standard").splitlines(),
    }
    then = {guard.name: guard for guard in parsed(_git("show", f"{commit}:{LISTED}"))}
    return [g for g in listed if then.get(g.name) != g or sources(g) & changed]


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise UnknownCommit(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
