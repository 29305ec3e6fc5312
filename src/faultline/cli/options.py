"""Options and arguments that several commands share, so that they read the same everywhere."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from faultline.states import State

AsJson = Annotated[bool, typer.Option("--json", help="JSON, for a machine.")]
InState = Annotated[
    State | None,
    typer.Option("--state", metavar="STATE", help=f"Only jobs in this state: {', '.join(State)}."),
]
InQueue = Annotated[
    str | None, typer.Option("--queue", metavar="NAME", help="Only jobs of this queue.")
]
OfTask = Annotated[
    str | None, typer.Option("--task", metavar="NAME", help="Only jobs of this task.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")]


def job_id(text: str) -> UUID:
    """The text as a job's id, or wrong usage."""
    try:
        return UUID(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a job id, which looks like 01980f2e-6c1b-7c3a-9d55-0b6f5b1e7a42"
        ) from None
