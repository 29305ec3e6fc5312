"""A worker in a child process: how it is started, and what runs in it.

    python -m faultline.worker        reads one line of JSON, the Spec, on its standard input

The pipe stays open as long as the parent lives: when it closes, the child drains by itself. A child
that runs one job alone says through a second pipe that it keeps the job's lease from now on.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from dataclasses import asdict, dataclass, replace
from typing import Any, Self
from uuid import UUID

from faultline.jobs import Lease
from faultline.worker.options import WorkerOptions


@dataclass(frozen=True, slots=True)
class Spec:
    """All that a child needs to know."""

    app: str  # a reference, as import_app takes it
    options: WorkerOptions
    lease: Lease | None = None  # one job, claimed already, to be run alone
    kept: int | None = None  # the pipe to say so when this process keeps its lease
    has_siblings: bool = False  # which do the same

    def to_line(self) -> bytes:
        """As it goes through the pipe."""
        values = asdict(replace(self, lease=None))
        values["lease"] = None if self.lease is None else self.lease._asdict()
        return json.dumps(values, default=str).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """As it comes out."""
        values: dict[str, Any] = json.loads(line)
        lease = values["lease"]
        if lease is not None:
            lease = Lease(**{**lease, "job_id": UUID(lease["job_id"])})
        options = WorkerOptions(**values["options"])
        return cls(values["app"], options, lease, values["kept"], values["has_siblings"])

    def for_lease(self, name: str, lease: Lease, kept: int) -> Spec:
        """The same worker under another name, for one job that was claimed already."""
        return replace(self, options=replace(self.options, name=name), lease=lease, kept=kept)


class Child:
    """One child process, from the parent's side."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, spec: Spec) -> Self:
        """Start it, in a group of its own: Ctrl-C is the parent's to pass on."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "faultline.worker",
            stdin=asyncio.subprocess.PIPE,
            process_group=0,
            pass_fds=() if spec.kept is None else (spec.kept,),
        )
        assert process.stdin is not None
        process.stdin.write(spec.to_line())
        return cls(process)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def wait(self) -> int:
        """Its exit status, when it has ended; negative: the signal that killed it."""
        return await self._process.wait()

    def send_signal(self, sign: signal.Signals) -> None:
        """Pass a signal on."""
        self._process.send_signal(sign)


def main() -> int:
    """Run the worker that the parent describes."""
    line = sys.stdin.buffer.readline()
    if not line:
        return 0  # the parent is gone already
    spec = Spec.from_line(line)
    from faultline.reference import import_app
    from faultline.worker.runner import leave, run_to_end
    from faultline.worker.worker import Worker

    app = import_app(spec.app)
    worker = Worker(app, spec.options, reference=spec.app)
    status = run_to_end(worker.main(spec, parent=sys.stdin.fileno()))
    return leave(status, app.telemetry.flush)
