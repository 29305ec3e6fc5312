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
from faultline.cli.jobs.story import Evidence, describe


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
        print_table(found, columns(now))


def show(
    job: Annotated[UUID, typer.Argument(parser=options.job_id, metavar="ID", help="The job's id.")],
    as_json: options.AsJson = False,
) -> None:
    """Show one job: its place, and its attempts, steps and refused writes along a time axis.

    Exit status 3 if there is no such job.

    \b
    Example:
      faultline jobs show 01980f2e-6c1b-7c3a-9d55-0b6f5b1e7a42
    """
    with installation() as here:
        found = Evidence.read(here.reading, here.conn, job)
    if found is None:
        nothing(f"there is no job {job}: it may have been forgotten with its month")
    if as_json:
        kept = {"attempts": found.attempts, "steps": found.steps, "refusals": found.refusals}
        print_json({**found.job, "lease": found.lease, **kept})
    else:
        describe(found)


def columns(now: datetime) -> list[Column]:
    """Of a list of jobs; what matters most in the state of each."""
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
