"""`faultline dev`: everything one needs to try an app, in one terminal.

The embedded server (unless FAULTLINE_DATABASE_URL names another), the schema, workers that start
anew when the code changes, and the dashboard. What this command started, it ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from faultline.app import App
from faultline.cli.dev.reload import Reload
from faultline.cli.migrate import bring_up_to_date
from faultline.cli.worker import (
    Concurrency,
    Level,
    LogLevel,
    Queues,
    Reference,
    split_names,
)
from faultline.config import Settings
from faultline.database import database_url as url
from faultline.errors import InvalidArgument
from faultline.launcher import Server

_GRACE_SECONDS = 5.0  # of a worker that is about to be started anew

# What a handler prints is seen at once; and no bytecode is kept, because Python would not notice a
# second change within the same second.
_PYTHON = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def dev(
    app: Reference,
    queues: Queues = None,
    concurrency: Concurrency = 20,
    workers: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Worker processes; stall one, another takes over."),
    ] = 2,
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="N", help="The dashboard's; 0: a free one.")
    ] = 8001,
    log_level: Level = LogLevel.INFO,
) -> None:
    """Try an app: database, schema, workers that reload, and the dashboard.

    Starts the embedded server unless FAULTLINE_DATABASE_URL is set, migrates, and runs workers
    that start anew when a .py file below this directory changes. The dashboard can stall one of
    them, to show what happens then. Ctrl-C ends what it started; the data stays.

    \b
    Example:
      faultline dev app:app
    """
    command = [
        *(sys.executable, "-m", "faultline", "worker", app),
        *(f"--queues={name}" for name in split_names(queues)),
        *(f"--concurrency={concurrency}", f"--grace-seconds={_GRACE_SECONDS}"),
        f"--log-level={log_level}",
    ]
    settings = Settings.from_environment()
    with Reload(command, Path.cwd(), workers) as children, _database(settings) as words:
        typer.echo(f"database  {words}")
        typer.echo(f"schema    {bring_up_to_date(settings).removeprefix('schema ')}")
        with _dashboard(settings, children, port) as address:
            typer.echo(f"dashboard {address}")
            typer.echo(
                "try it    faultline enqueue TASK '{\"argument\": 1}'   (in another terminal)\n"
            )
            environment = {**os.environ, **_PYTHON, "FAULTLINE_DATABASE_URL": url(settings)}
            status = children.run(environment)
    raise typer.Exit(status)


@contextmanager
def _dashboard(settings: Settings, children: Reload, port: int) -> Iterator[str]:
    """Its address; or why there is none, which is no reason to stop."""
    try:
        from faultline.service import service
        from faultline.service.dashboard.stalling import Stalling
        from faultline.service.serving import beside, listen
    except ModuleNotFoundError as error:
        yield f"needs {error.name}: pip install 'faultline-queue[web]'"
        return
    web = service(
        App(url(settings), schema=settings.schema),
        token=settings.api_token,
        read_token=settings.api_read_token,
        stalling=Stalling(lambda: children.pids),
    )
    with ExitStack() as stack:
        try:
            address = stack.enter_context(beside(web, listen("127.0.0.1", port)))
        except InvalidArgument as error:
            yield f"none: {error}"
        else:
            yield f"{address}/dashboard"


@contextmanager
def _database(settings: Settings) -> Iterator[str]:
    """In words, which database it is; the embedded server ends here if it was started here."""
    if settings.database_url is not None:
        from faultline.connect import readable_url

        parts = readable_url(settings.database_url)
        where = f"{parts.get('host') or 'local socket'}:{parts.get('port') or 5432}"
        yield f"{where}/{parts.get('dbname') or ''} (FAULTLINE_DATABASE_URL)"
        return
    server = Server(settings.home, binaries=settings.binaries)
    ephemeral = Server(settings.home, binaries=settings.binaries, ephemeral=True)
    if ephemeral.is_running():
        server = ephemeral
    was_running = server.is_running()
    server.start()
    try:
        ends = "was running already" if was_running else "ends with this command"
        version = f"embedded PostgreSQL {server.binaries.version}"
        yield f"{version} on 127.0.0.1:{server.port}, {ends}"
    finally:
        if not was_running:
            server.stop()
