"""Procrastinate: async handlers, 20 at once, the rest by its defaults."""

import time

import job
import procrastinate

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=job.URL))


@app.task(name="noop")
async def noop(n: int) -> None:  # noqa: ARG001
    job.first()


@app.task(name="probe")
async def probe(n: int) -> None:
    job.begin(n)


def prepare() -> None:
    with app.open():
        app.schema_manager.apply_schema()


async def enqueue(jobs: int) -> None:
    async with app.open_async():
        started = time.perf_counter()
        for numbers in job.calls(jobs):
            await noop.batch_defer_async(*({"n": n} for n in numbers))
        job.tell(started)


async def trickle(start: int, count: int, per_second: int) -> None:
    async with app.open_async():
        await job.atrickle(start, count, per_second, lambda n: probe.defer_async(n=n))


def work() -> None:
    app.run_worker(concurrency=20)


if __name__ == "__main__":
    job.main(prepare=prepare, enqueue=enqueue, trickle=trickle, work=work)
