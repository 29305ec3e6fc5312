"""`faultline epoch`: which life of the server hands out tokens, and how to begin another."""

from __future__ import annotations

import sys

import typer

from faultline.cli import options
from faultline.cli.database import installation
from faultline.cli.display import moment, print_json

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Which life of the server hands out tokens.

    \b
    Example:
      faultline epoch show
    """,
)

_SHIFT = 40  # a token is at least epoch << 40; see sql/functions/030_token_floor.sql


@app.command()
def show(as_json: options.AsJson = False) -> None:
    """Show the epoch: 0 on a server that never failed over.

    \b
    Example:
      faultline epoch show
    """
    with installation() as here:
        found = here.reading.current_epoch(here.conn)
    if as_json:
        print_json(found)
        return
    lowest = max(1, found["epoch"] << _SHIFT)
    typer.echo(
        f"epoch {found['epoch']} since {moment(found['seen_at'])}, timeline {found['timeline']}: "
        f"tokens from {lowest} on"
    )


@app.command()
def bump(yes: options.Yes = False, as_json: options.AsJson = False) -> None:
    """Make all further tokens higher than any before; each lease starts anew.

    For every restore, before any worker connects: the server notices a dump, but not a disk
    snapshot. It cannot be taken back, and there are 8,191 epochs; a bump takes sixteen of them.

    \b
    Example:
      faultline epoch bump --yes
    """
    if not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter("it cannot be taken back: say --yes where nobody can be asked")
        typer.confirm("raise the epoch? It cannot be taken back", abort=True, err=True)
    with installation() as here:
        epoch = here.verbs.epoch_bump().run(here.conn)
    if as_json:
        print_json({"epoch": epoch})
    else:
        typer.echo(f"epoch {epoch}: tokens from {epoch << _SHIFT} on")
