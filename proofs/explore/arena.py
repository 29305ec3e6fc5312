"""The arena: a database of the explorer's own, with Faultline in it, whole or broken on purpose.

    whole   as `migrate` installs it
    split   some functions stop between their statements, and wait to be told to go on (split.py)
    broken  some functions are replaced: a guard is missing, or a variant does what is known unsafe

It makes the sessions, a connection that watches them, and a fresh start for every schedule.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import psycopg
from psycopg import Connection
from psycopg.errors import DeadlockDetected

from faultline.launcher import Server
from faultline.migrate import migrate
from proofs.explore.session import Session, Watch
from proofs.explore.split import split

OPTIONS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "shared_buffers": "128MB",
    "max_connections": "100",
    "deadlock_timeout": "50ms",
    "wal_level": "minimal",
    "max_wal_senders": "0",
}
VACUUM_EVERY = 400  # schedules: dead rows are walked over until then
TABLES = (
    "explore.effect, explore.guarded, faultline.ready, faultline.scheduled, faultline.lease, "
    "faultline.quarantine, faultline.attempt, faultline.refusal, faultline.cancel_request, "
    "faultline.step, faultline.progress, faultline.idempotency, faultline.job, faultline.fence_tx"
)


def server() -> Server:
    """A server for one run. Durability is not under test here."""
    return Server.temporary(options=OPTIONS)


def install(url: str) -> str:
    """A database with Faultline and arena.sql in it, to be copied; its name."""
    name = f"explore_{secrets.token_hex(8)}"
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(f"create database {name}")
    with psycopg.connect(database_url(url, name), autocommit=True) as conn:
        migrate(conn, "faultline")
        conn.execute((Path(__file__).parent / "arena.sql").read_text("utf-8"))
    return name


def database_url(url: str, name: str) -> str:
    """The same server, another database."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


class Arena:
    """One database, copied from what `install` made, and the connections that play on it."""

    def __init__(
        self,
        url: str,
        template: str,
        *,
        splits: Iterable[str] = (),
        broken: Callable[[Connection[Any]], str] | None = None,
    ) -> None:
        self._server = url
        self._name = f"explore_{secrets.token_hex(8)}"
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute(f"create database {self._name} template {template} strategy file_copy")
        self.url = database_url(url, self._name)
        self.conn: Connection[Any] = psycopg.connect(self.url, autocommit=True)
        if broken is not None:
            self._replace(broken(self.conn))
        for name in splits:
            self._replace(split(self.conn, name))
        self.conn.execute("set session authorization explorer")
        self.conn.execute("select explore.fresh(1, 'lease')")  # the lane, the epoch, the partitions
        self.watch = Watch(self.conn)
        self._sessions: dict[str, Session] = {}
        self._schedules = 0

    def _replace(self, definition: str) -> None:
        self.conn.execute(f"set search_path = faultline; {definition}; reset search_path")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for session in self._sessions.values():
            session.close()
        self.conn.close()
        with psycopg.connect(self._server, autocommit=True) as conn:
            conn.execute(f"drop database {self._name} with (force)")

    def session(self, name: str) -> Session:
        """The session of this actor; the same one in every schedule, while it lives."""
        session = self._sessions.get(name)
        if session is None:
            session = self._sessions[name] = Session(self.url, name)
            self._hold_gate(session)
        elif not session.alive:
            self.conn.execute("select pg_terminate_backend(%s, 5000)", (session.pid,))
            session.connect()
            self._hold_gate(session)
        return session

    def _hold_gate(self, session: Session) -> None:
        self.conn.execute("select pg_advisory_lock(%s, 0)", (session.pid,))

    def fresh(self, jobs: int, place: str) -> list[UUID]:
        """Nothing but so many jobs, in this place."""
        self._schedules += 1
        if self._schedules % VACUUM_EVERY == 0:
            self.conn.execute(f"vacuum {TABLES}")
        fresh = ("select explore.fresh(%s, %s)", (jobs, place))
        try:
            row = self.conn.execute(*fresh).fetchone()
        except DeadlockDetected:  # with a session of the last schedule that was still ending
            row = self.conn.execute(*fresh).fetchone()
        assert row is not None
        return list(row[0])

    def verdict(self, refused: list[tuple[str, int]]) -> list[str]:
        """What the database holds against the schedule, in which these attempts were refused."""
        row = self.conn.execute(
            "select explore.verdict(%s::uuid[], %s::bigint[])",
            ([job for job, _ in refused], [token for _, token in refused]),
        ).fetchone()
        assert row is not None
        return list(row[0])
