"""What is alive in a data directory, and ending it.

A server is judged by connecting to it. A process is taken for ours only if it runs `postgres` or
`initdb` with its working directory inside ours, which is asked of /proc again before each signal:
a process id read from a file proves nothing, since ids are used again. Where there is no /proc
(macOS), `ps` must show the data directory on its command line, and backends stay unseen.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from faultline.errors import LauncherError
from faultline.launcher.identity import Identity

PROC = Path("/proc")
_OURS = frozenset({"postgres", "postmaster", "initdb"})
_CONNECT_SECONDS = 5
_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Postmaster:
    """What postmaster.pid says; it may be stale, or name a process of somebody else."""

    pid: int
    port: int | None


def has_proc() -> bool:
    """Whether processes can be seen with their working directories."""
    return (PROC / "self" / "cwd").is_symlink()


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll a condition until it holds or the time is over; whether it held."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def recorded(data: Path) -> Postmaster | None:
    """The process id and port in postmaster.pid, or None where there is no readable one."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
        pid = int(lines[0])
    except (OSError, ValueError, IndexError):
        return None
    port = int(lines[3]) if len(lines) > 3 and lines[3].isdigit() else None
    return Postmaster(pid, port) if pid > 1 else None


def living(directory: Path) -> list[int]:
    """The PostgreSQL processes at work in this directory or below it."""
    if not has_proc():
        postmaster = recorded(directory)
        if postmaster is None or not _on_command_line(postmaster.pid, directory):
            return []
        return [postmaster.pid]
    if not directory.exists():
        return []
    place, owner = os.path.realpath(directory), directory.stat()
    found: list[int] = []
    hidden = False
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                if _works_in(entry, place):
                    found.append(int(entry.name))
            except PermissionError:
                hidden = hidden or _uid(entry) == owner.st_uid
    if hidden and os.geteuid() == 0 and owner.st_uid != 0:
        found += _living_seen_by_owner(place, owner)
    return found


def is_at_work(pid: int, directory: Path) -> bool:
    """Whether this very process is a PostgreSQL at work in this directory."""
    if not has_proc():
        return _on_command_line(pid, directory)
    try:
        return _works_in(PROC / str(pid), os.path.realpath(directory))
    except PermissionError:
        return pid in living(directory)


def is_alive(pid: int) -> bool:
    """Whether this process exists and is not a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        status = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return not has_proc()
    return status.rpartition(")")[2].split()[0] != "Z"


def end_all(directory: Path, *, patience_seconds: float) -> None:
    """End whatever PostgreSQL still works in this directory: wait, then SIGQUIT, then SIGKILL.

    Backends whose postmaster was killed leave by themselves at their next wait; one that is busy
    does not, and a new server beside it would corrupt the data.
    """
    if wait_until(lambda: not living(directory), patience_seconds):
        return
    for number in (signal.SIGQUIT, signal.SIGKILL):
        for pid in living(directory):
            send(pid, number)
        if wait_until(lambda: not living(directory), 5.0):
            return
    raise LauncherError(
        f"processes {living(directory)} still work in {directory} and do not end even by "
        "SIGKILL; wait for their disk to answer, or restart the machine"
    )


def send(pid: int, number: signal.Signals) -> None:
    """Signal a process that `living` has just named; that it is gone by now is no error."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise LauncherError(
            f"process {pid} belongs to another user: stop the server as the user who started it"
        ) from error


def answers(port: int) -> bool:
    """Whether a PostgreSQL that accepts connections listens here; it may be anybody's."""
    from psycopg import pq

    info = f"hostaddr=127.0.0.1 port={port} dbname=postgres connect_timeout={_CONNECT_SECONDS}"
    return pq.PGconn.ping(f"{info} sslmode=disable gssencmode=disable".encode()) == pq.Ping.OK


def login(port: int, password: str) -> tuple[Path | None, str]:
    """Where the server on this port keeps its data, or None and why it does not let us in."""
    import psycopg

    try:
        # Spelled out, because libpq would take what is missing from PGSSLMODE, PGOPTIONS, ….
        with psycopg.connect(
            host="127.0.0.1",
            hostaddr="127.0.0.1",
            port=port,
            user="postgres",
            password=password,
            dbname="postgres",
            connect_timeout=_CONNECT_SECONDS,
            sslmode="disable",
            gssencmode="disable",
            channel_binding="disable",
            options="",
            target_session_attrs="any",
            autocommit=True,
        ) as connection:
            row = connection.execute("select current_setting('data_directory')").fetchone()
    except psycopg.Error as error:
        return None, str(error).strip().splitlines()[-1] if str(error).strip() else "no answer"
    return (Path(row[0]) if row else None), ""


def _works_in(entry: Path, place: str) -> bool:
    try:
        cwd = str((entry / "cwd").readlink())
        return _is_inside(cwd, place) and _is_ours(str((entry / "exe").readlink()))
    except (FileNotFoundError, ProcessLookupError):  # gone, or a zombie
        return False


def _is_inside(cwd: str, place: str) -> bool:
    return cwd == place or cwd.startswith(place + "/")


def _is_ours(program: str) -> bool:
    # A program replaced by an upgrade while it runs is shown as "postgres (deleted)".
    return Path(program.removesuffix(" (deleted)")).name in _OURS


def _uid(entry: Path) -> int | None:
    try:
        return entry.stat().st_uid
    except OSError:
        return None


def _living_seen_by_owner(place: str, owner: os.stat_result) -> list[int]:
    """Root in a container often lacks CAP_SYS_PTRACE and cannot look at nobody's processes.

    Nobody can, so the same question is asked as that user.
    """
    who = Identity("the owner", uid=owner.st_uid, gid=owner.st_gid)
    listed = who.run(["/bin/sh", "-c", "ls -l /proc/[0-9]*/cwd /proc/[0-9]*/exe"]).stdout
    seen = re.findall(r" /proc/(\d+)/(cwd|exe) -> (.*)", listed)
    inside = {pid for pid, link, target in seen if link == "cwd" and _is_inside(target, place)}
    ours = {pid for pid, link, target in seen if link == "exe" and _is_ours(target)}
    return sorted(int(pid) for pid in inside & ours)


def _on_command_line(pid: int, directory: Path) -> bool:
    try:
        shown = subprocess.run(
            ["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
        ).stdout
    except OSError:
        return False
    return str(directory) in shown
