"""`faultline retention`: for how long what has ended is kept."""

from __future__ import annotations

from typing import Annotated

import typer

from faultline.cli import options
from faultline.cli.database import installation
from faultline.cli.display import plural, print_json

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""For how long what has ended is kept.

    \b
    Example:
      faultline retention show
    """,
)


@app.command()
def show(as_json: options.AsJson = False) -> None:
    """Show for how many days a job is kept after its end.

    \b
    Example:
      faultline retention show
    """
    with installation() as here:
        days = here.reading.settings(here.conn)["retention_days"]
    _print(days, as_json=as_json)


@app.command("set")
def set_(
    days: Annotated[str, typer.Argument(metavar="DAYS", help="So many days, or: off.")],
    as_json: options.AsJson = False,
) -> None:
    """Keep jobs for so many days after their end; `off`: for ever.

    Workers forget older ones by themselves, a month of enqueues at a time. It holds for the whole
    installation.

    \b
    Example:
      faultline retention set 90
      faultline retention set off
    """
    if days != "off" and not (days.isascii() and days.isdecimal() and len(days) < 10):
        raise typer.BadParameter(f"{days!r} is neither a number of days nor off")
    wanted = None if days == "off" else int(days)
    with installation() as here:
        here.verbs.set_retention(wanted).run(here.conn)
    _print(wanted, as_json=as_json)


def _print(days: int | None, *, as_json: bool) -> None:
    if as_json:
        print_json({"retention_days": days})
    elif days is None:
        typer.echo("what has ended is kept for ever")
    else:
        typer.echo(f"what has ended is kept for {plural(days, 'day')}")
