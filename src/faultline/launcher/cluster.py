"""Making a data directory, or checking that the one found can be used.

initdb works in a scratch directory beside the data directory and the result is renamed, so that
a data directory is either whole or absent, whenever somebody is killed. Nothing here starts or
stops a server, and nothing ever deletes a data directory that was finished.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from faultline.errors import LauncherError
from faultline.launcher import processes
from faultline.launcher.binaries import Binaries
from faultline.launcher.identity import Identity

_INITDB_SECONDS = 180.0
_SCRATCH = ".initdb-"


def exists(data: Path, binaries: Binaries) -> bool:
    """Whether a data directory is there that these binaries can use; an unusable one raises."""
    if not data.exists() or (data.is_dir() and not any(data.iterdir())):
        return False
    try:
        major = (data / "PG_VERSION").read_text().strip()
    except OSError as error:
        raise LauncherError(
            f"{data} exists but is no PostgreSQL data directory ({error.strerror}: PG_VERSION); "
            "move it away, or set FAULTLINE_HOME to another directory"
        ) from error
    if major != str(binaries.major):
        raise LauncherError(
            f"the data in {data} was made by PostgreSQL {major} but {binaries.directory} is "
            f"PostgreSQL {binaries.major}: set FAULTLINE_PG_BIN to the binaries of {major}, set "
            "FAULTLINE_HOME to a new directory, or upgrade the data with pg_upgrade"
        )
    return True


def create(
    data: Path, password: str, binaries: Binaries, identity: Identity, *, durable: bool
) -> None:
    """Initialise a data directory and rename it into place; whatever fails leaves no trace."""
    discard_unfinished(data)
    scratch = Path(tempfile.mkdtemp(dir=data.parent, prefix=_SCRATCH))
    try:
        whole = scratch / "data"
        whole.mkdir(mode=0o700)
        secret = scratch / "password"
        secret.touch(mode=0o600)
        secret.write_text(password + "\n")
        identity.own(scratch)
        _initdb(whole, secret, binaries, identity, durable=durable)
        whole.rename(data)
        if durable:
            sync(data.parent)
    finally:
        processes.end_all(scratch, patience_seconds=0.0)
        shutil.rmtree(scratch)


def discard_unfinished(data: Path) -> None:
    """Remove what an initdb left whose launcher was killed, after ending it if it still runs."""
    for scratch in data.parent.glob(f"{_SCRATCH}*"):
        processes.end_all(scratch, patience_seconds=0.0)
        shutil.rmtree(scratch, ignore_errors=not processes.has_proc())


def sync(directory: Path) -> None:
    """Make the names in a directory survive a power loss."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _initdb(
    whole: Path, secret: Path, binaries: Binaries, identity: Identity, *, durable: bool
) -> None:
    command: list[str | Path] = [binaries.program("initdb"), "--pgdata", whole]
    command += ["--username=postgres", f"--pwfile={secret}", "--encoding=UTF8", "--locale=C"]
    command += ["--auth-host=scram-sha-256", "--auth-local=scram-sha-256", "--data-checksums"]
    command += [] if durable else ["--no-sync"]
    try:
        # Working in the directory it fills makes an abandoned initdb visible to `living`.
        done = identity.run(command, cwd=whole, timeout_seconds=_INITDB_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise LauncherError(
            f"initdb did not finish in {_INITDB_SECONDS:.0f} s; check the disk of {whole.parent}"
        ) from error
    except OSError as error:
        raise LauncherError(f"initdb could not be run: {error.strerror}") from error
    if done.returncode != 0:
        raise LauncherError(_why_initdb_failed(done.stderr + done.stdout, whole.parent.parent))


def _why_initdb_failed(said: str, home: Path) -> str:
    if "No space left on device" in said or "Disk quota exceeded" in said:
        return (
            f"the disk of {home} is full: a data directory takes about 40 MB; free some space or "
            "set FAULTLINE_HOME to another disk"
        )
    noise = ("initdb: removing", "child process exited")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower() or "fatal" in line.lower()]
    chosen = [line for line in telling or lines if not line.startswith(noise)][-3:]
    return f"initdb could not make a data directory in {home}: {' | '.join(chosen) or 'no output'}"
