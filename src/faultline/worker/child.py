"""A worker in a child process: how it is started, and what runs in it.

    python -m faultline.worker        reads one line of JSON, the Spec, on its standard input

The pipe stays open as long as the parent lives: when it closes, the child drains by itself. A child
that runs one job alone says through a second pipe that it keeps the job's lease from now on. What
it has observed goes back through another (`passing`).
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import Any, Self
from uuid import UUID

from faultline.jobs import Lease
from faultline.observer import NOBODY, Observer
from faultline.worker.options import WorkerOptions
from faultline.worker.passing import Hearing


@dataclass(frozen=True, slots=True)
class Spec:
    """All that a child needs to know."""

    app: str  # a reference, as import_app takes it
    options: WorkerOptions
    lease: Lease | None = None  # one job, claimed already, to be run alone
    kept: int | None = None  # the pipe to say so when this process keeps its lease
    has_siblings: bool = False  # which do the same
    words: int | None = None  # the pipe for what it observes

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
        return cls(
            values["app"],
            options,
            lease,
            values["kept"],
            values["has_siblings"],
            values["words"],
        )

    def for_lease(self, name: str, lease: Lease, kept: int) -> Spec:
        """The same worker under another name, for one job that was claimed already."""
        return replace(self, options=replace(self.options, name=name), lease=lease, kept=kept)


class Child:
    """One child process, from the parent's side."""

    def __init__(self, process: asyncio.subprocess.Process, hearing: Hearing) -> None:
        self._process = process
        self._hearing = hearing
        self.started_at = time.monotonic()

    @classmethod
    async def start(cls, spec: Spec, observer: Observer = NOBODY) -> Self:
        """Start it, in a group of its own: Ctrl-C is the parent's to pass on. The observer hears
        what it observes."""
        hearing = Hearing(observer, str(spec.options.name))
        spec = replace(spec, words=hearing.write)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "faultline.worker",
                stdin=asyncio.subprocess.PIPE,
                process_group=0,
                pass_fds=[pipe for pipe in (spec.kept, spec.words) if pipe is not None],
            )
        except BaseException:
            hearing.close()
            raise
        finally:
            hearing.started()
        assert process.stdin is not None
        process.stdin.write(spec.to_line())
        return cls(process, hearing)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def wait(self) -> int:
        """Its exit status, when it has ended; negative: the signal that killed it."""
        status = await self._process.wait()
        self._hearing.close()
        return status

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
