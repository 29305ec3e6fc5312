"""Chancy: the asyncio executor, 100 at once, eager polling, which it advises for full queues."""

import time

import job as bench
from chancy import Chancy, Queue, Worker, job
from chancy.plugins.leadership import Leadership
from chancy.plugins.recovery import Recovery

QUEUE = Queue(
    "default",
    concurrency=100,
    executor="chancy.executors.asyncex.AsyncExecutor",
    polling_interval=1,
    eager_polling=True,
)


@job()
async def noop(*, n: int) -> None:  # noqa: ARG001
    bench.first()


@job()
async def probe(*, n: int) -> None:
    bench.begin(n)


def chancy() -> Chancy:
    return Chancy(bench.URL, plugins=[Leadership(), Recovery()])


async def prepare() -> None:
    async with chancy() as app:
        await app.migrate()
        await app.declare(QUEUE)


async def enqueue(jobs: int) -> None:
    async with chancy() as app:
        started = time.perf_counter()
        many = [noop.job.with_kwargs(n=n) for n in range(jobs)]
        async for _ in app.push_many(many):
            pass
        bench.tell(started)


async def trickle(start: int, count: int, per_second: int) -> None:
    async with chancy() as app:
        await bench.atrickle(
            start, count, per_second, lambda n: app.push(probe.job.with_kwargs(n=n))
        )


async def work() -> None:
    async with chancy() as app, Worker(app) as worker:
        await worker.wait_for_shutdown()


if __name__ == "__main__":
    bench.main(prepare=prepare, enqueue=enqueue, trickle=trickle, work=work)
