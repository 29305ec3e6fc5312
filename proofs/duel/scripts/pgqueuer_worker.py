"""PGQueuer: a blocking function in a thread, as its error message for one advises."""

import asyncio
import logging
import sys
from datetime import timedelta

import asyncpg
import handler
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job

logging.basicConfig(level=logging.INFO)


async def driver() -> AsyncpgDriver:
    return AsyncpgDriver(await asyncpg.connect(handler.URL))


async def prepare() -> None:
    queries = Queries(await driver())
    await queries.install()
    await queries.enqueue("charge", None)


async def work() -> None:
    queue = PgQueuer(await driver())

    @queue.entrypoint("charge", concurrency_limit=0)
    async def charge(job: Job) -> None:
        await asyncio.to_thread(handler.handle, job.id)

    handler.note("ready")
    await queue.run(
        heartbeat_timeout=timedelta(seconds=2), dequeue_timeout=timedelta(seconds=0.5), batch_size=1
    )


if __name__ == "__main__":
    asyncio.run({"prepare": prepare, "work": work}[sys.argv[1]]())
