"""A stage for the tests: connections that play the workers, and ways to force an order.

A lease is expired by moving its row, never the clock. Whether somebody waits is read from the
server (pg_blocking_pids), never guessed from time. Patience is long, and costs nothing where all is
well: a machine may be busy. FAULTLINE_TEST_PATIENCE (seconds) shortens it for who expects failures.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import psycopg
from psycopg import Connection

from faultline.call import Call
from faultline.jobs import Lease
from faultline.protocol import Protocol
from faultline.reading import Reading

SETTLING = ("complete", "fail", "snooze", "release", "cancel_attempt")
DEADLINE_SECONDS = float(os.environ.get("FAULTLINE_TEST_PATIENCE", "60"))

# The sessions of this test that wait for another one's lock; other tests share the server.
BLOCKED = "pg_stat_activity where datname = current_database() and pg_blocking_pids(pid) <> '{}'"


def until(condition: Callable[[], Any], what: str) -> Any:
    """Poll until the condition holds; the one place where the tests wait for something."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.005)
    return answer


def unwatched(url: str) -> str:
    """The database, whose server does not look whether the client of a call is still there."""
    return f"{url}?options=-c%20client_connection_check_interval%3D1h"


class Stage:
    """One migrated database: a connection that sees everything, the verbs and the views."""

    def __init__(self, url: str, schema: str = "faultline") -> None:
        self.url = url
        self.schema = schema
        self.verbs = Protocol(schema)
        self.reading = Reading(schema)
        self.connections: list[Connection[Any]] = []
        self._under_way: list[Background] = []
        self.conn = self.connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for call in self._under_way:  # libpq crashes the process when a connection in use is closed
            call.end()
        for conn in self.connections:
            conn.close()

    def connect(self, *, isolation: str | None = None, role: str | None = None) -> Connection[Any]:
        """Another session: a worker, an intruder. With an isolation level it is not autocommit."""
        conn = psycopg.connect(self.url, autocommit=isolation is None)
        self.connections.append(conn)
        if isolation is not None:
            conn.execute(f"set session characteristics as transaction isolation level {isolation}")
            conn.commit()
        if role is not None:
            conn.execute(f"set session authorization {self.schema}_{role}")
            conn.commit()
        return conn

    @contextmanager
    def login(self, *roles: str) -> Iterator[str]:
        """The URL of a user of its own that is in these roles, and nothing else."""
        name = f"user_{uuid.uuid4().hex}"
        groups = ", ".join(f"{self.schema}_{role}" for role in roles)
        member = f"in role {groups}" if groups else ""
        self.conn.execute(f"create role {name} login password 'secret' {member}")
        parts = urlsplit(self.url)
        address = parts.netloc.rpartition("@")[2]
        yield urlunsplit(parts._replace(netloc=f"{name}:secret@{address}"))
        self.conn.execute(f"drop role {name}")

    # ── what a producer and a worker do ──────────────────────────────────────────────────────────

    def enqueue(self, task: str = "work", payload: Any = None, **options: Any) -> UUID:
        return self.verbs.enqueue(task, payload, **options).run(self.conn)

    def claim(
        self, worker: str = "A", max_jobs: int = 1, conn: Connection[Any] | None = None, **more: Any
    ) -> list[Lease]:
        lanes = [lane.lane for lane in self.verbs.lanes(self.queues()).run(self.conn)]
        return self.verbs.claim(worker, lanes, max_jobs=max_jobs, **more).run(conn or self.conn)

    def running(self, worker: str = "A", **options: Any) -> tuple[UUID, int]:
        """A job that this worker has just claimed, as (job_id, token)."""
        job_id = self.enqueue(**options)
        lease = next(lease for lease in self.claim(worker, 1000) if lease.job_id == job_id)
        return lease.job_id, lease.token

    def expire(self, *job_ids: UUID) -> None:
        """The leases run out: now, by moving the rows."""
        self.execute(
            "update {schema}.lease set expires_at = clock_timestamp() - interval '1 second' "
            "where job_id = any (%s)",
            list(job_ids),
        )

    def expire_unlocked(self, *job_ids: UUID) -> None:
        """As `expire`, but leaves alone the rows that an open transaction holds."""
        self.execute(
            "update {schema}.lease set expires_at = clock_timestamp() - interval '1 second' "
            "where job_id in (select job_id from {schema}.lease where job_id = any (%s) "
            "for update skip locked)",
            list(job_ids),
        )

    def take_over(self, job_id: UUID, worker: str = "B") -> tuple[UUID, int]:
        """The lease expires, is reclaimed, and another worker claims the job."""
        self.expire(job_id)
        assert job_id in {reclaimed.job_id for reclaimed in self.verbs.reclaim().run(self.conn)}
        self.verbs.retry([job_id]).run(self.conn)  # without a pause after another crash
        return next((x.job_id, x.token) for x in self.claim(worker, 1000) if x.job_id == job_id)

    def too_large(self, *, by_hand: bool = False) -> UUID:
        """A job whose payload has more than 1 GB of text, as a release without a limit could take;
        or as somebody makes it by hand, so that payload_bytes is wrong."""
        job_id = self.enqueue(payload={"n": 1})
        self.execute(
            "update {schema}.job set payload = (select jsonb_build_object('x', jsonb_agg(n)) "
            "from (select 1e131071::numeric as n from generate_series(1, 8300)) n)"
            f"{'' if by_hand else ', payload_bytes = null'} where id = %s",
            job_id,
        )
        return job_id

    def undeliverable(self) -> UUID:
        """Such a job, which a claim has parked."""
        job_id = self.too_large()
        self.claim(max_jobs=1000)
        assert self.job(job_id)["quarantine_reason"] == "undeliverable"
        return job_id

    # ── what is seen ─────────────────────────────────────────────────────────────────────────────

    def execute(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        cursor = self.conn.execute(statement.replace("{schema}", self.schema), parameters or None)
        return cursor.fetchall() if cursor.description else []

    def value(self, statement: str, *parameters: Any) -> Any:
        return self.execute(statement, *parameters)[0][0]

    def queues(self) -> list[str]:
        return [row[0] for row in self.execute("select queue from {schema}.queue order by 1")]

    def state(self, job_id: UUID) -> str:
        return str(self.job(job_id)["state"])

    def job(self, job_id: UUID) -> dict[str, Any]:
        job = self.reading.job(self.conn, job_id)
        assert job is not None
        return job

    def outcomes(self, job_id: UUID) -> list[tuple[int, str]]:
        attempts = self.reading.attempts(self.conn, job_id)
        return [(attempt["fencing_token"], attempt["outcome"]) for attempt in attempts]

    def refusals(self, job_id: UUID) -> list[tuple[str, int, int | None, str]]:
        return [
            (row["operation"], row["stale_token"], row["current_token"], row["reason"])
            for row in self.reading.refusals(self.conn, job_id)
        ]

    def violations(self) -> list[tuple[str, UUID]]:
        rows = self.reading.violations(self.conn)
        return [(row["invariant"], row["job_id"]) for row in rows]

    # ── order ────────────────────────────────────────────────────────────────────────────────────

    def be_patient(self) -> None:
        """Verbs that end attempts wait for whoever holds a lease; otherwise for a second only."""
        for verb in SETTLING:
            self.execute(f"alter function {{schema}}.{verb} set lock_timeout = '60s'")

    def crowd(self, workers: int) -> None:
        """So many workers have been heard of just now."""
        self.execute(
            "insert into {schema}.worker (worker, queues, details, started_at, seen_at) "
            "select 'w' || n, '{}', '{}', clock_timestamp(), clock_timestamp() "
            "from generate_series(1, %s) n",
            workers,
        )

    def background(self, call: Call[Any] | str, conn: Connection[Any]) -> Background:
        """Run a call on its own thread, because it is going to wait for a lock."""
        self._under_way.append(Background(self, call, conn))
        return self._under_way[-1]


class Background:
    """A call under way in another session."""

    def __init__(self, stage: Stage, call: Call[Any] | str, conn: Connection[Any]) -> None:
        self._stage = stage
        self._call = call
        self._conn = conn
        self._pid = conn.info.backend_pid
        self._answer: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            if isinstance(self._call, str):
                self._conn.execute(self._call)
            else:
                self._answer = self._call.run(self._conn)
        except BaseException as error:
            self._error = error

    def until_blocked(self) -> Self:
        """Return once the server says that the call waits for another session's lock."""
        until(
            lambda: self._stage.value("select pg_blocking_pids(%s) <> '{}'", self._pid),
            "the call waits for a lock",
        )
        return self

    def end(self) -> None:
        """Have the server cancel the call, if it still runs, and wait until it has ended."""

        def ended() -> bool:
            if self._thread.is_alive():
                self._stage.value("select pg_cancel_backend(%s)", self._pid)
            return not self._thread.is_alive()

        until(ended, "the call ended")

    def answer(self) -> Any:
        """What the call answered; raises what it raised."""
        self._thread.join(DEADLINE_SECONDS)
        assert not self._thread.is_alive(), "the call is still waiting"
        if self._error is not None:
            raise self._error
        return self._answer
