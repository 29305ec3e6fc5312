"""The guards of guards.toml: what protects what, and which proofs miss it when it is gone."""

from __future__ import annotations

import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Guard:
    """One guard: where it is, what it looks like, what is there without it, who notices."""

    name: str
    file: str
    text: str
    without: str
    tests: list[str]
    schedule: str = ""  # of the explorer: SCENARIO:TURNS
    no_schedule: str = ""  # why no order of steps shows that it is missing
    drill: str = ""  # a scenario of the drills
    model: str = ""  # the broken variant of the model that leaves out the same
    raises: str = ""  # the error in the mutated code that the guard is there to prevent


def guards() -> list[Guard]:
    """All of them, in the order of the file."""
    return parsed((ROOT / "proofs" / "guards.toml").read_text("utf-8"))


def parsed(listed: str) -> list[Guard]:
    """The guards of this text."""
    return [Guard(**entry) for entry in tomllib.loads(listed)["guard"]]


@contextmanager
def package_without(guard: Guard, whole: Path = ROOT / "src") -> Iterator[Path]:
    """A copy of src/, or of this copy of it, with the guard taken out of it, for PYTHONPATH."""
    with tempfile.TemporaryDirectory(prefix="faultline-mutant-") as folder:
        shutil.copytree(whole, folder, dirs_exist_ok=True)
        source = Path(folder) / "faultline" / guard.file
        text = source.read_text("utf-8")
        assert text.count(guard.text) == 1, f"{guard.name}: not exactly once in {guard.file}"
        source.write_text(text.replace(guard.text, guard.without), "utf-8")
        yield Path(folder)
