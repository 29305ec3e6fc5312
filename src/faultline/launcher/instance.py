"""The postmaster of one place: whether it answers, what it left, launching it, ending it.

Everything here expects the caller to hold the lock of the home, except `is_running`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from faultline.errors import LauncherError
from faultline.launcher import processes
from faultline.launcher.home import Place, free_port, is_free, open_private
from faultline.launcher.identity import Identity

_START_SECONDS = 120.0
_STOP_SECONDS = 20.0
_ORPHAN_SECONDS = 5.0
_LAUNCHES = 5


@dataclass(frozen=True)
class Launch:
    """How to start a postmaster: as whom, which program, with which settings."""

    who: Identity
    postgres: Path
    options: Mapping[str, str]
    environment: Mapping[str, str]

    @property
    def fixed_port(self) -> int | None:
        """The port that the caller insists on."""
        return int(self.options["port"]) if "port" in self.options else None

    def command(self, place: Place, port: int) -> list[str | Path]:
        """The postmaster's command line; the caller's options have the last word."""
        options = {
            # By default once a minute: then a minute's dead rows are always there, at 30,000 jobs/s
            # 700 MB; with 5 s some 80, with 2 s 45.
            "autovacuum_naptime": "2s",
            "listen_addresses": "127.0.0.1",
            "port": str(port),
            "unix_socket_directories": str(place.socket or ""),
            "unix_socket_permissions": "0700",
            "logging_collector": "off",
            "log_destination": "stderr",
            "timezone": "UTC",
            "log_timezone": "UTC",
            **self.options,
        }
        command: list[str | Path] = [self.postgres, "-D", place.data]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        return command


@dataclass(frozen=True)
class Instance:
    """The server of one place, running or not."""

    place: Place

    def is_running(self) -> bool:
        """Whether it accepts connections; asked of the server, not of a file."""
        found = processes.recorded(self.place.data)
        if found is None or found.port is None:
            return False
        if processes.is_at_work(found.pid, self.place.data):
            return processes.answers(found.port)
        where, _ = processes.login(found.port, self.place.read_password() or "")
        return where is not None and where.exists() and where.samefile(self.place.data)

    def other_start_succeeds(self) -> bool:
        """A launcher killed half-way leaves a postmaster that is still starting: wait for it."""
        data = self.place.data
        found = processes.recorded(data)
        if found is None or not processes.is_at_work(found.pid, data):
            return False
        processes.wait_until(
            lambda: self.is_running() or not processes.is_alive(found.pid), _START_SECONDS
        )
        if self.is_running():
            return True
        if processes.is_at_work(found.pid, data):
            raise LauncherError(
                f"process {found.pid} has {data} open but does not answer: end it with "
                "faultline db stop, then start again"
            )
        return False

    def clear_remains(self) -> None:
        """End what a killed server left, then remove its pid file; never the other way round.

        postmaster.pid is what keeps a second server out while backends of the first still write.
        """
        processes.end_all(self.place.data, patience_seconds=_ORPHAN_SECONDS)
        self._forget_postmaster()

    def launch(self, launch: Launch) -> None:
        """Start the postmaster; again with another port if somebody was quicker to take it."""
        self.place.rotate_log()
        for _ in range(_LAUNCHES):
            port = launch.fixed_port or free_port(self.place.read_port())
            self.place.write_port(port)
            offset = self.place.log_size()
            if self._comes_up(launch, port):
                return
            if launch.fixed_port or is_free(port):
                break
        raise LauncherError(
            f"PostgreSQL did not start: {self.place.log_since(offset)} "
            f"(the whole log: {self.place.log})"
        )

    def end(self, *, patience_seconds: float = _STOP_SECONDS) -> bool:
        """Fast shutdown, then immediate, then SIGKILL; whether there was anything to end."""
        data = self.place.data
        found = processes.recorded(data)
        was_running = bool(processes.living(data))
        if found is not None and processes.is_at_work(found.pid, data):
            processes.send(found.pid, signal.SIGINT)
            processes.wait_until(lambda: not processes.living(data), patience_seconds)
        processes.end_all(data, patience_seconds=0.0)
        self._forget_postmaster()
        return was_running

    def _comes_up(self, launch: Launch, port: int) -> bool:
        """Whether a new postmaster answers; one that dies, or never answers, is ended."""
        place = self.place
        descriptor = open_private(place.log, os.O_WRONLY | os.O_APPEND)
        with os.fdopen(descriptor, "ab") as log, place.sign_of_life() as kept:
            pid = launch.who.daemon(
                launch.command(place, port),
                cwd=place.data,
                log=log,
                kept=kept,
                environment=launch.environment,
            )
        try:
            processes.wait_until(
                lambda: self.is_running() or not processes.is_alive(pid), _START_SECONDS
            )
            # The orphan of a killed launcher may have been quicker; then ours has left, and the
            # other one is as good.
            if self.is_running() or self.other_start_succeeds():
                return True
        except BaseException:
            self.end()
            raise
        self.end()
        return False

    def _forget_postmaster(self) -> None:
        """Remove stale lock files, once nothing lives; without /proc PostgreSQL decides.

        PostgreSQL itself would take them for fresh if their process id was given to somebody
        else, or if its zombie waits for an init that does not reap, as in many containers.
        """
        stale = [self.place.data / "postmaster.pid"]
        if self.place.socket is not None:
            stale += self.place.socket.glob(".s.PGSQL.*")
        stale = [path for path in stale if path.exists()]
        if processes.has_proc() and stale:
            with self.place.sign_of_life():
                for path in stale:
                    path.unlink()
