"""An environment of its own for each peer: made on the first run, kept in a cache folder.

Pinned versions are part of a folder's name, so that a new pin makes a new environment; a folder
counts once `.ready` is in it, so that an interrupted installation is made again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from faultline import __version__

ROOT = Path(__file__).parents[2]
INSTALL_SECONDS = 600


class Unavailable(Exception):
    """This peer cannot be had here; the message is the line that the table shows."""


class Environment(Protocol):
    """Where a peer's script runs."""

    def make(self, cache: Path) -> bool:
        """Install what is missing; whether there was anything to do. Raises Unavailable."""
        ...

    def command(self, cache: Path, script: Path) -> list[str]:
        """What starts the script; the verb comes after it."""
        ...

    def version(self, cache: Path) -> str:
        """The version that is really installed."""
        ...


@dataclass(frozen=True)
class Here:
    """Our own environment: Faultline, and the naive queue of this checkout."""

    def make(self, cache: Path) -> bool:
        del cache
        return False

    def command(self, cache: Path, script: Path) -> list[str]:
        del cache
        return [sys.executable, str(script)]

    def version(self, cache: Path) -> str:
        del cache
        return __version__


@dataclass(frozen=True)
class Python:
    """A virtual environment; the first requirement is the peer, whose version is shown."""

    requirements: tuple[str, ...]

    def make(self, cache: Path) -> bool:
        folder = self._folder(cache)
        if (folder / ".ready").exists():
            return False
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(folder)], cache)
        _run([str(folder / "bin/python"), "-m", "pip", "install", "-q", *self.requirements], cache)
        (folder / ".ready").touch()
        return True

    def command(self, cache: Path, script: Path) -> list[str]:
        return [str(self._folder(cache) / "bin/python"), str(script)]

    def version(self, cache: Path) -> str:
        name = self.requirements[0].partition("==")[0].partition("[")[0]
        ask = f"import importlib.metadata as m; print(m.version({name!r}))"
        return _run([str(self._folder(cache) / "bin/python"), "-c", ask], cache).strip()

    def _folder(self, cache: Path) -> Path:
        return cache / _folder_name(self.requirements)


@dataclass(frozen=True)
class Node:
    """A folder with node_modules; the first dependency is the peer, whose version is shown."""

    dependencies: dict[str, str]
    overrides: dict[str, str] = field(default_factory=dict)

    def make(self, cache: Path) -> bool:
        folder = self._folder(cache)
        if (folder / ".ready").exists():
            return False
        if shutil.which("npm") is None or shutil.which("node") is None:
            raise Unavailable("node and npm are not installed")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        package = {
            "private": True,
            "type": "module",
            "dependencies": self.dependencies,
            "overrides": self.overrides,
        }
        (folder / "package.json").write_text(json.dumps(package))
        _run(["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"], folder)
        (folder / ".ready").touch()
        return True

    def command(self, cache: Path, script: Path) -> list[str]:
        # A module finds packages beside or above itself only, so that our scripts go where they
        # are; in a folder for each folder of ours, since the names in two of them may be the same.
        home = script.parent
        name = f"scripts-{hashlib.sha256(str(home).encode()).hexdigest()[:10]}"
        copies = self._folder(cache) / name
        copies.mkdir(exist_ok=True)
        for module in home.glob("*.mjs"):
            shutil.copy(module, copies / module.name)
        return ["node", str(copies / script.name)]

    def version(self, cache: Path) -> str:
        package = self._folder(cache) / "node_modules" / self._peer / "package.json"
        return str(json.loads(package.read_text())["version"])

    @property
    def _peer(self) -> str:
        return next(iter(self.dependencies))

    def _folder(self, cache: Path) -> Path:
        return cache / _folder_name((self._peer, *map(str, [self.dependencies, self.overrides])))


def _folder_name(pins: tuple[str, ...]) -> str:
    name = pins[0].partition("[")[0].partition("==")[0]
    return f"{name}-{hashlib.sha256(repr(pins).encode()).hexdigest()[:10]}"


def _run(command: list[str], folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"not installed within {INSTALL_SECONDS} s") from error
    if done.returncode != 0:
        said = [line for line in (done.stderr + done.stdout).splitlines() if "rror" in line]
        raise Unavailable(f"cannot be installed: {(said or ['no reason given'])[0].strip()[:160]}")
    return done.stdout
