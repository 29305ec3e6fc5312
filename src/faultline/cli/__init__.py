"""The command line: one module for each group of commands, put together here.

`main` is the entry point. It turns what Faultline reports into one line on stderr and an exit
status; nothing below it prints a traceback for an error that the user can do something about.

    0 done    1 Faultline says no    2 wrong usage    3 nothing matched, or not running
    130 Ctrl-C
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from faultline import __version__
from faultline.cli import (
    api,
    db,
    demo,
    dev,
    doctor,
    drill,
    enqueue,
    epoch,
    guard,
    inspector,
    jobs,
    migrate,
    queues,
    reconcile,
    rescue,
    retention,
    top,
    worker,
    workers,
)
from faultline.cli.order import InOrder
from faultline.errors import FaultlineError

# Without rich mark-up help is plain text: readable in a log, and quicker to load.
app = typer.Typer(
    name="faultline",
    cls=InOrder,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo.demo)
app.command()(dev.dev)
app.command()(worker.worker)
app.command()(enqueue.enqueue)
app.add_typer(jobs.app, name="jobs")
app.add_typer(queues.app, name="queues")
app.command()(workers.workers)
app.command()(top.top)
app.add_typer(guard.app, name="guard")
app.command()(api.api)
app.add_typer(inspector.app, name="inspector")
app.command()(reconcile.reconcile)
app.add_typer(retention.app, name="retention")
app.command()(doctor.doctor)
app.add_typer(drill.app, name="drill")
app.command()(migrate.migrate)
app.add_typer(epoch.app, name="epoch")
app.command()(rescue.rescue)
app.add_typer(db.app, name="db")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"faultline {__version__}")
        raise typer.Exit


@app.callback()
def faultline(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """A crash-safe job queue on PostgreSQL.

    \b
    Example:
      faultline dev app:app
      faultline enqueue charge '{"order_id": 7}'
      faultline jobs list --state failed
    """


def main() -> None:
    """Run one command; the exit status is the answer."""
    try:
        app(prog_name="faultline")
    except FaultlineError as error:
        typer.echo(f"faultline: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if not _is_the_drivers(error):
            raise
        said = str(error).strip().partition("\n")[0] or type(error).__name__
        typer.echo(f"faultline: the database says: {said}", err=True)
        sys.exit(1)


def _is_the_drivers(error: Exception) -> bool:
    """A connection that broke, a privilege that is missing: asked without importing a driver."""
    driver = sys.modules.get("psycopg")
    return driver is not None and isinstance(error, driver.Error)
