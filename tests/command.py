"""`faultline` run as a user runs it: a process, its exit status and what it says."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests import forked

FAULTLINE = [sys.executable, "-m", "faultline"]
STARTS_PROCESSES = {"db", "dev", "drill", "worker"}  # these do, and are loaded as a user loads them


def faultline(*arguments: str, home: Path, status: int = 0, **environment: str) -> str:
    """What it printed; with a status other than 0, what it complained about on stderr."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
    done = subprocess.run(
        [*FAULTLINE, *arguments],
        env={**kept, "FAULTLINE_HOME": str(home), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr if status else done.stdout


def refusal(*arguments: str, home: Path, **environment: str) -> str:
    """The one sentence with which the command says no."""
    said = faultline(*arguments, home=home, status=1, **environment)
    assert said.startswith("faultline: "), said
    assert said.count("\n") == 1, said
    return said


class CommandLine:
    """`faultline` on one database, again and again."""

    def __init__(
        self, url: str, home: Path, *, directory: Path | None = None, **environment: str
    ) -> None:
        self.directory = directory
        self.environment = {
            **{
                name: os.environ[name]
                for name in ("PATH", "LANG", "PYTHONPATH")
                if name in os.environ
            },
            "FAULTLINE_HOME": str(home),
            "FAULTLINE_DATABASE_URL": url,
            **environment,
        }
        self.said = ""  # on stderr, the last time

    def __call__(self, *arguments: str, status: int = 0, given: str = "") -> str:
        """What it printed on stdout; what it said on stderr is kept."""
        done = self._run(*arguments, given=given)
        assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        assert "\x1b" not in done.stdout + done.stderr, "colours outside a terminal"
        self.said = done.stderr
        return done.stdout

    def _run(self, *arguments: str, given: str) -> subprocess.CompletedProcess[str]:
        command = self.command(*arguments)
        if command[: len(FAULTLINE)] == FAULTLINE and arguments[0] not in STARTS_PROCESSES:
            return forked.run(
                *arguments, environment=self.environment, directory=self.directory, given=given
            )
        return subprocess.run(
            command,
            env=self.environment,
            cwd=self.directory,
            input=given,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def json(self, *arguments: str, status: int = 0) -> Any:
        """The one line of JSON that it printed."""
        (line,) = self(*arguments, "--json", status=status).splitlines()
        return json.loads(line)

    def in_a_terminal(
        self, *arguments: str, answer: str = "", columns: int = 80
    ) -> tuple[int, str]:
        """The exit status and all that the terminal shows, when a person types this answer."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = subprocess.Popen(
            self.command(*arguments),
            env={**self.environment, "TERM": "xterm-256color"},
            cwd=self.directory,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        os.write(ours, answer.encode())
        shown = b""
        with suppress(OSError):  # EIO: nobody has the terminal open any more
            while chunk := os.read(ours, 4096):
                shown += chunk
        os.close(ours)
        return process.wait(timeout=60), shown.decode()

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Begin it, for a command that does not end by itself; the caller ends it."""
        return subprocess.Popen(
            self.command(*arguments),
            env=self.environment | environment,
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def command(self, *arguments: str) -> list[str]:
        return [*FAULTLINE, *arguments]
