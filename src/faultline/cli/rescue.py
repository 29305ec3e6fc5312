"""`faultline rescue`: give back what a restore has lost."""

from __future__ import annotations

import typer

from faultline.cli import options
from faultline.cli.database import installation
from faultline.cli.display import plural, print_json


def rescue(as_json: options.AsJson = False) -> None:
    """Queue the jobs again whose place a restore has lost.

    A job that neither waits, runs, is quarantined nor has ended goes back to its queue, under a
    token that nobody can have had. Belongs to every restore; where nothing is missing it does
    nothing.

    \b
    Example:
      faultline rescue
    """
    with installation() as here:
        rescued = here.verbs.rescue().run(here.conn)
    if as_json:
        print_json({"rescued": rescued})
    else:
        typer.echo(f"rescued {plural(rescued, 'job')}")
