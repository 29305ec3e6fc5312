"""Questions to the database: one function per view, nothing that changes anything.

Answers are dictionaries with the view's column names, so that what SQL shows, Python shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from psycopg import Connection, sql
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads

from faultline.call import translated_errors
from faultline.config import DEFAULT_SCHEMA, schema_name
from faultline.listing import PLACES, Look, Wanted, looks

Record = dict[str, Any]
MOST_SHOWN_BYTES = 16 * 1024 * 1024  # of payload and headers as text: the view leaves out more


class Reading:
    """The views of one installation."""

    def __init__(self, schema: str = DEFAULT_SCHEMA) -> None:
        self.schema = schema_name(schema)

    def job(self, conn: Connection[Any], job_id: UUID) -> Record | None:
        """One job, wherever it stands."""
        rows = self._select(conn, "jobs", "where id = %s", job_id)
        return _with_what_is_left_out(rows[0]) if rows else None

    def jobs(
        self,
        conn: Connection[Any],
        *,
        state: str | None = None,
        queue: str | None = None,
        task: str | None = None,
        limit: int = 20,
    ) -> list[Record]:
        """The newest jobs that match, without payloads, results and errors."""
        wanted = Wanted(state, queue, task)
        ids = [i for look in self.looks(conn, wanted, None, limit) for i in look.ids]
        return self.overviews(conn, ids, state)

    def looks(
        self, conn: Connection[Any], wanted: Wanted, before: UUID | None, most: int
    ) -> Iterator[Look]:
        """Which jobs match, the newest first, or those older than this one: look by look, for
        whoever does not want to wait until all are seen."""
        return looks(conn, self.schema, wanted, before, most)

    def overviews(
        self, conn: Connection[Any], ids: Sequence[UUID], state: str | None = None
    ) -> list[Record]:
        """These jobs, the newest first; with a state, those that are still in it."""
        still, given = ("and state = %s", [state]) if state is not None else ("", [])
        # As a question of its own: knowing that there are 500 the planner would read all of ready.
        rest = f"where id = any (array(select unnest(%s::uuid[]))) {still} order by id desc"
        return self._select(conn, "jobs", rest, list(ids), *given, columns=_OVERVIEW)

    def job_ids(
        self,
        conn: Connection[Any],
        *,
        state: str | None = None,
        queue: str | None = None,
        task: str | None = None,
        limit: int | None = None,
    ) -> list[UUID]:
        """The ids of all jobs that match, oldest first: what a bulk command works through."""
        which, given = self._matching(state, queue, task)
        rest = f"{which} order by id limit %s"
        rows = self._select(conn, "jobs", rest, *given, limit, columns="id")
        return [row["id"] for row in rows]

    def latest_attempts(self, conn: Connection[Any], limit: int) -> list[Record]:
        """Of the newest jobs, attempts that have run; the first of each with when it was due."""
        rest = "where outcome in ('succeeded', 'failed') order by job_id desc limit %s"
        found = self._select(
            conn, "attempts", rest, limit, columns="job_id, fencing_token, claimed_at, at"
        )
        first = [row["job_id"] for row in found if row["fencing_token"] == 1]
        columns = "id, created_at, headers"
        jobs = self._select(conn, "jobs", "where id = any (%s)", first, columns=columns)
        dues = {job["id"]: _due_at(job) for job in jobs}
        return [
            {**row, "due_at": dues.get(row["job_id"]) if row["fencing_token"] == 1 else None}
            for row in found
        ]

    def lease(self, conn: Connection[Any], job_id: UUID) -> Record | None:
        """The lease of one job, if it runs."""
        rows = self._select(conn, "leases", "where job_id = %s", job_id)
        return rows[0] if rows else None

    def steps(self, conn: Connection[Any], job_id: UUID) -> list[Record]:
        """Which steps of one job are done, in their order."""
        return self._select(conn, "steps", "where job_id = %s order by at", job_id)

    def ledger(self, conn: Connection[Any], job_id: UUID) -> list[Record]:
        """The successes of one job: at most one."""
        return self._select(conn, "ledger", "where job_id = %s order by fencing_token", job_id)

    def attempts(self, conn: Connection[Any], job_id: UUID) -> list[Record]:
        """How each attempt of one job ended, by token."""
        return self._select(conn, "attempts", "where job_id = %s order by fencing_token", job_id)

    def leases(self, conn: Connection[Any], limit: int | None = None) -> list[Record]:
        """What runs now, the next to expire first."""
        return self._select(conn, "leases", "order by expires_at, job_id limit %s", limit)

    def quarantined(self, conn: Connection[Any], limit: int | None = None) -> list[Record]:
        """What is parked, the latest first."""
        return self._select(conn, "quarantined", "order by at desc, job_id limit %s", limit)

    def undeliverable(self, conn: Connection[Any], limit: int) -> list[Record]:
        """The jobs whose text is too large for any claim, the latest first."""
        rest = "where reason = 'undeliverable' order by at desc, job_id limit %s"
        return self._select(conn, "quarantined", rest, limit)

    def unknown_tasks(self, conn: Connection[Any]) -> list[Record]:
        """The tasks that declined jobs wait for."""
        return self._select(conn, "unknown_tasks", "order by task")

    def workers(self, conn: Connection[Any]) -> list[Record]:
        """Who is there."""
        return self._select(conn, "workers", "order by worker")

    def queues(self, conn: Connection[Any]) -> list[Record]:
        """What waits where."""
        return self._select(conn, "queues", "order by queue")

    def depths(self, conn: Connection[Any]) -> list[Record]:
        """What waits where, counted only so far."""
        return self._select(conn, "depths", "order by queue")

    def backlog(self, conn: Connection[Any], queues: Sequence[str] | None = None) -> Record:
        """How much work there is for workers of these queues, or of all."""
        given = None if queues is None else list(queues)
        return self._select(conn, "backlog(%s::text[])", "", given)[0]

    def version(self, conn: Connection[Any]) -> int:
        """Of the installation."""
        return int(self._select(conn, "schema_version()", "")[0]["version"])

    def waiting(self, conn: Connection[Any]) -> list[Record]:
        """For how long the oldest job of each queue has been due, and of how many priorities."""
        return self._select(conn, "waiting", "order by queue")

    def upkeep(self, conn: Connection[Any]) -> Record:
        """What is left undone."""
        return self._select(conn, "upkeep", "")[0]

    def refusals(self, conn: Connection[Any], job_id: UUID) -> list[Record]:
        """The stale writes of one job that were refused, oldest first."""
        return self._select(conn, "refusals", "where job_id = %s order by id", job_id)

    def latest_refusals(
        self, conn: Connection[Any], *, before: int | None = None, limit: int = 100
    ) -> list[Record]:
        """The stale writes of all jobs, the latest first; or the latest before this one."""
        which, given = ("where id < %s", [before]) if before is not None else ("", [])
        return self._select(conn, "refusals", f"{which} order by id desc limit %s", *given, limit)

    def guards(self, conn: Connection[Any]) -> list[Record]:
        """Which tables are guarded, who is exempt, and whether anything is left open."""
        return self._select(conn, "guards", "order by target::text")

    def violations(self, conn: Connection[Any], most: int | None = None) -> list[Record]:
        """The rows that break an invariant. Empty, always; reads every table. Given a bound, first
        one of each invariant, then another of each: none that is broken is left out."""
        if most is None:
            return self._select(conn, "violations", "order by invariant, job_id")
        nth = "row_number() over (partition by invariant order by job_id) as nth"
        rest = "order by nth, invariant limit %s"
        return self._select(conn, "violations", rest, most, columns=f"*, {nth}")

    def current_epoch(self, conn: Connection[Any]) -> Record:
        """Which life of the server hands out tokens."""
        return self._select(conn, "current_epoch", "")[0]

    def settings(self, conn: Connection[Any]) -> Record:
        """What the installation was told."""
        return self._select(conn, "settings", "")[0]

    def moves(self, conn: Connection[Any]) -> list[Record]:
        """Which verb may move a job from which state to which."""
        return self._select(conn, "moves", "order by from_state nulls first, to_state, verb")

    def now(self, conn: Connection[Any]) -> datetime:
        """By the database's clock, which is the one that counts."""
        row = conn.execute("select clock_timestamp()").fetchone()
        assert row is not None
        moment: datetime = row[0]
        return moment

    def _matching(
        self, state: str | None, queue: str | None, task: str | None
    ) -> tuple[str, list[Any]]:
        """A where clause, and its parameters.

        A state is looked up by the place where its jobs stand: with 400,000 jobs 20 quarantined
        ones take 10 ms, 1,190 through the view alone. Only the many that succeeded are quicker
        without.
        """
        wanted = {"state": state, "queue": queue, "task": task}
        clauses = [f"{column} = %s" for column, value in wanted.items() if value is not None]
        given: list[Any] = [value for value in wanted.values() if value is not None]
        if (source := self._source(state)) is not None:
            given.append(PLACES.get(str(state), state))
            clauses.append(f"id = any (array({source}))")
        return f"where {' and '.join(clauses)}" if clauses else "", given

    def _source(self, state: str | None) -> str | None:
        """Where the ids of exactly the jobs in this state are; None: nowhere but among all."""
        if state in PLACES:
            return f"select p.job_id from {self.schema}.pointers p where p.place = %s"
        if state in ("failed", "cancelled"):
            attempts = f"{self.schema}.attempts"
            later = "n.job_id = p.job_id and n.fencing_token > p.fencing_token"
            return (
                f"select p.job_id from {attempts} p where p.final and p.outcome = %s "
                f"and not exists (select from {attempts} n where {later})"
            )
        return None

    def _select(
        self, conn: Connection[Any], view: str, rest: str, *parameters: Any, columns: str = "*"
    ) -> list[Record]:
        statement = f"select {columns} from {self.schema}.{view} {rest}"
        with translated_errors(self.schema), conn.cursor(row_factory=dict_row) as cursor:
            set_json_loads(_loads, cursor)
            return cursor.execute(sql.SQL(statement), parameters or None).fetchall()


def _due_at(job: Record) -> datetime:
    """When a job was to be claimed for the first time."""
    headers = job["headers"] if isinstance(job["headers"], dict) else {}
    due = headers.get("faultline-due")
    if isinstance(due, int | float):  # before it was ours, it may have been anybody's
        return datetime.fromtimestamp(due, UTC)
    created_at: datetime = job["created_at"]
    return created_at


def _loads(data: str | bytes) -> Any:
    """Stored JSON; what Python cannot read, as a number of 5,000 digits, does not hide its job."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        return {"unreadable": str(error).partition(";")[0]}


def _with_what_is_left_out(job: Record) -> Record:
    """A job of the view; its payload says why it is missing, where the view leaves it out."""
    if job["payload_bytes"] > MOST_SHOWN_BYTES:
        size = f"{job['payload_bytes']:,} bytes"
        job["payload"] = {"unreadable": f"with its headers it has {size} of text: left out"}
    return job


# The view's columns without those that may be a megabyte a job.
_OVERVIEW = (
    "id, state, queue, priority, task, lease_owner, lease_expires_at, fencing_token, next_run_at, "
    "attempts, crashes, snoozes, max_attempts, max_crashes, created_at, finished_at, "
    "quarantine_reason, cancel_reason, producer"
)
