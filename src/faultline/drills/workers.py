"""Worker processes of a drill: really started, really hit, never left over.

Each is a `faultline worker` in a process group of its own whose log goes to a file. A fault counts
only when it happened: `kill` waits until the kernel says that the process ended of the signal,
`stop` until it says that the process is stopped.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1


class WorkerProcess:
    """One `faultline worker`."""

    def __init__(
        self,
        app: str,
        arguments: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str],
        prefix: Sequence[str] = (),
        name: str = "faultline",
    ) -> None:
        self.log = log
        self.name = name  # of its sessions, as the server knows them (application_name)
        command = [*prefix, sys.executable, "-m", "faultline", "worker", app, *arguments]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, "--log", "json", "--log-level", "debug"],
                env={**os.environ, **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=end_with_parent,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def is_alive(self) -> bool:
        """Whether it has not ended; a stopped one has not."""
        return self.process.poll() is None

    def told(self, event: str) -> list[dict[str, Any]]:
        """The events of this name that it has logged so far."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            with suppress(ValueError):  # a line that a kill cut off, or a traceback
                said = json.loads(line)
                if isinstance(said, dict) and said.get("event") == event:
                    found.append(said)
        return found

    def is_ready(self) -> bool:
        """Whether it takes jobs; one that ended instead is an error, with its last words."""
        if not self.is_alive():
            words = self.log.read_text(errors="replace").splitlines()[-5:]
            raise RuntimeError(f"a worker ended with {self.process.returncode}: {words}")
        return bool(self.told("worker_started"))

    def kill(self) -> None:
        """SIGKILL, and wait until it is dead of it."""
        self.process.send_signal(signal.SIGKILL)
        status = self.process.wait()
        if status != -signal.SIGKILL:
            raise RuntimeError(f"process {self.pid} had ended by itself ({status}): no fault")

    def stop(self) -> None:
        """SIGSTOP, and wait until the kernel says that it is stopped."""
        self.process.send_signal(signal.SIGSTOP)
        with suppress(ChildProcessError):  # it has ended, and was waited for
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if not self.is_alive():
            raise RuntimeError(f"process {self.pid} had ended by itself: no fault")

    def resume(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """At the end of a drill: gone, with everything it has started."""
        family = descendants(self.pid)  # a child is in a process group of its own
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """The processes that this one has started, and those that they have; none without /proc."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                child = int(stat.parent.name)
                found += [child, *descendants(child)]
    return found


def state_of(pid: int) -> str | None:
    """As the kernel says in /proc: T is stopped, Z is dead; None if it says nothing."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return None


def end_with_parent() -> None:
    """Should this process be killed, so are its workers; where there is no prctl, they are not."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
