"""Which user the server runs as: ourselves, or, since PostgreSQL refuses root, somebody lesser.

    ordinary user                 ourselves
    root, user namespaces         `unshare`: root outside, nobody inside; files stay root's
    root, no user namespaces      nobody; our data directory is given to nobody
    root, data of another user    that user

No user is ever created, and only paths handed to `own` change their owner.
"""

from __future__ import annotations

import functools
import os
import pwd
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from faultline.errors import LauncherError

RunAs = Literal["auto", "namespace", "nobody"]

_NAMESPACE = ("unshare", "--user", "--map-user=65534", "--map-group=65534", "--")
_PROBE_SECONDS = 10.0
_LET_GO = '"$@" </dev/null >&2 & echo $!'
# A clean environment: PGDATA, PGPORT, PGOPTIONS or a locale of the caller must not reach the
# server, and its messages must be the English ones.
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C"}


@dataclass(frozen=True)
class Identity:
    """How to start a program as the server's user."""

    name: str
    prefix: tuple[str, ...] = ()
    uid: int | None = None
    gid: int | None = None

    def run(
        self,
        command: Sequence[str | Path],
        *,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end and capture what it says; the caller judges the exit status."""
        return subprocess.run(
            [*self.prefix, *map(str, command)],
            cwd=cwd or "/",
            env={**_ENVIRONMENT, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
            start_new_session=True,
            umask=0o077,
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else [],
        )

    def daemon(
        self,
        command: Sequence[str | Path],
        *,
        cwd: Path,
        log: IO[bytes],
        kept: int,
        environment: Mapping[str, str],
    ) -> int:
        """Start a program that is nobody's child, in a session of its own; its process id.

        The shell between lets it go: a child of ours would stay a zombie when it dies before us.
        The program and its children inherit the file descriptor `kept`.
        """
        shell = subprocess.run(
            ["/bin/sh", "-c", _LET_GO, "sh", *self.prefix, *map(str, command)],
            cwd=cwd,
            env={**_ENVIRONMENT, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            pass_fds=(kept,),
            check=False,
            start_new_session=True,
            umask=0o077,
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else [],
        )
        if shell.returncode != 0:
            raise LauncherError(f"the system refused to start a process; see {log.name}")
        return int(shell.stdout)

    def can_run(self, program: Path) -> bool:
        """Whether the server's user can execute this file where it lies."""
        try:
            done = self.run([program, "--version"], timeout_seconds=_PROBE_SECONDS)
        except (OSError, subprocess.SubprocessError):
            return False
        return done.returncode == 0

    def can_enter(self, directory: Path) -> bool:
        """Whether the server's user can get into this directory."""
        return self.run(["/bin/sh", "-c", 'cd -- "$1"', "sh", directory]).returncode == 0

    def own(self, path: Path) -> None:
        """Give one of our own paths, with everything in it, to the server's user."""
        if self.uid is None or self.gid is None:
            return
        entries = [path]
        for directory, folders, files in os.walk(path):
            entries += [Path(directory) / name for name in (*folders, *files)]
        for entry in entries:
            if entry.lstat().st_uid != self.uid:
                os.chown(entry, self.uid, self.gid, follow_symlinks=False)


def choose(run_as: RunAs, data: Path) -> Identity:
    """The identity for this data directory, which may not exist yet."""
    if os.geteuid() != 0:
        if run_as != "auto":
            raise LauncherError(f"run_as={run_as!r} is for root; leave it out")
        return Identity("ourselves")
    owner = data.stat() if data.exists() else None
    if run_as == "auto" and owner is not None and owner.st_uid != 0:
        return Identity(f"user {owner.st_uid}", uid=owner.st_uid, gid=owner.st_gid)
    if run_as == "namespace" or (run_as == "auto" and namespaces_work()):
        return Identity("nobody in a user namespace", prefix=_NAMESPACE)
    return _nobody()


@functools.cache
def namespaces_work() -> bool:
    """Whether this kernel, container and `unshare` let root become nobody in a namespace.

    `id -un` fails where user 65534 has no name, and there initdb would fail as well.
    """
    try:
        done = subprocess.run(
            [*_NAMESPACE, "id", "-un"], capture_output=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def _nobody() -> Identity:
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError as error:
        raise LauncherError(
            "PostgreSQL refuses to run as root, and here are neither user namespaces nor a user "
            "named nobody: run as an ordinary user"
        ) from error
    return Identity("nobody", uid=entry.pw_uid, gid=entry.pw_gid)
