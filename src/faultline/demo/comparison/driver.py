"""The driver: starts the workers of one contender, and does to them what the schedule says.

It signals only processes that it has started itself, and sees with its own eyes (waitpid) that the
kernel stopped, continued or killed them. A killed worker is replaced. Nothing here knows which
queue it is driving.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
import uuid
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from psycopg.conninfo import make_conninfo

from faultline.demo.comparison.contenders import Contender, Findings
from faultline.demo.comparison.schedule import LEASE_SECONDS, Fault, Schedule, What
from faultline.demo.comparison.tables import Connection, Counted, answer, calls, count, forget
from faultline.drills.workers import end_with_parent

WORKERS = 3
QUIET_SECONDS = 5.0  # all jobs ended, and still a fault that nobody called for
PATIENCE_SECONDS = 120.0  # without any progress
DRAIN_SECONDS = 40.0


@dataclass
class Injected:
    """A fault that happened, to this process, at this time."""

    job: int
    what: What
    point: str
    worker: str
    pid: int
    at: str
    confirmed: str
    stopped_seconds: float | None = None


@dataclass
class Member:
    """One worker process."""

    name: str
    process: subprocess.Popen[bytes]
    stalled: Injected | None = None
    stalled_at: float = 0.0
    wakes_at: float = 0.0


@dataclass(frozen=True)
class Run:
    """What became of one contender under one schedule."""

    contender: str
    schedule: Schedule
    counted: Counted
    findings: Findings
    faults: list[Injected]
    drained: bool
    seconds: float  # until the last job had ended, or the last fault happened
    complaint: str | None = None

    def record(self) -> list[dict[str, Any]]:
        """The faults, for the report."""
        return [asdict(fault) for fault in self.faults]


class Drive:
    """One contender under one schedule; to be moved on by `step` until it is `over`."""

    def __init__(
        self, url: str, contender: Contender, schedule: Schedule, conn: Connection
    ) -> None:
        self.contender = contender
        self.schedule = schedule
        self.ended = 0
        self.faults: list[Injected] = []
        self._url = url
        self._schema = contender.schema
        self._conn = conn
        self._run = f"{contender.name}-{uuid.uuid4().hex[:12]}"
        self._due = {fault.job: fault for fault in schedule.faults}
        self._crew: dict[int, Member] = {}
        self._hired = 0
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed on exit)
        self._began = self._moved = time.monotonic()
        self._complaint: str | None = None

    def __enter__(self) -> Self:
        self.contender.enqueue(self._conn, self.schedule.payloads(self._run))
        for _ in range(WORKERS):
            self._hire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for member in self._crew.values():
            member.process.kill()
            member.process.wait()
        self._log.close()

    # ── moving on ────────────────────────────────────────────────────────────────────────────────

    @property
    def over(self) -> bool:
        """All jobs ended and all faults happened, or nothing goes on any more."""
        quiet = time.monotonic() - self._moved
        if self._complaint is not None or quiet > PATIENCE_SECONDS:
            return True
        if self.ended < len(self.schedule) or any(m.stalled for m in self._crew.values()):
            return False
        return not self._due or quiet > QUIET_SECONDS

    def step(self) -> None:
        """Wake who has slept long enough, answer who calls, look how far it is."""
        for member in list(self._crew.values()):
            if member.stalled is not None and time.monotonic() >= member.wakes_at:
                self._wake(member)
            elif member.stalled is None and member.process.poll() is not None:
                status = member.process.returncode
                self._complaint = f"{member.name} ended by itself with {status}: {self._tail()}"
                return
        for job, pid in calls(self._conn, self._schema, self._run):
            called = self._crew.get(pid)
            if called is None:
                forget(self._conn, self._schema, self._run, pid)
            elif called.stalled is None:  # else it is hit when it is awake again
                self._inject(self._due.pop(job), called)
                answer(self._conn, self._schema, self._run, job)
        before, self.ended = self.ended, self.contender.ended(self._conn)
        if self.ended != before:
            self._moved = time.monotonic()

    def finish(self) -> Run:
        """Ask the workers to end, so that whatever they still write is there; then count."""
        for member in self._crew.values():
            member.process.terminate()
        since = time.monotonic()
        for member in self._crew.values():
            left = max(0.1, DRAIN_SECONDS - (time.monotonic() - since))
            try:
                member.process.wait(left)
            except subprocess.TimeoutExpired:
                self._complaint = self._complaint or f"{member.name} did not end on SIGTERM"
        return Run(
            self.contender.name,
            self.schedule,
            count(self._conn, self._schema, self._run),
            self.contender.findings(self._conn),
            self.faults,
            self.contender.ended(self._conn) == len(self.schedule),
            round(self._moved - self._began, 3),
            self._complaint,
        )

    # ── workers ──────────────────────────────────────────────────────────────────────────────────

    def _hire(self) -> None:
        self._hired += 1
        name = f"{self._run}-{self._hired}"  # under which the server knows its connections
        process = subprocess.Popen(
            self.contender.command,
            env={
                **os.environ,
                "FAULTLINE_DATABASE_URL": make_conninfo(self._url, application_name=name),
                "FAULTLINE_SCHEMA": self._schema,
            },
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            process_group=0,
            preexec_fn=end_with_parent,
        )
        self._crew[process.pid] = Member(name, process)

    def _tail(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    # ── faults ───────────────────────────────────────────────────────────────────────────────────

    def _inject(self, fault: Fault, member: Member) -> None:
        hit = {"SIGSTOP": self._stall, "SIGKILL": self._kill, "disconnect": self._disconnect}
        at = datetime.now(UTC).isoformat()
        pid = member.process.pid
        injected = Injected(fault.job, fault.what, fault.point, member.name, pid, at, "")
        hit[fault.what](fault, member, injected)
        self.faults.append(injected)
        self._moved = time.monotonic()

    def _stall(self, fault: Fault, member: Member, injected: Injected) -> None:
        assert fault.stall_seconds is not None
        member.process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(injected.pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            injected.confirmed = "stopped"
        member.stalled = injected
        member.stalled_at = time.monotonic()
        member.wakes_at = member.stalled_at + fault.stall_seconds

    def _wake(self, member: Member) -> None:
        assert member.stalled is not None
        seconds = time.monotonic() - member.stalled_at
        member.process.send_signal(signal.SIGCONT)
        _, status = os.waitpid(member.process.pid, os.WCONTINUED)
        if os.WIFCONTINUED(status) and seconds > LEASE_SECONDS:
            member.stalled.confirmed += ", continued after its lease"
        member.stalled.stopped_seconds = round(seconds, 3)
        member.stalled = None
        self._moved = time.monotonic()

    def _kill(self, _: Fault, member: Member, injected: Injected) -> None:
        member.process.kill()
        if member.process.wait() == -signal.SIGKILL:
            injected.confirmed = "killed"
        del self._crew[injected.pid]
        self._hire()

    def _disconnect(self, _: Fault, member: Member, injected: Injected) -> None:
        """Every connection that this worker has, all at once."""
        ended = self._conn.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = %s",
            (member.name,),
        ).fetchall()
        if ended and all(ok for (ok,) in ended):
            injected.confirmed = f"{len(ended)} connections terminated"
