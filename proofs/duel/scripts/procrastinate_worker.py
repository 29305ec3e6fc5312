"""Procrastinate: heartbeats, and the periodic task for stalled jobs from its how-to guide."""

import logging
import sys

import handler
import procrastinate

logging.basicConfig(level=logging.INFO)
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=handler.URL))


@app.task(name="charge", pass_context=True)
def charge(context: procrastinate.JobContext) -> None:
    handler.handle(context.job.id)


@app.periodic(cron="* * * * * *")
@app.task(name="retry_stalled_jobs", queueing_lock="retry_stalled_jobs", pass_context=True)
async def retry_stalled_jobs(context: procrastinate.JobContext, timestamp: int) -> None:
    del timestamp
    manager = context.app.job_manager
    for job in await manager.get_stalled_jobs(seconds_since_heartbeat=2):
        await manager.retry_job(job)


def prepare() -> None:
    with app.open():
        app.schema_manager.apply_schema()
        charge.defer()


def work() -> None:
    handler.note("ready")
    app.run_worker(
        concurrency=1,
        fetch_job_polling_interval=0.5,
        update_heartbeat_interval=0.5,
        stalled_worker_timeout=60,
    )


if __name__ == "__main__":
    {"prepare": prepare, "work": work}[sys.argv[1]]()
