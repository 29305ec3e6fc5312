"""The code before this: the newest release, else what stood before the newest migration.

It is taken out of the history of this checkout, and run by having it first on PYTHONPATH, with the
dependencies that are installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from faultline.script import SCHEMA_VERSION

ROOT = Path(__file__).parent.parent.parent
MIGRATIONS = "src/faultline/sql/migrations"


@dataclass(frozen=True)
class Code:
    """A version of the package that can be run."""

    name: str
    schema_version: int
    source: Path

    def environment(self, url: str, schema: str) -> dict[str, str]:
        """What makes a process run this code, on this installation."""
        return {
            **os.environ,
            "PYTHONPATH": str(self.source),
            "PYTHONDONTWRITEBYTECODE": "1",
            "FAULTLINE_DATABASE_URL": url,
            "FAULTLINE_SCHEMA": schema,
        }

    def run(self, *arguments: str, url: str, schema: str) -> subprocess.CompletedProcess[str]:
        """`faultline …`."""
        return subprocess.run(
            [sys.executable, "-m", "faultline", *arguments],
            env=self.environment(url, schema),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


def current() -> Code:
    """This checkout."""
    return Code("this checkout", SCHEMA_VERSION, ROOT / "src")


def why_not() -> str | None:
    """Why there is no previous code to be had; None if there is."""
    if shutil.which("git") is None:
        return "there is no git"
    if not (ROOT / ".git").exists():
        return "this is no checkout with a history"
    if _git("rev-parse", "--is-shallow-repository") != "false":
        return "the history of this checkout is cut off"
    return None


def previous(folder: Path) -> Code:
    """The code before this, put into the folder."""
    commit = release() or before_the_newest_migration()
    archive = subprocess.run(
        ["git", "archive", commit, "src"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    subprocess.run(["tar", "x", "-C", str(folder)], input=archive.stdout, check=True)
    names = (folder / MIGRATIONS).glob("*.sql")
    version = max(int(path.name.partition("_")[0]) for path in names)
    code = Code(_git("log", "-1", "--format=%h", commit), version, folder / "src")
    _insist_on(code)
    return code


def release() -> str | None:
    """The newest release before this commit."""
    tags = _git("tag", "--list", "v*", "--merged", "HEAD").splitlines()
    here = _git("tag", "--points-at", "HEAD").splitlines()
    return newest(tag for tag in tags if tag not in here)


def newest(tags: Iterable[str]) -> str | None:
    """The highest version of these; a pre-release, and a tag that is no version, are no release."""
    found = {
        tuple(map(int, tag.removeprefix("v").split("."))): tag
        for tag in tags
        if re.fullmatch(r"v\d+\.\d+\.\d+", tag)
    }
    return found[max(found)] if found else None


def before_the_newest_migration() -> str:
    """The commit before the one that brought it; one that is not committed yet: the last one."""
    newest = f":(glob){MIGRATIONS}/{SCHEMA_VERSION:04}_*.sql"
    added = _git("log", "--format=%H", "--diff-filter=A", "--", newest).splitlines()
    return f"{added[-1]}^" if added else "HEAD"


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def _insist_on(code: Code) -> None:
    """That it is really this code that runs, and not what is installed."""
    said = subprocess.run(
        [sys.executable, "-c", "import faultline; print(faultline.__file__)"],
        env={**os.environ, "PYTHONPATH": str(code.source)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    if not Path(said.strip()).is_relative_to(code.source):
        raise RuntimeError(f"{said.strip()} is run instead of {code.source}")
