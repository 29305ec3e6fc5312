"""One job as a page: where it stands, what it carries, what happened to it, drawn and in words.

Made from the views jobs, leases, attempts, steps and refusals; `faultline top` shows it too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import typer

from faultline.cli.display import STATE_STYLES, ago, columns, styled
from faultline.cli.display import moment as written
from faultline.cli.jobs.drawing import Line, Symbols, drawn, symbols_for
from faultline.log import duration, printable
from faultline.story import moments
from faultline.timeline import life

if TYPE_CHECKING:
    from psycopg import Connection

    from faultline.reading import Reading

Record = Mapping[str, Any]

_WIDTH = 10


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the views show of one job, and when they were asked."""

    job: Record
    lease: Record | None
    attempts: Sequence[Record]
    steps: Sequence[Record]
    refusals: Sequence[Record]
    now: datetime

    @classmethod
    def read(cls, reading: Reading, conn: Connection[Any], job_id: UUID) -> Evidence | None:
        """Of this job; None, if there is none."""
        job = reading.job(conn, job_id)
        if job is None:
            return None
        return cls(
            job,
            reading.lease(conn, job_id),
            reading.attempts(conn, job_id),
            reading.steps(conn, job_id),
            reading.refusals(conn, job_id),
            reading.now(conn),
        )


def describe(evidence: Evidence) -> None:
    """Print the page."""
    for line in page(evidence, columns(), symbols_for(sys.stdout.encoding)):
        typer.echo("".join(styled(text, style) for text, style in line).rstrip())


def page(evidence: Evidence, width: int, symbols: Symbols) -> Iterator[Line]:
    """The page, line by line; what is drawn on it is no wider than this."""
    job = evidence.job
    state = (job["state"], STATE_STYLES.get(job["state"], ""))
    yield [(f"{job['id']}  ", ""), (printable(job["task"]), "bold"), ("  ", ""), state]
    yield []
    for name, value in _facts(job, evidence.lease, evidence.now):
        yield [(name.ljust(_WIDTH), "dim"), (f"  {value}", "")]
    yield []
    seen = (job, evidence.lease, evidence.attempts, evidence.steps, evidence.refusals)
    if picture := drawn(life(*seen, evidence.now), width, symbols):
        yield from picture
        yield []
    for moment in moments(*seen):
        if moment.kind == "lease_expired":  # said where it was taken away
            continue
        since = (moment.at - job["created_at"]).total_seconds()
        style = "yellow" if moment.kind == "refused" else ""
        token = f"#{moment.token} " if moment.token else ""
        what = f"  {printable(token + moment.what)}"
        yield [(f"+{since:,.2f} s".rjust(_WIDTH), "dim"), (what, style)]
    if traceback := _traceback(job["error"]):
        yield []
        yield from ([(f"  {line}" if line else "", "")] for line in traceback)


def _facts(job: Record, lease: Record | None, now: datetime) -> Iterator[tuple[str, str]]:
    yield "queue", f"{printable(job['queue'])}, priority {job['priority']}"
    yield (
        "tries",
        f"{job['attempts']} of {job['max_attempts']}, crashes {job['crashes']} of "
        f"{job['max_crashes']}" + (f", snoozed {job['snoozes']}" if job["snoozes"] else ""),
    )
    yield "token", str(job["fencing_token"])
    yield "created", f"{written(job['created_at'])} ({ago(job['created_at'], now)})"
    if job["next_run_at"] is not None:
        yield "due", f"{written(job['next_run_at'])} ({ago(job['next_run_at'], now)})"
    if lease is not None:
        left = float(lease["remaining_seconds"])
        rest = f"{duration(left)} left of {duration(lease['lease_seconds'])}"
        until = rest if left > 0 else f"expired {duration(left)} ago"
        yield "lease", f"{printable(lease['worker'])}, {until}"
    if job["cancel_reason"] is not None:
        yield "stopping", printable(job["cancel_reason"])
    if job["finished_at"] is not None:
        yield "finished", f"{written(job['finished_at'])} ({ago(job['finished_at'], now)})"
    if job["quarantine_reason"] is not None:
        yield "parked", job["quarantine_reason"].replace("_", " ")
        yield "evidence", _json(job["quarantine_evidence"])
    for name in ("payload", "headers", "progress", "result"):
        if job[name] is not None:
            yield name, _json(job[name])


def _traceback(error: Any) -> list[str]:
    text = error.get("traceback") if isinstance(error, dict) else None
    return [printable(line) for line in text.splitlines()] if isinstance(text, str) else []


def _json(value: Any) -> str:
    return printable(json.dumps(value, ensure_ascii=False))
