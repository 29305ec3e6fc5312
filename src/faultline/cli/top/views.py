"""What each view of `faultline top` shows of a frame: lines, or rows under columns."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from faultline.cli.display import Column, ago, columns, moment, plural, print_table, styled
from faultline.cli.jobs.drawing import Line
from faultline.cli.jobs.look import columns as job_columns
from faultline.cli.top.look import Frame
from faultline.cli.workers import COLUMNS as WORKER_COLUMNS
from faultline.log import duration, printable
from faultline.risk import Limits

Record = Mapping[str, Any]

RISK_STYLES = {"low": "green", "medium": "yellow", "high": "bold red"}
_ROWS_PRINTED = 20
_NAME = 12
_QUEUE = 28
_PLACES = {"queued": 10, "scheduled": 11, "running": 9, "quarantined": 13}


@dataclass(frozen=True, slots=True)
class View:
    """Rows of a frame under columns; `job` is where a row has the id of its job, if it has one."""

    name: str
    rows: Callable[[Frame], Sequence[Record]]
    columns: Callable[[Frame], Sequence[Column]]
    empty: str
    key: str
    job: str | None = None


def overview(frame: Frame, width: int) -> Iterator[Line]:
    """Is all well, and if not, why and what to do; what is done; what waits where."""
    risk = frame.risk
    level = (risk.stale_risk.upper(), RISK_STYLES[risk.stale_risk])
    workers = plural(risk.active_workers, "active worker")
    yield [("risk".ljust(_NAME), "dim"), level, (f"  {risk.score} of 100, {workers}", "")]
    for sign in risk.reasons:
        points = f"{sign.points:>{_NAME - 2}}"
        yield from _told(points, f"{sign.what} ({sign.count})", "", width)
        yield from _told("", sign.do, "dim", width)
    for unseen in risk.unseen:
        yield from _told("not seen", unseen, "dim", width)
    yield from _told("a second", _rates(frame), "", width)
    yield []
    yield from _depths(frame)


def _told(name: str, words: str, style: str, width: int) -> Iterator[Line]:
    """A name and what it is, in as many lines as that takes."""
    for number, line in enumerate(textwrap.wrap(words, max(width - _NAME, 20))):
        yield [((name if number == 0 else "").ljust(_NAME), "dim"), (line, style)]


def _depths(frame: Frame) -> Iterator[Line]:
    if not frame.queues:
        yield [("there is no queue yet: the first enqueue makes it", "dim")]
        return
    titles = "".join(title.rjust(width) for title, width in _PLACES.items())
    yield [("queue".ljust(_QUEUE) + titles, "dim")]
    for queue in frame.queues:
        name = printable(queue["queue"])
        name = name if len(name) < _QUEUE else name[: _QUEUE - 2] + "…"
        more = "+" if queue["capped"] else ""
        counts = "".join(f"{queue[p]:,}{more}".rjust(width) for p, width in _PLACES.items())
        paused = [("  paused", "yellow")] if queue["paused"] else []
        yield [(name.ljust(_QUEUE) + counts, ""), *paused]


def _rates(frame: Frame) -> str:
    if frame.per_second is None:
        return "known after the next look"
    names = ("enqueued", "claimed", "ended", "refused", "quarantined")
    told = [f"{frame.per_second[name]:,.1f} {name}" for name in names]
    return f"{', '.join(told)} (over {duration(frame.rate_seconds)})"


def _left(lease: Record) -> str:
    seconds = float(lease["remaining_seconds"])
    return duration(seconds) if seconds > 0 else f"-{duration(seconds)}"


def _condition(lease: Record) -> str:
    share = float(lease["remaining_seconds"]) / float(lease["lease_seconds"])
    limits = Limits()
    if share <= 0:
        return "expired"
    if share < limits.near_expiry:
        return "near expiry"
    return "overdue" if share < limits.overdue else "good"


def _late(refusal: Record) -> str:
    late = refusal["late_seconds"]
    return duration(late) if late and late > 0 else ""


_LEASES = [
    Column("left", _left, number=True),
    Column("lease", _condition, state=True),
    Column("task", lambda lease: lease["task"]),
    Column("worker", lambda lease: lease["worker"]),
    Column("job", lambda lease: lease["job_id"], whole=True),
    Column("token", lambda lease: lease["fencing_token"], number=True, optional=True),
    Column("queue", lambda lease: lease["queue"], optional=True),
]


def _refusals(frame: Frame) -> list[Column]:
    return [
        Column("when", lambda refusal: ago(refusal["at"], frame.now)),
        Column("refused", lambda refusal: refusal["operation"]),
        Column("token", lambda refusal: refusal["stale_token"], number=True),
        Column("job at", lambda refusal: refusal["current_token"], number=True),
        Column("late", _late, number=True),
        Column("worker", lambda refusal: refusal["worker"]),
        Column("job", lambda refusal: refusal["job_id"], whole=True),
        Column("reason", lambda refusal: refusal["reason"], optional=True),
    ]


LEASES = View(
    "leases", lambda f: f.leases, lambda _: _LEASES, "nothing runs", "job_id", job="job_id"
)
WORKERS = View(
    "workers",
    lambda f: f.workers,
    lambda _: WORKER_COLUMNS,
    "there are no workers: start one with faultline worker module:app",
    "worker",
)
REFUSALS = View(
    "refusals", lambda f: f.refusals, _refusals, "no write was refused", "id", job="job_id"
)
JOBS = View(
    "jobs",
    lambda f: f.jobs or (),
    lambda f: job_columns(f.now),
    "there is no such job",
    "id",
    job="id",
)
TABLES = (LEASES, WORKERS, REFUSALS, JOBS)


def print_frame(frame: Frame) -> None:
    """One frame as text; of the tables the first rows."""
    typer.echo(moment(frame.now))
    for line in overview(frame, columns()):
        typer.echo("".join(styled(text, style) for text, style in line).rstrip())
    for view in (LEASES, WORKERS, REFUSALS):
        rows = view.rows(frame)
        typer.echo("")
        typer.echo(styled(view.name, "bold"))
        if not rows:
            typer.echo(view.empty)
            continue
        print_table(rows[:_ROWS_PRINTED], view.columns(frame))
        if len(rows) > _ROWS_PRINTED:
            typer.echo("and more: --json has them")
