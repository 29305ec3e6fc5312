"""PGQueuer on asyncpg: batches of 500, the rest by its defaults."""

import time

import asyncpg
import job
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job


async def driver() -> AsyncpgDriver:
    return AsyncpgDriver(await asyncpg.connect(job.URL))


async def prepare() -> None:
    await Queries(await driver()).install()


async def enqueue(jobs: int) -> None:
    queries = Queries(await driver())
    started = time.perf_counter()
    for numbers in job.calls(jobs):
        payloads = [str(n).encode() for n in numbers]
        count = len(payloads)
        await queries.enqueue(["noop"] * count, payloads, [0] * count)
    job.tell(started)


async def trickle(start: int, count: int, per_second: int) -> None:
    queries = Queries(await driver())
    await job.atrickle(
        start, count, per_second, lambda n: queries.enqueue("probe", str(n).encode())
    )


async def work() -> None:
    queue = PgQueuer(await driver())

    @queue.entrypoint("noop")
    async def noop(_: Job) -> None:
        job.first()

    @queue.entrypoint("probe")
    async def probe(one: Job) -> None:
        job.begin(int(one.payload or b"0"))

    await queue.run(batch_size=500)


if __name__ == "__main__":
    job.main(prepare=prepare, enqueue=enqueue, trickle=trickle, work=work)
