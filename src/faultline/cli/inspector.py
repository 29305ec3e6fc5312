"""`faultline inspector`: leases, workers, refusals and risk over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from faultline.cli.api import Grace, Host, run

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Look at an installation over HTTP.

    \b
    Example:
      faultline inspector serve
    """,
)


@app.callback()
def inspector() -> None:
    """Look at an installation over HTTP.

    \b
    Example:
      faultline inspector serve
    """


@app.command()
def serve(
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="Its port.")] = 8001,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Serve retry and cancel too.")
    ] = False,
    grace_seconds: Grace = 10.0,
) -> None:
    """Serve leases, workers, refusals, timelines and the lease risk; read only, unless asked.

    FAULTLINE_API_READ_TOKEN or FAULTLINE_API_TOKEN is what clients have to send; without either it
    listens on this machine only.

    \b
    Example:
      faultline inspector serve
      curl localhost:8001/api/risk
    """
    from faultline.app import App

    run(App(), host, port, grace_seconds, enqueue=False, change=allow_changes)
