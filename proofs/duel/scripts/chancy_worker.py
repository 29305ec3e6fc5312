"""Chancy: its default plugins with the shortest whole seconds they take."""

import asyncio
import sys

import handler
from chancy import Chancy, Queue, QueuedJob, Worker, job
from chancy.plugins.leadership import Leadership
from chancy.plugins.recovery import Recovery


@job()
def charge(*, context: QueuedJob) -> None:
    handler.handle(context.id)


def chancy() -> Chancy:
    plugins = [Leadership(poll_interval=1, timeout=2), Recovery(poll_interval=1)]
    return Chancy(handler.URL, plugins=plugins)


async def prepare() -> None:
    async with chancy() as app:
        await app.migrate()
        await app.declare(Queue("default", concurrency=1, polling_interval=1))
        await app.push(charge)


async def work() -> None:
    async with chancy() as app:
        handler.note("ready")
        async with Worker(app, heartbeat_poll_interval=1, heartbeat_timeout=3) as worker:
            await worker.wait_for_shutdown()


if __name__ == "__main__":
    asyncio.run({"prepare": prepare, "work": work}[sys.argv[1]]())
