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

from faultline.cli.display import ago, duration, moment, styled
from faultline.log import printable

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
    for at, what in timeline(job, lease, attempts, steps, refusals):
        since = (at - job["created_at"]).total_seconds()
        when = f"+{since:,.2f} s".rjust(_WIDTH)
        style = "yellow" if " REFUSED: " in what else ""
        typer.echo(f"{styled(when, 'dim')}  {styled(printable(what), style)}")
    if traceback := _traceback(job["error"]):
        typer.echo("\n" + textwrap.indent(traceback, "  "))


def timeline(
    job: Record,
    lease: Record | None,
    attempts: Sequence[Record],
    steps: Sequence[Record],
    refusals: Sequence[Record],
) -> list[tuple[datetime, str]]:
    """What happened, oldest first; at one moment, in the order of the tokens."""
    found = [(job["created_at"], 0, f"enqueued into {job['queue']} by {job['producer']}")]
    for attempt in attempts:
        token = attempt["fencing_token"]
        if attempt["worker"] is not None:
            found.append((attempt["claimed_at"], token, f"#{token} claimed by {attempt['worker']}"))
        found.append((attempt["at"], token, f"#{token} {_ending(attempt)}"))
    if lease is not None:
        token = lease["fencing_token"]
        found.append((lease["claimed_at"], token, f"#{token} claimed by {lease['worker']}"))
    for step in steps:
        token = step["fencing_token"]
        found.append((step["at"], token, f"#{token} committed step {step['step']}"))
    found += [(refusal["at"], refusal["stale_token"], _refusal(refusal)) for refusal in refusals]
    return [(at, what) for at, _, what in sorted(found, key=lambda item: item[:2])]


def error_line(error: Any) -> str:
    """An error as the worker recorded it, on one line; whatever else was recorded as JSON."""
    match error:
        case None:
            return ""
        case {"type": str(kind), "message": str(message)}:
            return f"{kind}: {message}"
        case {"message": str(message)} | {"reason": str(message)}:
            return message
        case {"reason": None}:
            return ""
        case {"traceback": _, **rest}:
            return json.dumps(rest, ensure_ascii=False)
    return json.dumps(error, ensure_ascii=False)


def _facts(job: Record, lease: Record | None, now: datetime) -> Iterator[tuple[str, str]]:
    yield "queue", f"{printable(job['queue'])}, priority {job['priority']}"
    yield (
        "tries",
        f"{job['attempts']} of {job['max_attempts']}, crashes {job['crashes']} of "
        f"{job['max_crashes']}" + (f", snoozed {job['snoozes']}" if job["snoozes"] else ""),
    )
    yield "token", str(job["fencing_token"])
    yield "created", f"{moment(job['created_at'])} ({ago(job['created_at'], now)})"
    if job["next_run_at"] is not None:
        yield "due", f"{moment(job['next_run_at'])} ({ago(job['next_run_at'], now)})"
    if lease is not None:
        left = float(lease["remaining_seconds"])
        rest = f"{duration(left)} left of {duration(lease['lease_seconds'])}"
        until = rest if left > 0 else f"expired {duration(left)} ago"
        yield "lease", f"{printable(lease['worker'])}, {until}"
    if job["cancel_reason"] is not None:
        yield "stopping", printable(job["cancel_reason"])
    if job["finished_at"] is not None:
        yield "finished", f"{moment(job['finished_at'])} ({ago(job['finished_at'], now)})"
    if job["quarantine_reason"] is not None:
        yield "parked", job["quarantine_reason"].replace("_", " ")
        yield "evidence", _json(job["quarantine_evidence"])
    for name in ("payload", "headers", "progress", "result"):
        if job[name] is not None:
            yield name, _json(job[name])


def _ending(attempt: Record) -> str:
    because = error_line(attempt["error"])
    colon = f": {because}" if because else ""
    match attempt["outcome"]:
        case "failed":
            return f"failed{', for good' if attempt['final'] else ''}{colon}"
        case "expired":
            late = attempt["at"] - (attempt["lease_expired_at"] or attempt["at"])
            started = "" if attempt["started"] else ", not started"
            after = f" {duration(late.total_seconds())} after it expired" if late else ""
            return f"lease taken away from {attempt['worker']}{after}{started}{colon}"
        case "released":
            return f"handed back by {attempt['worker']}{colon}"
        case outcome:
            return f"{outcome}{colon}"


def _refusal(refusal: Record) -> str:
    who = f" by {refusal['worker']}" if refusal["worker"] else ""
    late = refusal["late_seconds"]
    after = f", {duration(late)} after its lease ended" if late and late > 0 else ""
    return (
        f"#{refusal['stale_token']} REFUSED: {refusal['operation']}{who}; the job was at "
        f"{refusal['current_token']} ({refusal['reason']}{after})"
    )


def _traceback(error: Any) -> str:
    text = error.get("traceback") if isinstance(error, dict) else None
    return "\n".join(printable(line) for line in text.splitlines()) if isinstance(text, str) else ""


def _json(value: Any) -> str:
    return printable(json.dumps(value, ensure_ascii=False))
