"""One job as a page: where it stands, what it carries, and what happened to it, in order.

Made from the views jobs, leases, attempts, steps and refusals; this module asks nothing itself.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import typer

from faultline.cli.display import ago, styled
from faultline.cli.display import moment as written
from faultline.log import duration, printable
from faultline.story import moments

Record = Mapping[str, Any]

_WIDTH = 10


def describe(
    job: Record,
    lease: Record | None,
    attempts: Sequence[Record],
    steps: Sequence[Record],
    refusals: Sequence[Record],
    now: datetime,
) -> None:
    """Print the page."""
    typer.echo(f"{job['id']}  {styled(printable(job['task']), 'bold')}  {styled(job['state'])}\n")
    for name, value in _facts(job, lease, now):
        typer.echo(f"{styled(name.ljust(_WIDTH), 'dim')}  {value}")
    typer.echo("")
    for moment in moments(job, lease, attempts, steps, refusals):
        if moment.kind == "lease_expired":  # said where it was taken away
            continue
        since = (moment.at - job["created_at"]).total_seconds()
        when = f"+{since:,.2f} s".rjust(_WIDTH)
        style = "yellow" if moment.kind == "refused" else ""
        token = f"#{moment.token} " if moment.token else ""
        typer.echo(f"{styled(when, 'dim')}  {styled(printable(token + moment.what), style)}")
    if traceback := _traceback(job["error"]):
        typer.echo("\n" + textwrap.indent(traceback, "  "))


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


def _traceback(error: Any) -> str:
    text = error.get("traceback") if isinstance(error, dict) else None
    return "\n".join(printable(line) for line in text.splitlines()) if isinstance(text, str) else ""


def _json(value: Any) -> str:
    return printable(json.dumps(value, ensure_ascii=False))
