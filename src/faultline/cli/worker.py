"""`faultline worker`: run an app's jobs until asked to stop."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from faultline.log import log_to

Reference = Annotated[
    str,
    typer.Argument(
        metavar="APP",
        help="Where the app is: module:attribute, or path/file.py:attribute.",
        show_default=False,
    ),
]
Queues = Annotated[
    list[str] | None,
    typer.Option(
        "--queues", "-q", metavar="NAMES", help="Which to serve; default: those the app names."
    ),
]
Concurrency = Annotated[
    int, typer.Option("--concurrency", "-c", min=1, metavar="N", help="Jobs at once.")
]
Grace = Annotated[
    float,
    typer.Option(min=0, metavar="SECONDS", help="How long SIGTERM waits for running jobs."),
]
Poll = Annotated[
    float,
    typer.Option(min=0.01, metavar="SECONDS", help="How often to look when nothing is announced."),
]
AllowEmpty = Annotated[
    bool, typer.Option("--allow-empty", help="Start also if the app has no task.")
]
MaxJobs = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="End after so many jobs; a child: start anew."),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(min=0, max=65535, metavar="N", help="Answer Prometheus and probes on this port."),
]
MetricsHost = Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen for it.")]


class LogForm(StrEnum):
    """How events are written."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """From which level on."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


Log = Annotated[LogForm, typer.Option("--log", help="How events are written.")]
Level = Annotated[LogLevel, typer.Option("--log-level", help="From which level on.")]


def worker(
    app: Reference,
    queues: Queues = None,
    concurrency: Concurrency = 20,
    transactions: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Fenced transactions at once; default: one for each job, at most 20.",
        ),
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, metavar="N", help="Processes, for more cores.")
    ] = 1,
    max_jobs: MaxJobs = None,
    grace_seconds: Grace = 30.0,
    poll_seconds: Poll = 1.0,
    allow_empty: AllowEmpty = False,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    log: Log = LogForm.TEXT,
    log_level: Level = LogLevel.INFO,
) -> None:
    """Run the jobs of an app.

    SIGTERM (or Ctrl-C) drains: nothing more is claimed, what runs may finish within the grace; a
    second one hands it back at once.

    \b
    Example:
      faultline worker app:app
      faultline worker shop/jobs.py:app --queues billing,mail --concurrency 50 --log json
      faultline worker app:app --processes 4 --metrics-port 9464
    """
    from faultline.reference import import_app
    from faultline.worker import WorkerOptions, run
    from faultline.worker.runner import leave

    options = WorkerOptions(
        queues=split_names(queues),
        concurrency=concurrency,
        transactions=transactions,
        processes=processes,
        max_jobs=max_jobs,
        grace_seconds=grace_seconds,
        poll_seconds=poll_seconds,
        allow_empty=allow_empty,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        log=log.value,
        log_level=log_level.value,
    )
    emit = log_to(sys.stdout, options.log, options.log_level)
    found = import_app(app)
    raise typer.Exit(leave(run(found, options, emit, reference=app), found.telemetry.flush))


def split_names(given: list[str] | None) -> tuple[str, ...]:
    """--queues a,b --queues c: three names, each once."""
    names = [name.strip() for group in given or () for name in group.split(",")]
    if "" in names:
        raise typer.BadParameter("a queue's name cannot be empty: say --queues billing,mail")
    return tuple(dict.fromkeys(names))
