"""The naive lease queue: the row commits together with the job's completion, and nothing fences."""

import sys

import handler
import psycopg

from faultline.config import DEFAULT_SCHEMA
from faultline.demo.naive import SETUP, Job, Worker, at_home, enqueue


def charge(job: Job) -> None:
    with handler.noting_errors():
        handler.begin()
        with job.transaction() as tx:
            handler.at_the_write()
            tx.execute(handler.INSERT, handler.row(job.id))
            tx.complete()
        handler.note("wrote")


def prepare() -> None:
    with psycopg.connect(handler.URL, autocommit=True) as conn:
        conn.execute(at_home(SETUP, DEFAULT_SCHEMA))
        enqueue(conn, DEFAULT_SCHEMA, [{}])


def work() -> None:
    handler.note("ready")
    Worker(handler.URL, DEFAULT_SCHEMA, charge, concurrency=1, lease_seconds=1.0).run()


if __name__ == "__main__":
    {"prepare": prepare, "work": work}[sys.argv[1]]()
