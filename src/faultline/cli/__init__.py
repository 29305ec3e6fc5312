"""The command line: one module for each group of commands, put together here.

`main` is the entry point. It turns what Faultline reports into one line on stderr and an exit
status; nothing below it prints a traceback for an error that the user can do something about.

    0 done    1 Faultline says no    2 wrong usage    3 not running (db status)    130 Ctrl-C
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from faultline import __version__
from faultline.cli import db, migrate
from faultline.errors import FaultlineError

# Without rich mark-up help is plain text: readable in a log, and quicker to load.
app = typer.Typer(
    name="faultline",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(db.app, name="db")
app.command()(migrate.migrate)


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
      faultline db start && faultline db status
    """


def main() -> None:
    """Run one command; the exit status is the answer."""
    try:
        app()
    except FaultlineError as error:
        typer.echo(f"faultline: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
