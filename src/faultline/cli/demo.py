"""`faultline demo`: see it happen, with real processes, on a server that is brought along."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from faultline.cli import options
from faultline.cli.display import print_json
from faultline.cli.extras import not_installed
from faultline.config import Settings
from faultline.errors import InvalidArgument

if TYPE_CHECKING:
    from socket import socket

    from rich.console import Console

FOLDER = Path("reports/latest")


def demo(
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Write benchmark_summary.json there.")
    ] = FOLDER,
    serve: Annotated[
        bool, typer.Option("--serve", help="Then go on, with the dashboard, until Ctrl-C.")
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="N", help="The dashboard's; 0: a free one.")
    ] = 8001,
    as_json: options.AsJson = False,
) -> None:
    """Watch a stalled worker come back and be refused, in seconds.

    Two real workers and SIGSTOP; then the same faults for Faultline and for a naive queue. On an
    embedded server that goes again; or on FAULTLINE_DATABASE_URL, in schemas of its own that go
    again. The last line is the summary as JSON, which is also written to a file; with --json it is
    the only one, and the story goes to stderr. Exit status 1 if anything was not as promised, or
    a fault did not happen.

    \b
    Example:
      faultline demo
      faultline demo --serve
    """
    ended: list[int] = []

    def end(number: int, _: object) -> None:
        ended.append(number)
        sys.exit(128 + number)

    for sign in (signal.SIGTERM, signal.SIGINT):  # so that what was started ends, too
        signal.signal(sign, end)
    from rich.console import Console

    from faultline.demo.story import tell

    settings = Settings.from_environment()
    console = Console(stderr=as_json)
    listening = _take_the_port(port) if serve else None
    _insist_on_the_folder(out)
    told = tell(settings, console, shlex.join(["faultline", *sys.argv[1:]]))
    if ended:  # what it raised was lost on its way, in a finalizer say
        raise typer.Exit(128 + ended[0])
    for complaint in told.invalid:
        typer.echo(f"invalid: {complaint}", err=True)
    (out / "benchmark_summary.json").write_text(json.dumps(told.summary, indent=2) + "\n")
    if not serve:
        console.print(
            "\nTo stall a worker yourself, and watch it in a browser: faultline demo --serve",
            soft_wrap=True,
        )
    print_json(told.summary)
    if not told.held:
        raise typer.Exit(1)
    if listening is not None:
        _serve(settings, console, listening)


def _take_the_port(port: int) -> socket:
    """Before the story, not after it: that there is a dashboard, and where it can be."""
    try:
        import faultline.demo.live  # noqa: F401 - only whether it can be had
        from faultline.service.serving import listen
    except ModuleNotFoundError as error:
        raise not_installed(error, "web", "fastapi", "jinja2", "uvicorn") from error
    return listen("127.0.0.1", port)


def _insist_on_the_folder(out: Path) -> None:
    """Before the story, whose figures would be lost after it."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        is_ours = os.access(out, os.W_OK)
    except OSError:
        is_ours = False
    if not is_ours:
        raise InvalidArgument(f"{out} is no folder to write to: name another one with --out")


def _serve(settings: Settings, console: Console, listening: socket) -> None:
    from faultline.demo.live import live

    live(settings, console, listening)
