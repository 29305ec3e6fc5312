"""A drill of an app's own handlers, on a database that its owner has marked for it.

Workers of that app are killed, stopped and cut off while they run real jobs. What the handlers were
told is not known here, so the checker judges what is left: the database's invariants, how each job
ended, and, by a query that the user gives, that every success has exactly one effect.
"""

from __future__ import annotations

import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from psycopg import Connection
from psycopg.conninfo import make_conninfo

from faultline.app import App
from faultline.config import Settings
from faultline.connect import connect
from faultline.database import database_url
from faultline.drills import checker
from faultline.drills.arena import Fault, WaitedInVain, until
from faultline.drills.checker import Expected, Found
from faultline.drills.history import Operation
from faultline.drills.scenario import Result
from faultline.drills.workers import WorkerProcess
from faultline.errors import InvalidArgument
from faultline.reading import Reading
from faultline.reference import import_app

MARK = "faultline.drill_target"
ENDED = frozenset({"succeeded", "failed", "cancelled", "quarantined"})
PATIENCE_SECONDS = 300.0
COMING_SECONDS = 30.0
GRACE_SECONDS = 60.0  # twice what a worker gives its handlers
Say = Callable[[str], None]
Jobs = Sequence[tuple[str, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Orders:
    """What is to be drilled, and how hard."""

    app: str
    url: str | None
    settings: Settings
    effects: str | None
    faults: int
    workers: int
    lease_seconds: float | None
    seed: int


def drill(orders: Orders, jobs: Jobs, say: Say) -> Result:
    """The jobs are enqueued, the faults happen, everything comes to rest, and then the verdict."""
    url = orders.url or database_url(orders.settings)
    with connect(url, schema=orders.settings.schema) as conn:
        insist_on_a_target(conn)
        with tempfile.TemporaryDirectory(prefix="faultline-drill-") as folder:
            staging = Staging(orders, url, conn, Path(folder), say)
            try:
                return staging.run(jobs)
            finally:
                staging.close()


def insist_on_a_target(conn: Connection[Any]) -> None:
    """Faults are only for a database whose owner has said so."""
    row = conn.execute(
        "select current_setting(%s, true), quote_ident(current_database())", (MARK,)
    ).fetchone()
    assert row is not None
    if row[0] != "yes":
        raise InvalidArgument(
            f"the database {row[1]} is no drill target: workers would be killed over its jobs. If "
            f"that is what you want, its owner runs: ALTER DATABASE {row[1]} SET {MARK} = 'yes'"
        )


class Staging:
    """One drill, while it lasts."""

    def __init__(
        self, orders: Orders, url: str, conn: Connection[Any], folder: Path, say: Say
    ) -> None:
        self._orders = orders
        self._url = url
        self._conn = conn
        self._folder = folder
        self._say = say
        self._reading = Reading(orders.settings.schema)
        self._random = random.Random(orders.seed)  # noqa: S311 - nothing secret
        self._workers: list[WorkerProcess] = []
        self._names: dict[int, str] = {}  # of its sessions, by the worker's pid
        self._count = 0
        self._faults: list[Fault] = []
        self._hit: set[UUID] = set()
        self._jobs: list[UUID] = []

    def run(self, jobs: Jobs) -> Result:
        """From the first worker to the verdict."""
        result = Result("staging", "staging", self._orders.seed, self._orders.lease_seconds or 0.0)
        began = time.monotonic()
        app = import_app(self._orders.app)
        for task, _ in jobs:
            if task not in app.tasks:
                raise InvalidArgument(f"{self._orders.app} has no task {task!r:.80}")
        self._effects()  # what is wrong with the query is said before anybody is hit
        self._top_up()
        try:
            until(self._all_ready, "the workers are ready")
        except RuntimeError as error:
            raise InvalidArgument(
                f"the workers of {self._orders.app} do not start: {error}"
            ) from None
        self._insist_they_came()
        self._enqueue(app, jobs)
        try:
            self._inject()
            self._come_to_rest()
        except WaitedInVain as error:
            result.violations.append(f"stuck: {error}")
        self._judge(result)
        result.seconds = round(time.monotonic() - began, 3)
        return result

    # ── workers and jobs ────────────────────────────────────────────────────────────────────────

    def _top_up(self) -> None:
        self._workers = [worker for worker in self._workers if worker.is_alive()]
        while len(self._workers) < self._orders.workers:
            self._count += 1
            name = f"faultline drill {self._count}"
            worker = WorkerProcess(
                self._orders.app,
                [],
                log=self._folder / f"worker-{self._count}.log",
                environment={
                    "FAULTLINE_DATABASE_URL": make_conninfo(self._url, application_name=name),
                    "FAULTLINE_SCHEMA": self._orders.settings.schema,
                },
            )
            self._workers.append(worker)
            self._names[worker.pid] = name

    def _all_ready(self) -> bool:
        return all(worker.is_ready() for worker in self._workers)

    def _insist_they_came(self) -> None:
        """An App that was given a URL of its own takes its workers there."""

        def came() -> bool:
            there = " ".join(row["worker"] for row in self._reading.workers(self._conn))
            return all(f":{worker.pid}:" in there for worker in self._workers)

        try:
            until(came, "they have said so", COMING_SECONDS)
        except WaitedInVain:
            raise InvalidArgument(
                f"the workers of {self._orders.app} do not come to this database: its App is "
                "given a URL of its own; leave it out, so that FAULTLINE_DATABASE_URL counts"
            ) from None

    def _enqueue(self, app: App, jobs: Jobs) -> None:
        lease = self._orders.lease_seconds
        # So many crashes are this drill's doing, and none of them is the job's.
        more: dict[str, Any] = {"max_crashes": self._orders.faults + 3}
        more |= {} if lease is None else {"lease_seconds": lease}
        for task, arguments in jobs:
            sender = app.tasks[task].options(connection=self._conn, **more)
            self._jobs.append(sender.enqueue(**arguments).id)

    def _states(self) -> Counter[str]:
        schema = self._orders.settings.schema
        rows = self._conn.execute(
            f"select state, count(*) from {schema}.jobs where id = any(%s) group by 1",
            (self._jobs,),
        ).fetchall()
        return Counter(dict(rows))

    def _is_over(self) -> bool:
        return set(self._states()) <= ENDED

    # ── faults ──────────────────────────────────────────────────────────────────────────────────

    def _inject(self) -> None:
        """One after the other, each on a worker that has a job in its hands."""
        while len(self._faults) < self._orders.faults:
            until(lambda: self._victim() or self._is_over(), "a job runs", PATIENCE_SECONDS)
            victim = self._victim()
            if victim is None:
                if self._is_over():
                    self._say("all jobs have ended: give more of them, or slower ones")
                    return
                continue  # it has just ended
            worker, held = victim
            self._hit |= set(held)
            what = self._random.choice(["SIGKILL", "SIGSTOP", "pg_terminate_backend"])
            if what == "SIGKILL":
                worker.kill()
            elif what == "SIGSTOP":
                worker.stop()
            elif not self._terminate(worker):
                continue
            self._faults.append(Fault(what, worker.pid, self._now()))
            self._say(f"{what}: process {worker.pid}, which runs {len(held)} of the jobs")
            if what == "SIGSTOP":
                self._stall(worker, held)
            self._top_up()
            until(self._all_ready, "the workers are ready")

    def _victim(self) -> tuple[WorkerProcess, list[UUID]] | None:
        """A worker of ours, and those of our jobs that it runs."""
        held: dict[int, list[UUID]] = {}
        for lease in self._reading.leases(self._conn):
            parts = str(lease["worker"]).split(":")
            if lease["started"] and lease["job_id"] in self._jobs and len(parts) > 2:
                held.setdefault(int(parts[-2]), []).append(lease["job_id"])
        ours = [worker for worker in self._workers if worker.pid in held]
        if not ours:
            return None
        worker = self._random.choice(ours)
        return worker, held[worker.pid]

    def _stall(self, worker: WorkerProcess, held: Sequence[UUID]) -> None:
        """Until others have taken over everything it had; then it wakes up."""
        before = {row["job_id"]: row["fencing_token"] for row in self._reading.leases(self._conn)}

        def taken() -> bool:
            now = {row["job_id"]: row["fencing_token"] for row in self._reading.leases(self._conn)}
            return all(now.get(job_id) != before.get(job_id, 0) for job_id in held)

        try:
            until(taken, "others have taken its jobs over", PATIENCE_SECONDS)
        finally:
            worker.resume()

    def _terminate(self, worker: WorkerProcess) -> bool:
        """Cut its sessions, where the user that drills may do so."""
        with suppress(psycopg.errors.InsufficientPrivilege):
            ended = self._conn.execute(
                "select count(pg_terminate_backend(pid)) from pg_stat_activity "
                "where application_name = %s",
                (self._names[worker.pid],),
            ).fetchone()
            return ended is not None and ended[0] > 0
        return False

    def _now(self) -> str:
        row = self._conn.execute("select clock_timestamp()").fetchone()
        assert row is not None
        return str(row[0].isoformat())

    # ── the end ─────────────────────────────────────────────────────────────────────────────────

    def _come_to_rest(self) -> None:
        self._say("no more faults: waiting until every job has ended")
        until(self._is_over, "every job has ended", PATIENCE_SECONDS)
        # A handler that was stopped may still be about to write: it gets the time to.
        for worker in self._workers:
            worker.process.send_signal(signal.SIGTERM)
        try:
            gone = "the workers have ended"
            until(lambda: not any(w.is_alive() for w in self._workers), gone, GRACE_SECONDS)
        except WaitedInVain:
            self._say("a handler did not end in time: what it still writes is not seen")

    def _judge(self, result: Result) -> None:
        conn, reading = self._conn, self._reading
        states = {
            str(job_id): str((reading.job(conn, job_id) or {}).get("state"))
            for job_id in self._jobs
        }
        attempts = {str(job_id): reading.attempts(conn, job_id) for job_id in self._jobs}
        effects = self._effects()
        names = [] if self._orders.effects is None else ["a row"]
        found = Found(
            expected={job_id: Expected(names, ENDED) for job_id in states},
            history=[Operation("enqueue", "ok", job_id) for job_id in states],
            effects=effects,
            states=states,
            attempts=attempts,
            violations=reading.violations(conn),
        )
        result.violations += checker.check(found, told=False)
        result.faults = [asdict(fault) for fault in self._faults]
        result.jobs = len(self._jobs)
        result.committed = sum(map(len, effects.values()))
        if self._orders.effects is None:
            result.committed = sum(state == "succeeded" for state in states.values())
        result.tokens = {
            str(job_id): [a["fencing_token"] for a in attempts[str(job_id)]] for job_id in self._hit
        }
        result.stale_refused = checker.stale_writes(
            refusal for job_id in self._jobs for refusal in reading.refusals(conn, job_id)
        )
        result.duplicates = checker.duplicates(effects)
        result.lost = len(checker.lost(found))
        result.vacuous = self._vacuous(result)
        for state, count in sorted(Counter(states.values()).items()):
            self._say(f"{count} {state}")

    def _effects(self) -> dict[str, list[tuple[int, str]]]:
        """What the user's query finds for the jobs of this drill; the token is not known."""
        if self._orders.effects is None:
            return {}
        ours = {str(job_id) for job_id in self._jobs}
        found: dict[str, list[tuple[int, str]]] = {}
        try:
            with self._conn.transaction():
                self._conn.execute("set transaction read only")
                rows = self._conn.execute(self._orders.effects.encode()).fetchall()
        except psycopg.Error as error:
            raise InvalidArgument(f"--effects cannot be asked: {error}") from None
        for job_id, *_ in rows:
            if str(job_id) in ours:
                found.setdefault(str(job_id), []).append((0, "a row"))
        return found

    def _vacuous(self, result: Result) -> str | None:
        if not self._faults:
            return "no fault happened: give more jobs, or slower ones"
        if not result.committed:
            return "no job succeeded, or left an effect"
        if not any(len(tokens) > 1 for tokens in result.tokens.values()):
            return "no job was taken over: give more faults, or slower jobs"
        return None

    def close(self) -> None:
        """Nothing of it is left running."""
        for worker in self._workers:
            worker.end()
