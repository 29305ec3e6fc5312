"""`faultline dev`: everything one needs to try an app, in one terminal.

The embedded server (unless FAULTLINE_DATABASE_URL names another), the schema, and a worker that
starts anew when the code changes. What this command started, it ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from faultline.cli.dev.reload import Reload
from faultline.cli.migrate import bring_up_to_date
from faultline.cli.worker import (
    Concurrency,
    Level,
    LogLevel,
    MetricsPort,
    Queues,
    Reference,
    split_names,
)
from faultline.config import Settings
from faultline.database import database_url as url
from faultline.launcher import Server

_GRACE_SECONDS = 5.0  # of a worker that is about to be started anew

# What a handler prints is seen at once; and no bytecode is kept, because Python would not notice a
# second change within the same second.
_PYTHON = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def dev(
    app: Reference,
    queues: Queues = None,
    concurrency: Concurrency = 20,
    metrics_port: MetricsPort = None,
    log_level: Level = LogLevel.INFO,
) -> None:
    """Try an app: database, schema, and a worker that reloads.

    Starts the embedded server unless FAULTLINE_DATABASE_URL is set, migrates, and runs a worker
    that starts anew when a .py file below this directory changes. Ctrl-C ends what it started; the
    data stays.

    \b
    Example:
      faultline dev app:app
    """
    command = [
        *(sys.executable, "-m", "faultline", "worker", app),
        *(f"--queues={name}" for name in split_names(queues)),
        *(f"--concurrency={concurrency}", f"--grace-seconds={_GRACE_SECONDS}"),
        f"--log-level={log_level}",
        *([] if metrics_port is None else [f"--metrics-port={metrics_port}"]),
    ]
    settings = Settings.from_environment()
    with Reload(command, Path.cwd()) as worker, _database(settings) as words:
        typer.echo(f"database  {words}")
        typer.echo(f"schema    {bring_up_to_date(settings).removeprefix('schema ')}")
        typer.echo("try it    faultline enqueue TASK '{\"argument\": 1}'   (in another terminal)\n")
        status = worker.run({**os.environ, **_PYTHON, "FAULTLINE_DATABASE_URL": url(settings)})
    raise typer.Exit(status)


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
