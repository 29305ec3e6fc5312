"""`faultline jobs list` and `jobs show`: what there is, and everything about one of them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import typer

from faultline.cli import options
from faultline.cli.database import installation
from faultline.cli.display import Column, ago, nothing, print_json, print_table
from faultline.cli.jobs.story import describe


def list_jobs(
    state: options.InState = None,
    queue: options.InQueue = None,
    task: options.OfTask = None,
    limit: Annotated[
        int, typer.Option(min=1, metavar="N", help="At most so many, the newest.")
    ] = 20,
    as_json: options.AsJson = False,
) -> None:
    """List jobs, the newest first.

    Exit status 3 if there is none.

    \b
    Example:
      faultline jobs list --state failed --queue billing
      faultline jobs list --state quarantined --json | jq -r '.[].id'
    """
    with installation() as here:
        found = here.reading.jobs(here.conn, state=state, queue=queue, task=task, limit=limit)
        now = here.now()
    if as_json:
        print_json(found)
    if not found:
        nothing("no job matches" if state or queue or task else "there are no jobs")
    if not as_json:
        print_table(found, _columns(now))


def show(
    job: Annotated[UUID, typer.Argument(parser=options.job_id, metavar="ID", help="The job's id.")],
    as_json: options.AsJson = False,
) -> None:
    """Show one job: its place, attempts, steps and refused writes.

    Exit status 3 if there is no such job.

    \b
    Example:
      faultline jobs show 01980f2e-6c1b-7c3a-9d55-0b6f5b1e7a42
    """
    with installation() as here:
        found = here.reading.job(here.conn, job)
        if found is None:
            nothing(f"there is no job {job}: it may have been forgotten with its month")
        attempts = here.reading.attempts(here.conn, job)
        steps = here.reading.steps(here.conn, job)
        refusals = here.reading.refusals(here.conn, job)
        lease = here.reading.lease(here.conn, job)
        now = here.now()
    if as_json:
        evidence = {"attempts": attempts, "steps": steps, "refusals": refusals}
        print_json({**found, "lease": lease, **evidence})
    else:
        describe(found, lease, attempts, steps, refusals, now)


def _columns(now: datetime) -> list[Column]:
    return [
        Column("id", lambda job: job["id"], whole=True),
        Column("state", lambda job: job["state"], state=True),
        Column("task", lambda job: job["task"]),
        Column("queue", lambda job: job["queue"], optional=True),
        Column("tries", lambda job: f"{job['attempts']}/{job['max_attempts']}", optional=True),
        Column("token", lambda job: job["fencing_token"], number=True, optional=True),
        Column("", lambda job: _remark(job, now)),
    ]


def _remark(job: Mapping[str, Any], now: datetime) -> str:
    """What matters most in the state that the job is in."""
    match job["state"]:
        case "queued":
            return f"enqueued {ago(job['created_at'], now)}"
        case "running":
            asked = ", asked to stop" if job["cancel_reason"] is not None else ""
            return f"by {job['lease_owner']}{asked}"
        case "scheduled":
            return f"due {ago(job['next_run_at'], now)}"
        case "quarantined":
            return str(job["quarantine_reason"]).replace("_", " ")
    return ago(job["finished_at"], now)
