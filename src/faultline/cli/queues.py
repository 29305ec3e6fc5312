"""`faultline queues`: what waits where, and whether it may be claimed."""

from __future__ import annotations

from typing import Annotated

import typer

from faultline.cli import options
from faultline.cli.database import installation
from faultline.cli.display import Column, nothing, print_json, print_table
from faultline.log import duration

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Look at queues; pause and resume them.

    \b
    Example:
      faultline queues list
      faultline queues pause billing
    """,
)

Names = Annotated[list[str], typer.Argument(metavar="QUEUE", help="The queues' names.")]


@app.command("list")
def list_queues(as_json: options.AsJson = False) -> None:
    """List the queues, and how many jobs stand where.

    Exit status 3 if there is none yet.

    \b
    Example:
      faultline queues list
    """
    with installation() as here:
        found = here.reading.queues(here.conn)
    if as_json:
        print_json(found)
    if not found:
        nothing("there are no queues: one exists from its first job on")
    if not as_json:
        print_table(found, _COLUMNS)


@app.command()
def backlog(
    queues: Annotated[
        list[str] | None, typer.Argument(metavar="[QUEUE]...", help="Default: all queues.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Say how much work there is for workers of these queues: what an autoscaler asks.

    Jobs that could be claimed now, jobs that run, and for how long the oldest one waits. Counts to
    10,000 and no further, so that it may be asked often; what waits in a paused queue does not
    count.

    \b
    Example:
      faultline queues backlog billing
    """
    with installation() as here:
        found = here.reading.backlog(here.conn, queues or None)
    if as_json:
        print_json(found)
    else:
        waited = f", the oldest for {duration(found['oldest_seconds'])}" if found["jobs"] else ""
        typer.echo(f"{found['jobs']} waiting{waited}; {found['running']} running")


@app.command()
def pause(queues: Names) -> None:
    """Stop the claiming of queues; what runs already goes on.

    \b
    Example:
      faultline queues pause billing
    """
    _set_paused(queues, paused=True)


@app.command()
def resume(queues: Names) -> None:
    """Let queues be claimed again.

    \b
    Example:
      faultline queues resume billing
    """
    _set_paused(queues, paused=False)


def _set_paused(queues: list[str], *, paused: bool) -> None:
    """All of them or, if one does not exist, none."""
    with installation() as here, here.conn.transaction():
        for queue in queues:
            here.verbs.pause(queue, paused).run(here.conn)
    typer.echo(f"{'paused' if paused else 'resumed'}: {', '.join(queues)}")


_COLUMNS = [
    Column("queue", lambda queue: queue["queue"]),
    Column("", lambda queue: "paused" if queue["paused"] else "", state=True),
    *(
        Column(name, lambda queue, name=name: queue[name], number=True)  # type: ignore[misc]
        for name in ("queued", "scheduled", "running", "quarantined")
    ),
]
