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
WATCH_SECONDS = 0.5  # how often somebody who waits looks whether it is still worth it

SCHEMA = "faultline_race"
SETUP = """
create schema if not exists faultline_race;
create table if not exists faultline_race.barrier (run text, name text, primary key (run, name));
create table if not exists faultline_race.line (
    id bigint generated always as identity primary key, run text, at timestamptz, fields json);
create index if not exists line_of_run on faultline_race.line (run);
create table if not exists faultline_race.charge (job_id uuid, token bigint, worker text);
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
            "insert into faultline_race.line (run, at, fields) values (%s, clock_timestamp(), %s)",
            (self._run, json.dumps(fields)),
        )
        self._conn.execute("select pg_notify(%s, '')", (self._run,))

    def open(self, barrier: str) -> None:
        """Let those pass who wait for this barrier."""
        self._conn.execute(
            "insert into faultline_race.barrier values (%s, %s)", (self._run, barrier)
        )
        self._conn.execute("select pg_notify(%s, '')", (self._run,))

    def wait(
        self, barrier: str, *, seconds: float = 60.0, watch: Callable[[], None] | None = None
    ) -> None:
        """Wait until the barrier is open; `watch` raises if that is in vain."""
        for _ in range(int(seconds / WATCH_SECONDS)):
            opened = self._is_open(barrier)
            self._show()
            if opened:
                return
            if watch is not None:
                watch()
            list(self._conn.notifies(timeout=WATCH_SECONDS, stop_after=1))
        raise TimeoutError(f"nobody opened the barrier {barrier!r} in {seconds} s")

    def _is_open(self, barrier: str) -> bool:
        found = self._conn.execute(
            "select from faultline_race.barrier where run = %s and name = %s", (self._run, barrier)
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
            "select id, at, fields from faultline_race.line where run = %s and id > %s order by id",
            (self._run, after),
        ).fetchall()
        return [(line_id, {**fields, "at": at}) for line_id, at, fields in rows]
