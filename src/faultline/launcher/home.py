"""The files a server keeps beside its data: lock, password, port, log; and who may come in.

    home/lock          flock around start and stop; the kernel frees it when the holder is killed
    home/postgres      the data directory
    home/password      of the superuser `postgres`, readable by its owner only
    home/port          the port of the last start, so that the URL stays the same
    home/server.log    what the server says
    home/socket        its Unix socket, in a directory of its own
    home/alive         flock held by the processes of the server themselves, as long as one lives
    home/ephemeral     the same files again, for a server that is discarded when it stops

Only paths and small files; no process is started or signalled here.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from faultline.errors import LauncherError

# sun_path holds 104 bytes on macOS and 108 on Linux; the name in the directory takes 16 of them.
_SOCKET_DIRECTORY_BYTES = 86
_LOG_BYTES = 16 * 1024 * 1024
# Below the ranges from which systems draw the ports of outgoing connections (Linux from 32768,
# macOS from 49152): a port remembered from there would often be taken at the next start.
_PORTS = range(15_433, 32_700)
_LOCK_POLL_SECONDS = 0.05
_LIFE_SECONDS = 2.0


@dataclass(frozen=True)
class Place:
    """The paths of one server."""

    root: Path

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.root / "postgres"

    @property
    def log(self) -> Path:
        """What the server says."""
        return self.root / "server.log"

    @property
    def socket(self) -> Path | None:
        """The directory of the Unix socket, or None where its path would be too long."""
        path = self.root / "socket"
        return path if len(os.fsencode(path)) <= _SOCKET_DIRECTORY_BYTES else None

    def read_password(self) -> str | None:
        """The superuser's password, or None before the first start."""
        return _read(self.root / "password")

    def write_password(self, password: str) -> None:
        """Keep it where only the owner can read it, on the disk before a cluster relies on it."""
        _write(self.root / "password", password)

    def read_port(self) -> int | None:
        """The port of the last start."""
        text = _read(self.root / "port")
        return int(text) if text and text.isdigit() else None

    def write_port(self, port: int) -> None:
        """Remember it for the next start."""
        _write(self.root / "port", str(port))

    def rotate_log(self) -> None:
        """Keep one old log, so that neither grows for ever."""
        if self.log.exists() and self.log.stat().st_size > _LOG_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))

    def log_size(self) -> int:
        """Where the next line of the log will begin."""
        return self.log.stat().st_size if self.log.exists() else 0

    def log_since(self, offset: int) -> str:
        """What the server has said since; the reason on one line."""
        with self.log.open("rb") as file:
            file.seek(offset)
            said = file.read(_LOG_BYTES).decode(errors="replace")
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        telling = [line for line in lines if "FATAL:" in line or "PANIC:" in line]
        return " | ".join((telling or lines)[-3:]) or "it said nothing"

    @contextlib.contextmanager
    def sign_of_life(self) -> Iterator[int]:
        """A locked file for the server to inherit; fails while any process of a server has it.

        This sees what /proc does not show: a server in another container on the same volume, to
        which postmaster.pid, too, is blind.
        """
        path = self.root / "alive"
        descriptor = open_private(path, os.O_RDWR)
        try:
            # A process just killed is out of /proc a moment before its files are closed.
            if not _lock_within(descriptor, _LIFE_SECONDS):
                raise LauncherError(
                    f"a server that cannot be seen from here, perhaps in another container, uses "
                    f"{self.data}: stop it where it was started, or set FAULTLINE_HOME to a "
                    f"directory of your own (`fuser {path}` names its processes)"
                )
            yield descriptor
        finally:
            os.close(descriptor)


def make_directory(path: Path, mode: int) -> None:
    """Make one of our own directories with exactly this mode; one that is there stays as it is."""
    if not path.exists():
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(mode)


def open_private(path: Path, flags: int) -> int:
    """Open or create a file for its owner alone, who is the owner of the home even if we are root.

    Otherwise one `sudo faultline db start` would lock users out of files in their own home.
    """
    descriptor = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if os.geteuid() == 0:
        home = path.parent.stat()
        os.fchown(descriptor, home.st_uid, home.st_gid)
    return descriptor


@contextlib.contextmanager
def locked(path: Path, *, seconds: float) -> Iterator[None]:
    """Hold the lock file; another launcher's start or stop is waited for."""
    descriptor = open_private(path, os.O_RDWR)
    try:
        if not _lock_within(descriptor, seconds):
            raise LauncherError(
                f"another process has held {path} for {seconds:.0f} s: find it with "
                f"`fuser {path}`, end it, and try again"
            )
        yield
    finally:
        os.close(descriptor)


def free_port(wanted: int | None) -> int:
    """The wanted port if nobody has it, else one that is free now; a race may still lose it."""
    if wanted is not None and is_free(wanted):
        return wanted
    for _ in range(1_000):
        port = secrets.choice(_PORTS)
        if is_free(port):
            return port
    raise LauncherError("no free TCP port was found on 127.0.0.1; end some servers there")


def is_free(port: int) -> bool:
    """Whether a server could listen there, judged as PostgreSQL would: with SO_REUSEADDR."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _lock_within(descriptor: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOCK_POLL_SECONDS)
        else:
            return True


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except FileNotFoundError:
        return None


def _write(path: Path, text: str) -> None:
    """Whole or not at all, and 0600."""
    scratch = path.with_name(f".{path.name}.new")
    scratch.unlink(missing_ok=True)
    descriptor = open_private(scratch, os.O_WRONLY | os.O_EXCL)
    with os.fdopen(descriptor, "w") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
