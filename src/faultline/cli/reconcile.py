"""`faultline reconcile`: take over expired leases and queue what is due, without being a worker.

Every worker does the same; this is for an installation whose workers are all away, and for scripts.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from faultline.cli import options
from faultline.cli.database import Installation, installation
from faultline.cli.display import plural, print_json
from faultline.cli.worker import MetricsHost, MetricsPort
from faultline.config import Settings
from faultline.database import database_url
from faultline.events import MetricsServed
from faultline.log import log_to

if TYPE_CHECKING:
    from faultline.events import Emit
    from faultline.observer import Observer


def reconcile(
    once: Annotated[bool, typer.Option("--once", help="Do what is due, say so, and end.")] = False,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    as_json: options.AsJson = False,
) -> None:
    """Take over expired leases and queue due jobs.

    Until Ctrl-C or SIGTERM; any number may run at once, beside any number of workers.

    \b
    Example:
      faultline reconcile
      faultline reconcile --once --json
    """
    with installation() as here:  # also says at once what is wrong with it
        if once:
            _once(here, as_json=as_json)
            return
        here.verbs.reconcile(0).run(here.conn)  # and whether this login may do it
    settings = Settings.from_environment()
    emit = log_to(sys.stdout, "json" if as_json else "text")
    import asyncio

    from faultline.telemetry import Telemetry

    telemetry = Telemetry()
    with ExitStack() as until_the_end:

        def begin() -> None:
            if metrics_port is not None:
                port = until_the_end.enter_context(telemetry.serving(metrics_host, metrics_port))
                emit(MetricsServed("reconciler", metrics_host, port))
            if not as_json:
                typer.echo("reconciling; Ctrl-C ends it")

        raise typer.Exit(asyncio.run(_until_a_signal(settings, emit, telemetry, begin)))


def _once(here: Installation, *, as_json: bool) -> None:
    """Round after round, until a round leaves nothing that is overdue."""
    reclaimed: list[str] = []
    promoted = 0
    while True:
        done = here.verbs.reconcile().run(here.conn)
        reclaimed += [job.state for job in done.reclaimed]
        promoted += done.promoted
        if not (done.reclaimed or done.promoted) or done.next_seconds != 0:
            break
    quarantined = reclaimed.count("quarantined")
    if as_json:
        facts = {"reclaimed": len(reclaimed), "quarantined": quarantined, "promoted": promoted}
        print_json({**facts, "next_seconds": done.next_seconds})
        return
    parked = f" ({quarantined} quarantined)" if quarantined else ""
    typer.echo(
        f"took over {plural(len(reclaimed), 'expired lease')}{parked}, "
        f"queued {plural(promoted, 'due job')}"
    )


async def _until_a_signal(
    settings: Settings, emit: Emit, observer: Observer, begin: Callable[[], None]
) -> int:
    import asyncio

    from faultline.worker.reconciler import reconcile_forever

    ended_by: list[int] = []

    def end(number: int) -> None:
        ended_by.append(number)
        forever.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end, number)
    begin()  # only now: whoever sees that it has begun may end it
    forever = asyncio.ensure_future(
        reconcile_forever(
            database_url(settings),
            settings.schema,
            emit,
            observer=observer,
        )
    )
    with suppress(asyncio.CancelledError):
        await forever
    return 130 if signal.SIGINT in ended_by else 0
