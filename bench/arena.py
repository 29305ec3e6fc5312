"""Where a scenario is played: a server, and for each scenario a database of its own.

The server is a temporary one with PostgreSQL's own defaults, fsync and synchronous_commit among
them; only max_connections is raised. With FAULTLINE_DATABASE_URL it is that server instead, whose
user must be a superuser; each database is dropped when its scenario is over.

Jobs are put in by SQL (`enqueue_many`), so that a drain measures the drain. Times are read from
what the database recorded: `claimed_at` of the first attempt to `at` of the last.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from psycopg import Connection, sql

from bench.workers import Worker
from faultline.config import Settings
from faultline.connect import connect
from faultline.launcher import Server
from faultline.migrate import migrate

OPTIONS = {"max_connections": "300"}
BATCH = 500  # of the limit
ENQUEUE_BATCH = 10_000
POLL_SECONDS = 0.2  # how often to ask whether all is done; what is measured does not depend on it
PATIENCE_SECONDS = 300.0

ENQUEUE = """
select {schema}.enqueue_many(%(task)s,
    array(select {schema}.new_id() from generate_series(1, %(jobs)s)),
    (select jsonb_agg({payload}) from generate_series(%(first)s::integer, %(last)s) n),
    delay_seconds => %(delay)s)"""

# What the server itself can do: complete a batch and claim the next in one call and one commit,
# with no client between.
LIMIT = """do $$
declare
    s record; v_ids uuid[] := '{{}}'; v_tokens bigint[] := '{{}}'; v_cursors bigint[];
    v_lanes integer[] := array(select lane from {schema}.lane);
begin
    loop
        select * into s
          from {schema}.swap(v_ids, v_tokens, null, '{worker}', v_lanes, {batch}, v_cursors);
        commit;
        exit when s.claimed_ids is null;
        v_ids := s.claimed_ids; v_tokens := s.claimed_tokens;
        v_cursors := array[(select min(q) from unnest(s.seqs) q)];
    end loop;
end $$"""

IS_ASLEEP = "select exists (select from {schema}.sleeper)"
NOTHING_LEFT = """
select not exists (select from {schema}.ready) and not exists (select from {schema}.lease)"""

SPAN = """
select count(*), extract(epoch from max(at) - min(claimed_at))::float8
  from {schema}.attempt where claimed_at >= %s and outcome = 'succeeded'"""


@dataclass(frozen=True)
class Ground:
    """A server to make databases on, and a folder for what workers write."""

    url: str
    schema: str
    folder: Path
    server: Server | None  # None: somebody else's, whose log cannot be read

    @contextmanager
    def arena(self) -> Iterator[Arena]:
        """A migrated database; it and all that was started on it are gone afterwards."""
        name = f"faultline_bench_{secrets.token_hex(4)}"
        with connect(self.url, schema=None) as conn:
            conn.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        url = _with(self.url, path=f"/{name}")
        arena = Arena(self, url, name)
        try:
            with connect(url, schema=None) as conn:
                migrate(conn, self.schema)
            yield arena
        finally:
            arena.clear()
            with connect(self.url, schema=None) as conn:
                conn.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))
                for login in arena.logins:
                    conn.execute(sql.SQL("drop role if exists {}").format(sql.Identifier(login)))


@contextmanager
def ground(settings: Settings) -> Iterator[Ground]:
    """A server of its own, or the one that the settings name."""
    folder = Path(tempfile.mkdtemp(prefix="faultline-bench-"))
    try:
        if settings.database_url is not None:
            yield Ground(settings.database_url, settings.schema, folder, None)
            return
        with Server.temporary(binaries=settings.binaries, options=OPTIONS) as server:
            yield Ground(server.url, settings.schema, folder, server)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Arena:
    """One database with an installation."""

    def __init__(self, ground: Ground, url: str, name: str) -> None:
        self.ground = ground
        self.url = url
        self.name = name
        self.schema = ground.schema
        self.logins: list[str] = []
        self._workers: list[Worker] = []

    @cached_property
    def conn(self) -> Connection[Any]:
        """The superuser's."""
        return connect(self.url, schema=None)

    @cached_property
    def worker_url(self) -> str:
        """Of a user that may do what a worker and a producer do, and nothing else."""
        return self.login("worker", "producer")

    @cached_property
    def producer_url(self) -> str:
        """Of a user that may enqueue, and has no privilege on any table."""
        return self.login("producer")

    def login(self, *roles: str) -> str:
        """The URL of a new user in these roles."""
        name = f"bench_{'_'.join(roles)}_{secrets.token_hex(4)}"
        password = secrets.token_hex(8)
        groups = sql.SQL(", ").join(sql.Identifier(f"{self.schema}_{role}") for role in roles)
        self.conn.execute(
            sql.SQL("create role {} login password {} in role {}").format(
                sql.Identifier(name), password, groups
            )
        )
        self.logins.append(name)
        address = urlsplit(self.url).netloc.rpartition("@")[2]
        return _with(self.url, netloc=f"{name}:{password}@{address}")

    # ── jobs ─────────────────────────────────────────────────────────────────────────────────────

    def enqueue(
        self,
        jobs: int,
        task: str = "noop",
        *,
        payload: str = "'{}'::jsonb",
        delay: float = 0.0,
        conn: Connection[Any] | None = None,
    ) -> None:
        """So many jobs; `payload` is SQL in which n is the number of the job."""
        statement = self._sql(ENQUEUE, payload=payload)
        for first in range(1, jobs + 1, ENQUEUE_BATCH):
            count = min(ENQUEUE_BATCH, jobs + 1 - first)
            numbers = {"jobs": count, "first": first, "last": first + count - 1}
            values = {"task": task, "delay": delay, **numbers}
            (conn or self.conn).execute(statement, values)

    def settle(self) -> None:
        """The same start for every block: statistics fresh, dead rows gone, nothing to write."""
        self.conn.execute("vacuum analyze")
        self.conn.execute("checkpoint")

    def empty(self) -> None:
        """Forget all jobs."""
        tables = ("job", "attempt", "ready", "lease", "scheduled")
        names = ", ".join(f"{self.schema}.{table}" for table in tables)
        self.conn.execute(sql.SQL(f"truncate {names}"))

    def now(self) -> Any:
        """The database's clock."""
        return self.value("select clock_timestamp()")

    def value(self, statement: str, *parameters: Any) -> Any:
        """One value; `{schema}` in the statement is the installation's."""
        row = self.conn.execute(self._sql(statement), parameters or None).fetchone()
        assert row is not None
        return row[0]

    def rows(self, statement: str, *parameters: Any) -> list[Any]:
        """All rows."""
        return self.conn.execute(self._sql(statement), parameters or None).fetchall()

    def run(self, statement: str, **parts: Any) -> None:
        """Run it, with these parts written into it."""
        self.conn.execute(self._sql(statement, **parts))

    def _sql(self, text: str, **parts: Any) -> sql.SQL:
        return sql.SQL(text.format(schema=self.schema, **parts))

    # ── drains ───────────────────────────────────────────────────────────────────────────────────

    def limit(self, connections: int = 2) -> float:
        """Jobs a second of the pure-SQL limit, over what is queued now."""
        since = self.now()
        statements = [
            self._sql(LIMIT, worker=f"limit-{n}", batch=BATCH) for n in range(connections)
        ]
        with _each_on_its_own(self.url, statements) as threads:
            for thread in threads:
                thread.start()
        return self.rate(since)

    def drain(self, *options: str, jobs: int | None = None) -> float:
        """Jobs a second of a `faultline worker` with these options, over what is queued now."""
        since = self.now()
        worker = self.worker(*options)
        self.wait_until_done(worker)
        worker.end()
        return self.rate(since, jobs)

    def wait_until_done(self, worker: Worker) -> None:
        """Until nothing is queued or running. Asked only when a worker sleeps, since it found no
        more: the question walks over what was drained, and nobody asks it of the limit."""
        self.wait(lambda: self.value(IS_ASLEEP) and self.value(NOTHING_LEFT), worker)

    def wait_until_asleep(self, worker: Worker) -> None:
        """Until the worker has found nothing to do, and waits to be told."""
        self.wait(lambda: bool(self.value(IS_ASLEEP)), worker)

    def wait(self, condition: Callable[[], bool], *workers: Worker) -> None:
        """Until it holds; a worker that ends meanwhile is an error, and so is no end."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            for worker in workers:
                worker.check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"not done within {PATIENCE_SECONDS:g} s")
            time.sleep(POLL_SECONDS)

    def rate(self, since: Any, jobs: int | None = None) -> float:
        """Successes a second, from the first claim since then to the last ending."""
        row = self.conn.execute(self._sql(SPAN), (since,)).fetchone()
        assert row is not None
        count, seconds = row
        if jobs is not None and count != jobs:
            raise RuntimeError(f"{count} jobs succeeded, {jobs} were to")
        return float(count / seconds)

    # ── workers ──────────────────────────────────────────────────────────────────────────────────

    def worker(self, *options: str, app: str = "bench.app:app", **environment: str) -> Worker:
        """A `faultline worker` with its defaults, as a real process; its output goes to a file."""
        log = self.ground.folder / f"worker-{secrets.token_hex(4)}.log"
        variables = {
            "FAULTLINE_DATABASE_URL": self.worker_url,
            "FAULTLINE_SCHEMA": self.schema,
            **environment,
        }
        worker = Worker(app, options, log, variables)
        self._workers.append(worker)
        return worker

    def clear(self) -> None:
        """End what was started here."""
        for worker in self._workers:
            worker.end()
        if "conn" in self.__dict__:
            self.conn.close()


@contextmanager
def _each_on_its_own(url: str, statements: list[sql.SQL]) -> Iterator[list[threading.Thread]]:
    """A thread with a connection for each statement; what one raised is raised at the end."""
    failed: list[BaseException] = []

    def run(conn: Connection[Any], statement: sql.SQL) -> None:
        try:
            conn.execute(statement)
        except BaseException as error:
            failed.append(error)

    connections = [connect(url, schema=None) for _ in statements]
    try:
        threads = [
            threading.Thread(target=run, args=pair)
            for pair in zip(connections, statements, strict=True)
        ]
        yield threads
        for thread in threads:
            thread.join()
    finally:
        for conn in connections:
            conn.close()
    if failed:
        raise failed[0]


def _with(url: str, **parts: str) -> str:
    return urlunsplit(urlsplit(url)._replace(**parts))
