"""What the risk is scored from: the views as reader, and the server's statistics as the login."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from psycopg import Connection

from faultline import conditions
from faultline.access import Access
from faultline.reading import Reading, Record
from faultline.risk import Lease, Limits, Observations, Worker

MAX_LEASES = 1000  # the next to expire; what is far from it is no sign
MAX_EVENTS = 100
_UNSEEN = (
    "transactions of other users, which may pin old rows: grant pg_read_all_stats to the login"
)
_Server = tuple[list[conditions.DeadRows], list[conditions.Pin], conditions.Standbys, bool]


def observe(access: Access, limits: Limits) -> Observations:
    """Look at everything; two transactions."""
    now, leases, workers, refusals, quarantined = access.read(_installation)
    schema = access.app.schema

    def look(conn: Connection[Any]) -> _Server:
        return (
            conditions.dead_rows(conn, schema),
            conditions.pins(conn, limits.pinned_seconds),
            conditions.standbys(conn),
            conditions.sees_all(conn),
        )

    dead, pins, standbys, sees_all = access.server(look)
    return Observations(
        leases=[_lease(row) for row in leases],
        workers=[_worker(row) for row in workers],
        refusals=_recent(refusals, now, limits),
        quarantined=_recent(
            [row for row in quarantined if row["reason"] == "crashed_too_often"], now, limits
        ),
        dead_tables=[(table.table, table.dead, table.live) for table in dead],
        pins=[_pin(pin) for pin in pins],
        asynchronous_standbys=0 if standbys.names else standbys.count,
        unseen=() if sees_all else (_UNSEEN,),
    )


def _installation(reading: Reading, conn: Connection[Any]) -> tuple[Any, ...]:
    return (
        reading.now(conn),
        reading.leases(conn, MAX_LEASES),
        reading.workers(conn),
        reading.latest_refusals(conn, limit=MAX_EVENTS),
        reading.quarantined(conn, MAX_EVENTS),
    )


def _lease(row: Record) -> Lease:
    remaining = float(row["remaining_seconds"])
    whole = (row["expires_at"] - row["claimed_at"]).total_seconds()
    return Lease(
        job_id=str(row["job_id"]),
        worker=row["worker"],
        remaining_seconds=remaining,
        lease_seconds=row["lease_seconds"],
        held_seconds=whole - remaining,
        crashes=row["crashes"],
    )


def _worker(row: Record) -> Worker:
    return Worker(
        name=row["worker"],
        silent_seconds=float(row["silent_seconds"]),
        clock_difference_seconds=row["clock_difference_seconds"] or 0.0,
        leases=row["leases"],
    )


def _recent(rows: Sequence[Record], now: datetime, limits: Limits) -> list[str]:
    return [
        str(row["job_id"])
        for row in rows
        if (now - row["at"]).total_seconds() < limits.recent_seconds
    ]


def _pin(pin: conditions.Pin) -> str:
    who = f" of {pin.user}" if pin.user else ""
    since = f", open for {pin.seconds:.0f} s" if pin.seconds is not None else ""
    return f"{pin.what}{who}{since}"
