"""Which jobs match, the newest first: found by looks, each of which reads only so many rows.

Nothing is indexed by task or queue, since every job would pay for it. A look reads the next
older rows of the place where the jobs of the state stand and says which of them match and how far
it came. So its time depends neither on how many jobs there are nor on how few of them match, and
whoever asks decides how often to look on. The first looks are small: mostly they are enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg import Connection, sql

from faultline.call import translated_errors

FIRST_LOOK = 1_000
LARGEST_LOOK = 4_000  # 3 to 20 ms

PLACES = {
    "queued": "ready",
    "scheduled": "scheduled",
    "running": "lease",
    "quarantined": "quarantine",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What jobs are looked for; None: any."""

    state: str | None = None
    queue: str | None = None
    task: str | None = None

    @property
    def named(self) -> dict[str, str]:
        """By which names."""
        names = {"queue": self.queue, "task": self.task}
        return {name: value for name, value in names.items() if value is not None}

    @property
    def by_place_alone(self) -> bool:
        """Whether each row of the place counts."""
        return not self.named and self.state not in ("failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Look:
    """What one look has found, and from where the next one goes on; None: there is nothing else."""

    ids: list[UUID]
    older_than: UUID | None


def looks(
    conn: Connection[Any], schema: str, wanted: Wanted, before: UUID | None, most: int
) -> Iterator[Look]:
    """One after the other, until all is seen or so many are found."""
    size = FIRST_LOOK
    while most > 0:
        look = _look(conn, schema, wanted, before, most, size)
        yield look
        if look.older_than is None:
            return
        before = look.older_than
        most -= len(look.ids)
        size = min(4 * size, LARGEST_LOOK)


def _look(
    conn: Connection[Any],
    schema: str,
    wanted: Wanted,
    before: UUID | None,
    most: int,
    size: int,
) -> Look:
    source, given = _source(schema, wanted, before)
    matching, more = _matching(schema, wanted)
    if wanted.by_place_alone:
        size = min(size, most)  # no more than are wanted
    statement = f"""
        with looked as materialized ({source} order by id desc limit %s),
             found as ({matching} order by id desc limit %s)
        select array(select id from found order by id desc),
               (select id from looked order by id limit 1),
               (select count(*) from looked)"""
    with translated_errors(schema):
        row = conn.execute(sql.SQL(statement), (*given, size, *more, most)).fetchone()
    assert row is not None
    found, last, count = row
    if len(found) == most:
        return Look(found, found[-1])
    return Look(found, last if count == size else None)


def _source(schema: str, wanted: Wanted, before: UUID | None) -> tuple[str, list[Any]]:
    """The rows to read: an id, and whether it counts."""
    older = "" if before is None else "and {} < %s"
    given: list[Any] = []
    if wanted.state is None:
        counts = _equal(wanted) or "true"
        given += wanted.named.values()
        rows = (
            f"select id, {counts} as counts from {schema}.enqueued where true {older.format('id')}"
        )
    elif wanted.state in PLACES:
        given.append(PLACES[wanted.state])
        rows = (
            f"select job_id as id, true as counts from {schema}.pointers where place = %s "
            f"{older.format('job_id')}"
        )
    elif wanted.state == "succeeded":  # has an index of its own: the constraint that it is one
        rows = (
            f"select job_id as id, true as counts from {schema}.ledger where true "
            f"{older.format('job_id')}"
        )
    else:
        attempts = f"{schema}.attempts"
        # Not by NOT EXISTS: the planner would rather read all attempts once than look up each.
        last = (
            f"select n.fencing_token from {attempts} n where n.job_id = a.job_id "
            "order by n.fencing_token desc limit 1"
        )
        given.append(wanted.state)
        rows = (
            f"select a.job_id as id, a.outcome = %s and a.fencing_token = ({last}) as counts "
            f"from {attempts} a where a.final and a.outcome <> 'succeeded' "
            f"{older.format('a.job_id')}"
        )
    return rows, given if before is None else [*given, before]


def _matching(schema: str, wanted: Wanted) -> tuple[str, list[Any]]:
    """Which of the rows that were looked at are wanted.

    By their ids as an array: joined, the planner would rather read all jobs.
    """
    if wanted.state is None or not wanted.named:
        return "select distinct id from looked where counts", []
    return (
        f"select id from {schema}.enqueued "
        f"where id = any (array(select id from looked where counts)) and {_equal(wanted)}",
        list(wanted.named.values()),
    )


def _equal(wanted: Wanted) -> str:
    return " and ".join(f"{name} = %s" for name in wanted.named)
