"""A naive lease queue, written fairly: all that a careful engineer writes, except a fence.

One table; claims with FOR UPDATE SKIP LOCKED; leases with an owner and an expiry, judged by the
database's clock; a heartbeat from a thread of its own; expired leases are claimed again; failures
are retried with a delay; the worker is a process that drains on SIGTERM and survives the loss of
its connections. And the best case for the user's own writes: they commit together with the job's
completion.

What completion checks is what most queues in the field check: the job's id and that its state is
`running` (River, Procrastinate, pg-boss up to 12.27), not whose attempt it is; Oban, Graphile
Worker, PGQueuer, pgmq and GoodJob check less. As with River's JobCompleteTx, a completion that
finds nothing to complete is no error, and the writes beside it commit. (One that looked at the
number of rows and rolled back would write each of these effects once, if at times the stale one:
with the user's write in the very same transaction that is a fence, and few have it.) A queue that
compares whose attempt it is under the row's lock and rolls back (Chancy, DBOS, pg-boss from 12.38
on) has a fence by another name: it is not what this one stands for.

    python -m faultline.demo.naive faultline.demo.comparison.orders:naively --lease-seconds 1
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from faultline.config import Settings

Connection = psycopg.Connection[Any]
POLL_SECONDS = 0.05
RETRY_SECONDS = 0.2
MAX_ATTEMPTS = 10

SETUP = """
create schema {home};
create table {home}.job (
    id               bigint generated always as identity primary key,
    payload          jsonb not null,
    state            text not null default 'queued'
                     check (state in ('queued', 'running', 'done', 'failed')),
    attempts         int not null default 0,
    run_at           timestamptz not null default clock_timestamp(),
    owner            text,
    lease_expires_at timestamptz,
    error            text
);
create index on {home}.job (run_at) where state = 'queued';
create index on {home}.job (lease_expires_at) where state = 'running';
"""
CLEAR_UP = "drop schema if exists {home} cascade"

# Queued jobs that are due, and those whose worker has let its lease expire.
CLAIM = """
update {home}.job
   set state = 'running', attempts = attempts + 1, owner = %(owner)s,
       lease_expires_at = clock_timestamp() + make_interval(secs => %(lease)s)
 where id = (select id from {home}.job
              where attempts < %(most)s
                and (state = 'queued' and run_at <= clock_timestamp()
                     or state = 'running' and lease_expires_at < clock_timestamp())
              order by id limit 1 for update skip locked)
returning id, payload, attempts
"""
RENEW = """
update {home}.job
   set lease_expires_at = clock_timestamp() + make_interval(secs => %(lease)s)
 where owner = %(owner)s and state = 'running'
"""
GIVE_UP = """
update {home}.job set state = 'failed', error = coalesce(error, 'worker lost')
 where state = 'running' and lease_expires_at < clock_timestamp() and attempts >= %(most)s
"""
COMPLETE = """
update {home}.job set state = 'done', owner = null, lease_expires_at = null
 where id = %(id)s and state = 'running'
"""
RETRY = """
update {home}.job
   set state = case when attempts >= %(most)s then 'failed' else 'queued' end,
       run_at = clock_timestamp() + make_interval(secs => %(delay)s),
       owner = null, lease_expires_at = null, error = %(error)s
 where id = %(id)s and state = 'running'
"""


def at_home(statement: str, schema: str) -> str:
    """The statement, for the queue beside the installation of Faultline in this schema."""
    return statement.replace("{home}", f"{schema}_naive")


def enqueue(conn: Connection, schema: str, payloads: Sequence[dict[str, Any]]) -> list[int]:
    """Accept jobs, all or none; answers with their ids."""
    accept = at_home("insert into {home}.job (payload) values (%s) returning id", schema)
    ids = []
    with conn.transaction(), conn.cursor() as cursor:
        for payload in payloads:
            cursor.execute(accept, (Jsonb(payload),))
            ids += [row[0] for row in cursor.fetchall()]
    return ids


class Transaction:
    """What the handler writes, and the job's completion: in one commit, or neither."""

    def __init__(self, conn: Connection, schema: str, job_id: int) -> None:
        self._conn = conn
        self._schema = schema
        self._job_id = job_id

    def execute(self, statement: Any, parameters: Any = None) -> Any:
        """The handler's own writes."""
        return self._conn.execute(statement, parameters)

    def complete(self) -> None:
        """The job is done."""
        self._conn.execute(at_home(COMPLETE, self._schema), {"id": self._job_id})


@dataclass(frozen=True)
class Job:
    """A claimed job, as its handler sees it."""

    id: int
    payload: dict[str, Any]
    attempt: int
    conn: Connection
    schema: str

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Commits on leaving the block, rolls back on an error."""
        with self.conn.transaction():
            yield Transaction(self.conn, self.schema, self.id)


Handler = Callable[[Job], None]


class Worker:
    """One process: some threads that claim and run, one that keeps the leases."""

    def __init__(
        self, url: str, schema: str, handler: Handler, *, concurrency: int, lease_seconds: float
    ) -> None:
        self._url = url
        self._schema = schema
        self._handler = handler
        self._lease_seconds = lease_seconds
        self._owner = f"{socket.gethostname()}-{os.getpid()}"
        self._stopping = threading.Event()
        self._idle = threading.Event()  # nothing runs any more
        self._threads = [threading.Thread(target=self._serve) for _ in range(concurrency)]
        self._keeper = threading.Thread(target=self._keep)

    def run(self) -> None:
        """Until SIGTERM; then what runs is finished."""
        signal.signal(signal.SIGTERM, lambda *_: self._stopping.set())
        for thread in (*self._threads, self._keeper):
            thread.start()
        self._stopping.wait()
        for thread in self._threads:
            thread.join()
        self._idle.set()
        self._keeper.join()

    def _connect(self) -> Connection:
        return psycopg.connect(self._url, autocommit=True)

    def _serve(self) -> None:
        while not self._stopping.is_set():
            try:
                with self._connect() as conn:
                    self._work_on(conn)
            except psycopg.OperationalError:  # the connection is lost: another one
                self._stopping.wait(POLL_SECONDS)

    def _work_on(self, conn: Connection) -> None:
        claim = at_home(CLAIM, self._schema)
        facts = {"owner": self._owner, "lease": self._lease_seconds, "most": MAX_ATTEMPTS}
        while not self._stopping.is_set():
            claimed = conn.execute(claim, facts).fetchone()
            if claimed is None:
                self._stopping.wait(POLL_SECONDS)
                continue
            job_id, payload, attempt = claimed
            job = Job(job_id, payload, attempt, conn, self._schema)
            try:
                self._handler(job)
            except Exception as error:
                self._retry(job, error)

    def _retry(self, job: Job, error: Exception) -> None:
        """On a connection of its own, since the job's may be why; if none, the lease expires."""
        facts = {"id": job.id, "delay": RETRY_SECONDS, "error": repr(error), "most": MAX_ATTEMPTS}
        with suppress(psycopg.OperationalError), self._connect() as conn:
            conn.execute(at_home(RETRY, self._schema), facts)

    def _keep(self) -> None:
        facts = {"owner": self._owner, "lease": self._lease_seconds, "most": MAX_ATTEMPTS}
        while not self._idle.is_set():
            with suppress(psycopg.OperationalError), self._connect() as conn:
                while not self._idle.wait(self._lease_seconds / 3):
                    conn.execute(at_home(RENEW, self._schema), facts)
                    conn.execute(at_home(GIVE_UP, self._schema), facts)


def main() -> int:
    """`python -m faultline.demo.naive MODULE:HANDLER`, on FAULTLINE_DATABASE_URL."""
    parser = argparse.ArgumentParser(
        prog="python -m faultline.demo.naive", description=__doc__.splitlines()[0]
    )
    parser.add_argument("handler", help="where the handler is: module:function")
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--lease-seconds", type=float, default=30.0)
    arguments = parser.parse_args()
    settings = Settings.from_environment()
    if settings.database_url is None:
        parser.error("set FAULTLINE_DATABASE_URL")
    module, _, name = arguments.handler.partition(":")
    handler: Handler = getattr(importlib.import_module(module), name)
    Worker(
        settings.database_url,
        settings.schema,
        handler,
        concurrency=arguments.concurrency,
        lease_seconds=arguments.lease_seconds,
    ).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
