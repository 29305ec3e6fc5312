"""Faultline: `faultline worker` with its defaults; enqueued by a user who is only a producer."""

import os
import secrets
import sys
import time
from urllib.parse import urlsplit, urlunsplit

import job

from faultline import App
from faultline.connect import connect
from faultline.migrate import migrate

WORKERS = os.environ["BENCH_WORKERS"]
VARIANT = os.environ["BENCH_VARIANT"]


def _url(role: str) -> str:
    file = job.FOLDER / f"url.{role}"
    return file.read_text() if file.exists() else job.URL


app = App(_url(os.environ.get("BENCH_ROLE", "producer")), schema="faultline")

if VARIANT == "sync":

    @app.task
    def noop(n: int) -> None:  # noqa: ARG001
        job.first()

else:

    @app.task
    async def noop(n: int) -> None:  # noqa: ARG001
        job.first()


@app.task
async def probe(n: int) -> None:
    job.begin(n)


def prepare() -> None:
    parts = urlsplit(job.URL)
    with connect(job.URL, schema=None) as conn:
        migrate(conn, "faultline")
        for role in ("worker", "producer"):
            # Named for the database, so that whoever drops that finds them.
            name, password = f"{parts.path[1:]}_{role}", secrets.token_hex(8)
            conn.execute(f"create role {name} login password '{password}' in role faultline_{role}")
            netloc = f"{name}:{password}@{parts.netloc.rpartition('@')[2]}"
            (job.FOLDER / f"url.{role}").write_text(urlunsplit(parts._replace(netloc=netloc)))


def enqueue(jobs: int) -> None:
    noop.options(queue="unused").enqueue(0)  # connected
    started = time.perf_counter()
    for numbers in job.calls(jobs):
        noop.enqueue_many([{"n": n} for n in numbers])
    job.tell(started)


def trickle(start: int, count: int, per_second: int) -> None:
    job.trickle(start, count, per_second, lambda n: probe.enqueue(n))


def work() -> None:
    environment = {**os.environ, "BENCH_ROLE": "worker"}
    command = ["-m", "faultline", "worker", f"{__file__}:app", "--processes", WORKERS]
    os.execve(sys.executable, [sys.executable, *command], environment)


if __name__ == "__main__":
    job.main(prepare=prepare, enqueue=enqueue, trickle=trickle, work=work)
