"""A `faultline worker` as a real process, and what the kernel says about it.

Its own defaults, its log level among them; what it writes goes to a file, as in a deployment.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from faultline.drills.workers import descendants, end_with_parent

ROOT = Path(__file__).parent.parent
END_SECONDS = 20.0


class Worker:
    """Started when it is made; `end` it."""

    def __init__(
        self, app: str, options: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> None:
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "faultline", "worker", app, *options],
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=end_with_parent,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def check(self) -> None:
        """Raise if it has ended by itself."""
        if self._process.poll() is not None:
            words = self.log.read_text(errors="replace").splitlines()[-5:]
            raise RuntimeError(f"a worker ended with {self._process.returncode}: {words}")

    def end(self) -> None:
        """Drain it; and if it takes too long, kill it and what it has started."""
        if self._process.poll() is not None:
            return
        family = descendants(self.pid)
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            for pid in family:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def kill(self) -> None:
        """At once; its jobs keep their leases."""
        self._process.kill()
        self._process.wait()

    # ── what the kernel says; without /proc nothing ──────────────────────────────────────────────

    def cpu_seconds(self) -> float:
        """Of the process itself, all threads, since it was started."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_mb(self) -> float:
        """What of it is in memory."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("the kernel does not say how large the worker is")
