"""Producer processes, from the drill's side."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from faultline.drills.workers import end_with_parent


class Submitter:
    """One `python -m faultline.drills.submitter`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "faultline.drills.submitter"],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
            preexec_fn=end_with_parent,
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def send(
        self, arguments: Mapping[str, Any], options: Mapping[str, Any], pause: str | None = None
    ) -> None:
        """Have it submit this, and do not wait."""
        order = {"arguments": arguments, "options": options, "pause": pause}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """What it says next."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a producer ended with {self._process.wait()}")
        said: dict[str, Any] = json.loads(line)
        return said

    def kill(self) -> None:
        """SIGKILL, and wait until it is dead of it."""
        self._process.send_signal(signal.SIGKILL)
        if (status := self._process.wait()) != -signal.SIGKILL:
            raise RuntimeError(f"process {self.pid} had ended by itself ({status}): no fault")
        self.close()

    def close(self) -> None:
        """Gone, with its pipes."""
        if self.is_alive():
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
