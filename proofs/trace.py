"""What the processes of a proof share: barriers and a trace, both in the database they race in.

The trace is ordered by the database, so that no process's clock or buffer decides what came first.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import Connection, sql

from faultline.events import Event

Line = dict[str, Any]

SETUP = """
create schema if not exists race;
create table if not exists race.barrier (run text, name text, primary key (run, name));
create table if not exists race.line (id bigint generated always as identity primary key,
                                      run text, at timestamptz, fields json);
create index if not exists line_of_run on race.line (run);
create table if not exists race.charge (job_id uuid, token bigint, worker text);
"""


class Trace:
    """One run's barriers and events, on a connection of its own."""

    def __init__(self, url: str, run: str, listener: Callable[[Line], None] | None = None) -> None:
        self._conn: Connection[Any] = psycopg.connect(url, autocommit=True)
        self._run = run
        self._listener = listener
        self._shown = 0
        self._conn.execute(sql.SQL("listen {}").format(sql.Identifier(run)))

    def close(self) -> None:
        """End the session."""
        self._conn.close()

    def emit(self, event: Event) -> None:
        """Write the event down, in its own commit."""
        self.note(event.fields())

    def note(self, fields: Line) -> None:
        """Write a line that is not an event of the product: what the harness did."""
        self._conn.execute(
            "insert into race.line (run, at, fields) values (%s, clock_timestamp(), %s)",
            (self._run, json.dumps(fields)),
        )
        self._conn.execute("select pg_notify(%s, '')", (self._run,))

    def open(self, barrier: str) -> None:
        """Let those pass who wait for this barrier."""
        self._conn.execute("insert into race.barrier values (%s, %s)", (self._run, barrier))
        self._conn.execute("select pg_notify(%s, '')", (self._run,))

    def wait(self, barrier: str, *, seconds: float = 60.0) -> None:
        """Wait until the barrier is open; woken by notification, never by a timer."""
        while not self._is_open(barrier):
            self._show()
            if not list(self._conn.notifies(timeout=seconds, stop_after=1)):
                raise TimeoutError(f"nobody opened the barrier {barrier!r} in {seconds} s")
        self._show()

    def _is_open(self, barrier: str) -> bool:
        found = self._conn.execute(
            "select from race.barrier where run = %s and name = %s", (self._run, barrier)
        )
        return found.fetchone() is not None

    def _show(self) -> None:
        if self._listener is None:
            return
        for line_id, line in self._rows(self._shown):
            self._shown = line_id
            self._listener(line)

    def lines(self) -> list[Line]:
        """Everything written so far, in the database's order."""
        return [line for _, line in self._rows(0)]

    def _rows(self, after: int) -> list[tuple[int, Line]]:
        rows = self._conn.execute(
            "select id, at, fields from race.line where run = %s and id > %s order by id",
            (self._run, after),
        ).fetchall()
        return [(line_id, {**fields, "at": at}) for line_id, at, fields in rows]
