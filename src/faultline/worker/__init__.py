"""The worker: claims jobs, runs their handlers, keeps their leases, settles their endings.

    claim → execute (renew …) → settle        each step one call of `faultline.protocol`

    worker       one process, put together; signals and draining
    pump         the main loop: settle what has ended, claim what there is room for, wait; beside:
                 its other connections, for hundreds of short jobs
    lanes        where it claims, in which order; lost: claims whose answer never came
    ahead        how many it claims before there is a place for them
    execution    runs handlers: on the loop, in threads (threads), or alone (alone); short ones one
                 after the other, in one task (relay) or one thread (stretch); calling: how
    unknown      what the log says of jobs whose task the worker does not know
    endings      what a handler did, as the verb that writes it
    settler      writes endings, in groups, each once
    attempt      one job in hand, and its deadline by the worker's own clock
    keeper       a thread of its own: renews leases, tells handlers to stop, says who the worker is
                 and which tasks it knows
    ears         hears of new work on the pump's own connection; prompt: the claim that a word sends
    reconciler   takes over what expired, promotes what is due; compacts, now and then
    retention    beside the reconciler: forgets what ended long ago
    session      a connection whose every call is bounded in time; outage: what to do without one;
                 limit: by when a worker that was hurried asks no more
    runner       the loop of a process of its own; forks: what a process that a handler forks keeps
    announcer    lets events out through a thread of their own
    parent       several processes; child: one of them; passing: what it observes goes up

Nothing here decides whether a write is accepted: the database does. The worker's clock only makes
it stop early.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from faultline.errors import InvalidArgument
from faultline.events import Emit, MetricsServed
from faultline.log import log_to
from faultline.reference import reference_of
from faultline.worker.child import Spec
from faultline.worker.forks import guarded
from faultline.worker.options import WorkerOptions, named
from faultline.worker.parent import Parent
from faultline.worker.runner import run_to_end
from faultline.worker.worker import Worker

if TYPE_CHECKING:
    from faultline.app import App

__all__ = ["Worker", "WorkerOptions", "arun", "run"]


def run(
    app: App,
    options: WorkerOptions | None = None,
    emit: Emit | None = None,
    *,
    reference: str | None = None,
) -> int:
    """Run a worker, or several processes of it, until SIGTERM or Ctrl-C; the exit status."""
    options = _checked(app, options)
    emit = emit or log_to(sys.stdout, options.log, options.log_level)
    with _served(app, options, emit):
        return _run(app, options, emit, reference)


def _checked(app: App, options: WorkerOptions | None) -> WorkerOptions:
    """Return the options, named. Raises InvalidArgument if the app has no task."""
    options = named(options or WorkerOptions())
    if not app.tasks and not options.allow_empty:
        raise InvalidArgument(
            "the app has no task: import the module that defines its tasks before the worker "
            "starts, or allow it with --allow-empty (in Python: allow_empty=True)"
        )
    return options


@contextmanager
def _served(app: App, options: WorkerOptions, emit: Emit) -> Iterator[None]:
    """With metrics for whoever scrapes them, if that is asked for."""
    if options.metrics_port is None:
        yield
        return
    with app.telemetry.serving(options.metrics_host, options.metrics_port) as port:
        emit(MetricsServed(str(options.name), options.metrics_host, port))
        yield


def _run(app: App, options: WorkerOptions, emit: Emit, reference: str | None) -> int:
    if options.processes == 1:
        return run_to_end(Worker(app, options, emit, reference=reference).main())
    reference = reference or reference_of(app)
    if reference is None:
        raise InvalidArgument(
            "several processes need an app that they can import: make it a global of a module, or "
            "run `faultline worker module:app --processes N`"
        )
    name = str(options.name)
    queues = options.queues or tuple(app.queues)
    spec = Spec(reference, replace(options, queues=queues, metrics_port=None))

    async def main() -> int:
        return await Parent(name, app.url, app.schema, spec, emit, app.telemetry).main()

    return run_to_end(main())


async def arun(app: App, options: WorkerOptions | None = None, emit: Emit | None = None) -> int:
    """Run a worker inside the caller's event loop; cancel it to end it."""
    options = _checked(app, options)
    if options.processes > 1:
        raise InvalidArgument("several processes need signals: use run_worker, or faultline worker")
    emit = emit or log_to(sys.stdout, options.log, options.log_level)
    with _served(app, options, emit), guarded(asyncio.get_running_loop(), is_process=False):
        worker = Worker(app, options, emit)
        worker.prepare()
        running = asyncio.ensure_future(worker.run())
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            worker.drain()
            worker.drain()
            await running
            raise
