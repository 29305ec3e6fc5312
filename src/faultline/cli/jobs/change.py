"""`faultline jobs retry`, `cancel` and `requeue`: for jobs that are named, or for all that match.

What a verb does not apply to is left as it is and counted. In bulk the matching jobs are looked up
once and worked through in chunks, each a transaction of its own: stopping half-way is safe, and
running the command again does the rest.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

import typer

from faultline.cli import options
from faultline.cli.database import Installation, installation
from faultline.cli.display import NOTHING, plural, print_json
from faultline.states import State

_CHUNK = 500
_TRIES = 5

# What became of each job that the verb applied to.
Outcomes = dict[UUID, str]
Act = Callable[[Installation, list[UUID]], Outcomes]

Jobs = Annotated[
    list[UUID] | None,
    typer.Argument(parser=options.job_id, metavar="ID", help="The jobs' ids."),
]
Limit = Annotated[int | None, typer.Option(min=1, metavar="N", help="At most so many, the oldest.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say how many match.")]
Reason = Annotated[
    str | None, typer.Option("--reason", metavar="WORDS", help="Why; kept with the job.")
]


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for: jobs by id, or filters; and how careful to be."""

    ids: Sequence[UUID]
    state: State | None
    queue: str | None
    task: str | None
    limit: int | None
    dry_run: bool
    yes: bool
    as_json: bool


@dataclass(frozen=True, slots=True)
class Change:
    """One of the three: to which states it applies, and what to say of what it did."""

    verb: str
    states: tuple[State, ...]
    said: dict[str, str]
    """For each outcome the words, with {} for how many jobs."""
    act: Act


def retry(
    ids: Jobs = None,
    state: options.InState = None,
    queue: options.InQueue = None,
    task: options.OfTask = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    yes: options.Yes = False,
    as_json: options.AsJson = False,
) -> None:
    """Try jobs again, now.

    Scheduled ones are due at once, dead (failed) and quarantined ones get another life. Exit status
    3 if none was moved.

    \b
    Example:
      faultline jobs retry 01980f2e-6c1b-7c3a-9d55-0b6f5b1e7a42
      faultline jobs retry --state failed --task charge --dry-run
    """
    _carry_out(_RETRY, Request(ids or (), state, queue, task, limit, dry_run, yes, as_json))


def cancel(
    ids: Jobs = None,
    state: options.InState = None,
    queue: options.InQueue = None,
    task: options.OfTask = None,
    limit: Limit = None,
    reason: Reason = None,
    dry_run: DryRun = False,
    yes: options.Yes = False,
    as_json: options.AsJson = False,
) -> None:
    """End waiting jobs, and ask running ones to stop.

    Exit status 3 if there was none.

    \b
    Example:
      faultline jobs cancel 01980f2e-6c1b-7c3a-9d55-0b6f5b1e7a42 --reason "customer left"
      faultline jobs cancel --state queued --queue billing --yes
    """
    change = Change("cancel", _CANCEL_STATES, _CANCEL_SAID, lambda h, c: _cancel(h, c, reason))
    _carry_out(change, Request(ids or (), state, queue, task, limit, dry_run, yes, as_json))


def requeue(
    ids: Jobs = None,
    state: options.InState = None,
    queue: options.InQueue = None,
    task: options.OfTask = None,
    limit: Limit = None,
    reason: Reason = None,
    dry_run: DryRun = False,
    yes: options.Yes = False,
    as_json: options.AsJson = False,
) -> None:
    """Give dead (failed) or quarantined jobs another life.

    Their attempts and crashes are counted from zero. Exit status 3 if none was moved.

    \b
    Example:
      faultline jobs requeue 01980f2e-6c1b-7c3a-9d55-0b6f5b1e7a42
      faultline jobs requeue --state quarantined --reason "memory leak fixed"
    """
    change = Change("requeue", _DEAD, _REQUEUE_SAID, lambda h, c: _requeue(h, c, reason))
    _carry_out(change, Request(ids or (), state, queue, task, limit, dry_run, yes, as_json))


def _retry(here: Installation, ids: list[UUID]) -> Outcomes:
    due = dict.fromkeys(here.verbs.retry(ids).run(here.conn), "due")
    rest = [job_id for job_id in ids if job_id not in due]
    return due | (_requeue(here, rest, "retried by hand") if rest else {})


def _cancel(here: Installation, ids: list[UUID], reason: str | None) -> Outcomes:
    return {job.job_id: job.verdict for job in here.verbs.cancel(ids, reason).run(here.conn)}


def _requeue(here: Installation, ids: list[UUID], reason: str | None) -> Outcomes:
    return dict.fromkeys(here.verbs.requeue(ids, reason).run(here.conn), "requeued")


_DEAD = (State.FAILED, State.QUARANTINED)
_CANCEL_STATES = (State.QUEUED, State.SCHEDULED, State.RUNNING, State.QUARANTINED)
_CANCEL_SAID = {
    "cancelled": "cancelled {}",
    "requested": "asked {} to stop",
    "finished": "{} had ended already",
}
_REQUEUE_SAID = {"requeued": "requeued {}"}
_RETRY = Change(
    "retry", (State.SCHEDULED, *_DEAD), {"due": "made {} due now", **_REQUEUE_SAID}, _retry
)


def _carry_out(change: Change, request: Request) -> None:
    filtered = any((request.state, request.queue, request.task))
    if bool(request.ids) == filtered:
        raise typer.BadParameter("name jobs by id, or match them with --state, --queue and --task")
    if request.state is not None and request.state not in change.states:
        raise typer.BadParameter(f"{change.verb} is for jobs that are {_either(change.states)}")
    with installation() as here:
        ids = list(dict.fromkeys(request.ids)) or _matching(here, change, request)
        if request.dry_run or not ids:
            _say(request, {"matched": len(ids)}, f"{plural(len(ids), 'job')} to {change.verb}")
            raise typer.Exit(0 if ids else NOTHING)
        if filtered and not request.yes and sys.stdin.isatty():
            typer.confirm(f"{change.verb} {plural(len(ids), 'job')}?", abort=True, err=True)
        outcomes = _work_through(here, change, ids)
        left = [job_id for job_id in ids if job_id not in outcomes]
        reasons = [] if filtered else [_why_not(here, change, job_id) for job_id in left]
    counts = Counter(outcomes.values())
    told = [words.format(plural(counts[o], "job")) for o, words in change.said.items() if counts[o]]
    if left and filtered:
        told.append(f"{plural(len(left), 'job')} had moved on")
    if told or request.as_json:
        facts = {"matched": len(ids), **{outcome: counts[outcome] for outcome in change.said}}
        _say(request, facts, ", ".join(told))
    for reason in reasons:
        typer.echo(reason, err=True)
    if counts.total() == counts["finished"]:
        raise typer.Exit(NOTHING)
    if reasons:
        raise typer.Exit(1)


def _matching(here: Installation, change: Change, request: Request) -> list[UUID]:
    """The ids of what matches, in those states to which the verb applies."""
    states = change.states if request.state is None else (request.state,)
    found: list[UUID] = []
    for state in states:
        room = None if request.limit is None else request.limit - len(found)
        if room != 0:
            found += here.reading.job_ids(
                here.conn, state=state, queue=request.queue, task=request.task, limit=room
            )
    return found


def _work_through(here: Installation, change: Change, ids: list[UUID]) -> Outcomes:
    """Chunk by chunk, telling a terminal how far it is."""
    outcomes: Outcomes = {}
    watched = sys.stderr.isatty() and len(ids) > _CHUNK
    for start in range(0, len(ids), _CHUNK):
        outcomes |= _patiently(here, change.act, ids[start : start + _CHUNK])
        if watched:
            done = min(start + _CHUNK, len(ids))
            typer.echo(f"\r{change.verb}: {done:,} of {len(ids):,}", nl=False, err=True)
    if watched:
        typer.echo("\r\x1b[K", nl=False, err=True)
    return outcomes


def _patiently(here: Installation, act: Act, ids: list[UUID]) -> Outcomes:
    """A job on the move, or a deadlock, asks for another try; nothing was changed."""
    from psycopg import errors

    for _ in range(_TRIES - 1):
        try:
            with here.conn.transaction():
                return act(here, ids)
        except (errors.SerializationFailure, errors.DeadlockDetected):
            continue
    with here.conn.transaction():
        return act(here, ids)


def _why_not(here: Installation, change: Change, job_id: UUID) -> str:
    status = here.verbs.status(job_id).run(here.conn)
    if status is None:
        return f"there is no job {job_id}, or it is not yours to {change.verb}"
    return f"job {job_id} is {status.state}: {change.verb} is for jobs that are " + _either(
        change.states
    )


def _either(states: Sequence[State]) -> str:
    return f"{', '.join(states[:-1])} or {states[-1]}"


def _say(request: Request, facts: dict[str, int], sentence: str) -> None:
    if request.as_json:
        print_json(facts)
    else:
        typer.echo(sentence)
