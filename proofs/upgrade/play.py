"""The play: a migrate in the middle of the work of the previous code.

    old worker A begins a job and is stopped; old worker B begins another; an old producer goes on
    → migrate, by the new code → a new worker and a new producer join, the gate opens
    → A's job is taken over, A wakes and is refused → the new worker leaves
    → what comes then, from old and new producers, is done by old workers alone
    → an installation that has no use for the old code any more says so to it

Nothing is timed: each step waits until the database shows the one before.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg

from faultline.connect import connect
from faultline.drills.workers import WorkerProcess, end_with_parent
from faultline.protocol import Protocol
from faultline.reading import Reading
from proofs.upgrade.app import LEASE_SECONDS, QUEUE, SETUP
from proofs.upgrade.previous import Code

APP = Path(__file__).with_name("app.py")
PATIENCE_SECONDS = 60.0
LATER = 20  # jobs accepted after the migrate, at least, before the play goes on

Connection = psycopg.Connection[Any]


class Producer:
    """A process that enqueues until it is told to end; what was accepted is in its file."""

    def __init__(self, code: Code, url: str, schema: str, accepted: Path) -> None:
        self._accepted = accepted
        with accepted.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(APP)],
                env=code.environment(url, schema),
                stdin=subprocess.PIPE,
                stdout=output,
                process_group=0,
                preexec_fn=end_with_parent,
            )

    def accepted(self) -> list[UUID]:
        """The ids so far."""
        return [UUID(line) for line in self._accepted.read_text().split("\n")[:-1]]

    def end(self) -> int:
        """No more; the status it ends with."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(PATIENCE_SECONDS)

    def kill(self) -> None:
        """Whatever it does."""
        self._process.kill()
        self._process.wait()


@dataclass
class Outcome:
    """What came out, and what is wrong with it."""

    jobs: int = 0
    by_old_workers_afterwards: int = 0
    refusals: int = 0
    told: str = ""
    wrong: list[str] = field(default_factory=list)


@dataclass
class Play:
    """One installation that is upgraded."""

    url: str
    schema: str
    folder: Path
    old: Code
    new: Code

    def __post_init__(self) -> None:
        self._stack = ExitStack()
        self._jobs: list[UUID] = []

    def run(self) -> Outcome:
        """From the old installation to the verdict."""
        with self._stack:
            self._done(self.old.run("migrate", url=self.url, schema=self.schema))
            conn = self._stack.enter_context(connect(self.url, schema=None))
            conn.execute(SETUP)
            producers, olds = self._before(conn)
            self._done(self.new.run("migrate", url=self.url, schema=self.schema))
            self._after(conn, producers, olds)
            outcome = self._judge(conn, [worker.pid for worker in olds])
            self._outdate(conn, outcome)
            return outcome

    # ── in order ─────────────────────────────────────────────────────────────────────────────────

    def _before(self, conn: Connection) -> tuple[list[Producer], list[WorkerProcess]]:
        """Old workers in the middle of a job, one of them stopped; an old producer at work."""
        a = self._worker(self.old, "A")
        self._hold(conn, a)
        a.stop()
        b = self._worker(self.old, "B")
        self._hold(conn, b)
        producer = self._producer(self.old, "old")
        until(lambda: len(producer.accepted()) >= LATER, "the old producer is at work")
        return [producer], [a, b]

    def _after(
        self, conn: Connection, producers: list[Producer], olds: list[WorkerProcess]
    ) -> None:
        """New ones join; what was begun ends; then the old workers are left alone with it all."""
        a, _ = olds
        new = self._worker(self.new, "C")
        producers.append(self._producer(self.new, "new"))
        held = self._jobs[0]
        began = "select count(distinct pid) from faultline_upgrade.begun where job_id = %s"
        until(lambda: value(conn, began, held) == 2, "A's job is taken over")
        conn.execute("insert into faultline_upgrade.gate values (true)")
        until(lambda: self._effects(conn, held) == 1, "its successor ends it")
        a.resume()
        refused = f"select count(*) from {self.schema}.refusals where job_id = %s"
        until(lambda: value(conn, refused, held), "A is refused")
        new.process.send_signal(signal.SIGTERM)
        until(lambda: not new.is_alive(), "the new worker has left")
        so_far = [len(producer.accepted()) for producer in producers]
        until(
            lambda: all(
                len(producer.accepted()) >= count + LATER
                for producer, count in zip(producers, so_far, strict=True)
            ),
            "both producers go on",
        )
        self._since = [
            job_id
            for producer, count in zip(producers, so_far, strict=True)
            for job_id in producer.accepted()[count:]
        ]
        for producer in producers:
            if status := producer.end():
                raise RuntimeError(f"a producer ended with {status}")
            self._jobs += producer.accepted()
        done = f"select count(*) from {self.schema}.jobs where id = any (%s) and state = %s"
        until(
            lambda: value(conn, done, self._jobs, "succeeded") == len(self._jobs),
            "every job that was accepted has succeeded",
        )

    def _judge(self, conn: Connection, old_pids: list[int]) -> Outcome:
        """From the table that no version of the queue owns, and from the views."""
        effects = conn.execute("select job_id, token, pid from faultline_upgrade.effect").fetchall()
        jobs = [job_id for job_id, _, _ in effects]
        late = [pid for job_id, _, pid in effects if job_id in set(self._since)]
        reading = Reading(self.schema)
        outcome = Outcome(
            jobs=len(self._jobs),
            by_old_workers_afterwards=sum(pid in old_pids for pid in late),
            refusals=len(reading.refusals(conn, self._jobs[0])),
        )
        claims = {
            "each job has one effect": sorted(jobs) == sorted(self._jobs),
            "the old workers did what came after the new one had left": len(late)
            == len(self._since)
            == outcome.by_old_workers_afterwards,
            "no invariant is violated": reading.violations(conn) == [],
        }
        outcome.wrong = [claim for claim, holds in claims.items() if not holds]
        return outcome

    def _outdate(self, conn: Connection, outcome: Outcome) -> None:
        """An installation that says that the old code is too old: what does that code say?"""
        conn.execute(
            f"create or replace function {self.schema}.schema_version("
            "out version integer, out oldest_client integer) language sql stable "
            f"return row(99, {self.old.schema_version + 1})::record"
        )
        done = self.old.run("worker", f"{APP}:app", url=self.url, schema=self.schema)
        outcome.told = done.stderr.strip()
        if done.returncode != 1 or "upgrade faultline-queue" not in outcome.told:
            outcome.wrong.append(f"an old worker that may not is told: {outcome.told!r}")

    # ── the parts ────────────────────────────────────────────────────────────────────────────────

    def _worker(self, code: Code, name: str) -> WorkerProcess:
        worker = WorkerProcess(
            f"{APP}:app",
            ("--queues", QUEUE, "--concurrency", "4"),
            log=self.folder / f"{name}.log",
            environment=code.environment(self.url, self.schema),
        )
        self._stack.callback(worker.end)
        until(worker.is_ready, f"worker {name} is ready")
        return worker

    def _producer(self, code: Code, name: str) -> Producer:
        producer = Producer(code, self.url, self.schema, self.folder / f"{name}.txt")
        self._stack.callback(producer.kill)
        return producer

    def _hold(self, conn: Connection, worker: WorkerProcess) -> None:
        """A job that this worker is in the middle of."""
        enqueue = Protocol(self.schema).enqueue(
            "work",
            {"held": True},
            queue=QUEUE,
            lease_seconds=LEASE_SECONDS,
            max_attempts=20,
            max_crashes=20,
        )
        self._jobs.append(enqueue.run(conn))
        began = "select count(*) from faultline_upgrade.begun where (job_id, pid) = (%s, %s)"
        until(lambda: value(conn, began, self._jobs[-1], worker.pid), "it has begun")

    def _effects(self, conn: Connection, job_id: UUID) -> int:
        effects = "select count(*) from faultline_upgrade.effect where job_id = %s"
        return int(value(conn, effects, job_id))

    def _done(self, done: subprocess.CompletedProcess[str]) -> None:
        if done.returncode != 0:
            raise RuntimeError(f"{done.args[2:]} says: {done.stdout}{done.stderr}")


def value(conn: Connection, query: str, *parameters: object) -> Any:
    """The one value of a query."""
    row = conn.execute(query, parameters).fetchone()
    assert row is not None
    return row[0]


def until(condition: Callable[[], object], what: str) -> None:
    """Look again and again."""
    since = time.monotonic()
    while not condition():
        if time.monotonic() - since > PATIENCE_SECONDS:
            raise RuntimeError(f"never happened: {what}")
        time.sleep(0.02)
