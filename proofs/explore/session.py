"""One session: a connection whose statements are sent, and whose answers come when they come.

One thread drives all sessions of a schedule. After a statement was sent the session is in one of
four conditions, and only the server says in which:

    idle      the answer is here
    stopped   between two statements of a function that was split (see split.py); `resume` goes on
    waiting   for a lock that another session holds (pg_blocking_pids)
    running   none of these yet: look again

Nothing here decides whose turn it is.
"""

from __future__ import annotations

import select
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import Connection, pq

LOOK_SECONDS = 0.0015  # a verb takes 0.2 to 0.6 ms: who takes longer may be waiting
PATIENCE_SECONDS = 60.0
STOP = "explore: stopped"
BOUNDED = "explore: bounded"


class Stuck(Exception):
    """The server neither answered nor said that a session waits for another."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a statement answered: its rows as text, or the error's SQLSTATE and message."""

    rows: list[list[str | None]]
    sqlstate: str | None = None
    message: str = ""


class Session:
    """A connection that plays one actor."""

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self._url = url
        self._conn: Connection[Any]
        self._prepared: dict[str, bytes]
        self.busy = False
        self.stopped = False
        self.bounded = False  # by the statement that was sent last
        self._gate = 0
        self._answer = Answer([])
        self.connect()

    def connect(self) -> None:
        """Anew: also after the server has cut the session off."""
        self._conn = psycopg.connect(self._url, autocommit=True, application_name=self.name)
        self._conn.execute("set explore.stops = 'on'")
        self._conn.add_notice_handler(self._notice)
        self._prepared = {}
        self.pid = self._conn.info.backend_pid
        self.busy = self.stopped = False
        self._gate = 0

    def close(self) -> None:
        self._conn.close()

    @property
    def alive(self) -> bool:
        return self._conn.pgconn.status == pq.ConnStatus.OK

    @property
    def in_transaction(self) -> bool:
        return self._conn.pgconn.transaction_status not in (
            pq.TransactionStatus.IDLE,
            pq.TransactionStatus.UNKNOWN,
        )

    def send(self, statement: str, parameters: list[str | None], *, begin: str) -> None:
        """Send a statement, after this BEGIN if the transaction begins with it."""
        conn = self._conn.pgconn
        if (name := self._prepared.get(statement)) is None:
            name = self._prepared[statement] = f"s{len(self._prepared)}".encode()
            done = conn.prepare(name, statement.encode())
            if done.status != pq.ExecStatus.COMMAND_OK:
                raise psycopg.ProgrammingError(f"{statement}: {done.error_message.decode()}")
        if begin:
            conn.exec_(begin.encode())
        values = [None if value is None else value.encode() for value in parameters]
        conn.send_query_prepared(name, values)
        conn.flush()
        self.busy, self.bounded = True, False

    def rollback(self) -> None:
        """After an error, or for a client that heeds a refusal."""
        if self.alive:
            self._conn.pgconn.exec_(b"rollback")

    def look(self, seconds: float = 0.0) -> bool:
        """Whether the answer is here, or a stop was reached; waits for it no longer than this."""
        conn = self._conn.pgconn
        ready, _, _ = select.select([conn.socket], [], [], seconds)
        if ready:
            with suppress(psycopg.OperationalError):  # cut off: its last words are the answer
                conn.consume_input()
            if not conn.is_busy():
                self._collect(conn)
        return self.stopped or not self.busy

    def take(self) -> Answer:
        """The answer, once `look` has found the session idle."""
        return self._answer

    def resume(self, controller: Connection[Any]) -> None:
        """Let the session go on from where it stopped, to its next stop at most."""
        self.stopped = False
        gate, self._gate = self._gate, 1 - self._gate
        controller.execute(
            "select pg_advisory_lock(%s, %s), pg_advisory_unlock(%s, %s)",
            (self.pid, self._gate, self.pid, gate),
        )

    def _notice(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.message_primary == STOP:
            self.stopped = True
        elif notice.message_primary == BOUNDED:
            self.bounded = True

    def _collect(self, conn: Any) -> None:
        self._answer = Answer([])
        while (result := conn.get_result()) is not None:
            self._answer = answer_of(result)
        self.busy = self.stopped = False


def answer_of(result: Any) -> Answer:
    if result.status == pq.ExecStatus.TUPLES_OK:
        return Answer(
            [
                [_text(result.get_value(row, column)) for column in range(result.nfields)]
                for row in range(result.ntuples)
            ]
        )
    if result.status == pq.ExecStatus.COMMAND_OK:
        return Answer([])
    sqlstate = result.error_field(pq.DiagnosticField.SQLSTATE)
    message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message
    return Answer([], sqlstate.decode() if sqlstate else "08006", message.decode().strip())


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


class Watch:
    """Sees, from a connection of its own, which of the sessions wait for others."""

    def __init__(self, conn: Connection[Any]) -> None:
        self._conn = conn

    def waiting(self, sessions: list[Session]) -> set[int]:
        """The pids that wait for a lock of another of these sessions."""
        pids = [session.pid for session in sessions]
        rows = self._conn.execute(
            "select pid from unnest(%s::integer[]) pid "
            "where pg_blocking_pids(pid) && %s::integer[]",
            (pids, pids),
        )
        return {row[0] for row in rows}

    def settle(self, session: Session, sessions: list[Session]) -> bool:
        """Wait until it is idle or stopped (True), or waits for another session (False)."""
        if session.look(LOOK_SECONDS):
            return True
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            blocked = session.pid in self.waiting(sessions)
            if session.look(0 if blocked else LOOK_SECONDS):
                return True
            if blocked:
                return False
            if time.monotonic() > deadline:
                raise Stuck(f"{session.name} ({session.pid}) neither answers nor waits")
