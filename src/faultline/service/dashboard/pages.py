"""What each page shows: questions to the views and to the server, in the roles of the service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from uuid import UUID

from psycopg import Connection

from faultline import conditions
from faultline.access import Access
from faultline.errors import JobNotFound
from faultline.listing import Wanted
from faultline.observing import observe
from faultline.reading import Reading, Record
from faultline.risk import Limits, Risk, assess
from faultline.service.dashboard.timeline import drawn
from faultline.service.invariants import MOST, Invariants
from faultline.service.pages import page_of_jobs
from faultline.story import moments

PAGE = 50
LATEST = 300  # attempts that latencies are taken from
AT_RISK = 8
MOST_QUEUES = 12  # on the first page
PERCENTILES = (50, 95, 99)
MANY_LEASES = 500
PINNED_SECONDS = 60.0


def risk_of(here: Access, limits: Limits) -> Risk:
    """The risk now."""
    return assess(observe(here, limits), limits)


def overview(here: Access, limits: Limits) -> dict[str, Any]:
    """The first page: is all well, and if not, where to look."""

    def ask(reading: Reading, conn: Connection[Any]) -> dict[str, Any]:
        return {
            "now": reading.now(conn),
            "queues": reading.depths(conn),
            "leases": reading.leases(conn, AT_RISK),
            "refusals": reading.latest_refusals(conn, limit=6),
            "latencies": _latencies(reading, conn),
        }

    seen = here.read(ask)
    seen["queues"].sort(key=lambda row: (-row["queued"] - row["running"], row["queue"]))
    return {**seen, "most_queues": MOST_QUEUES, "risk": risk_of(here, limits)}


def _latencies(reading: Reading, conn: Connection[Any]) -> list[Record]:
    """Of the latest attempts, how long the first of each job waited and how long each ran."""
    latest = reading.latest_attempts(conn, LATEST)
    ran = [(row["at"] - row["claimed_at"]).total_seconds() for row in latest]
    waited = [
        (row["claimed_at"] - row["due_at"]).total_seconds() for row in latest if row["due_at"]
    ]
    return [
        {"what": "from due to claimed", "count": len(waited), "at": _percentiles(waited)},
        {"what": "from claimed to ended", "count": len(ran), "at": _percentiles(ran)},
    ]


def _percentiles(values: Sequence[float]) -> dict[int, float | None]:
    ordered = sorted(max(0.0, value) for value in values)
    if not ordered:
        return dict.fromkeys(PERCENTILES)
    return {p: ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in PERCENTILES}


def jobs(here: Access, wanted: Wanted, cursor: UUID | None) -> dict[str, Any]:
    """A page of jobs, the newest first."""
    found = page_of_jobs(here, wanted, cursor, PAGE)
    return {
        "jobs": found.jobs,
        "queues": [row["queue"] for row in here.read(lambda reading, conn: reading.depths(conn))],
        "wanted": wanted,
        "chosen": {name: value for name, value in asdict(wanted).items() if value},
        "cursor": cursor,
        "following": found.next_cursor,
    }


def job(here: Access, job_id: UUID) -> dict[str, Any]:
    """One job, and its life as a drawing."""

    def ask(reading: Reading, conn: Connection[Any]) -> tuple[Any, ...]:
        return (
            reading.now(conn),
            reading.job(conn, job_id),
            reading.lease(conn, job_id),
            reading.attempts(conn, job_id),
            reading.steps(conn, job_id),
            reading.refusals(conn, job_id),
        )

    now, found, lease, attempts, steps, refusals = here.read(ask)
    if found is None:
        raise JobNotFound(job_id)
    return {
        "now": now,
        "job": found,
        "lease": lease,
        "attempts": attempts,
        "refusals": refusals,
        "moments": moments(found, lease, attempts, steps, refusals),
        "drawing": drawn(found, lease, attempts, steps, refusals, now),
    }


def workers(here: Access, limits: Limits) -> dict[str, Any]:
    """Who is there, and what each holds."""

    def ask(reading: Reading, conn: Connection[Any]) -> dict[str, Any]:
        return {
            "workers": reading.workers(conn),
            "leases": reading.leases(conn, MANY_LEASES),
        }

    seen = here.read(ask)
    held: dict[str, list[Record]] = {}
    for lease in seen["leases"]:
        held.setdefault(lease["worker"], []).append(lease)
    known = {worker["worker"] for worker in seen["workers"]}
    return {
        **seen,
        "held": held,
        "silent_seconds": limits.silent_seconds,
        "clock_seconds": limits.clock_seconds,
        "strangers": sorted(held.keys() - known),
    }


def refusals(here: Access, cursor: int | None) -> dict[str, Any]:
    """The writes that were refused, the latest first."""
    rows = here.read(
        lambda reading, conn: reading.latest_refusals(conn, before=cursor, limit=PAGE + 1)
    )
    page = rows[:PAGE]
    following = page[-1]["id"] if len(rows) > PAGE else None
    return {"refusals": page, "cursor": cursor, "following": following}


def queues(here: Access) -> dict[str, Any]:
    """What waits where."""
    return {"queues": here.read(lambda reading, conn: reading.depths(conn))}


def health(here: Access, limits: Limits, invariants: Invariants | None) -> dict[str, Any]:
    """Tables, replication, retention; and the invariants, if given: that reads every table."""

    def ask(reading: Reading, conn: Connection[Any]) -> dict[str, Any]:
        return {
            "epoch": reading.current_epoch(conn),
            "settings": reading.settings(conn),
            "guards": reading.guards(conn),
        }

    def look(conn: Connection[Any]) -> dict[str, Any]:
        return {
            "tables": conditions.table_sizes(conn, here.app.schema),
            "pins": conditions.pins(conn, PINNED_SECONDS),
            "standbys": conditions.standbys(conn),
            "sees_all": conditions.sees_all(conn),
            "server": conditions.server(conn),
        }

    return {
        **here.read(ask),
        **here.server(look),
        "limits": limits,
        "violations": invariants.check() if invariants else None,
        "most_violations": MOST,
        "checked": invariants is not None,
    }
