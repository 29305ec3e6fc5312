"""Faultline: a blocking handler that writes in a fenced transaction, or on a plain connection."""

import os
import sys

import handler

from faultline import App, Context
from faultline.connect import connect
from faultline.migrate import migrate

app = App(handler.URL)


@app.task(lease_seconds=1.0)
def charge(ctx: Context) -> None:
    if handler.VARIANT == "plain":
        handler.handle(ctx.job_id)
        return
    with handler.noting_errors():
        handler.begin()
        with ctx.transaction() as tx:
            handler.at_the_write()
            tx.execute(handler.INSERT, handler.row(ctx.job_id))
        handler.note("wrote")


def prepare() -> None:
    with connect(handler.URL, schema=None) as conn:
        migrate(conn, "faultline")
    charge.enqueue()


def work() -> None:
    handler.note("ready")
    command = [sys.executable, "-m", "faultline", "worker", f"{__file__}:app", "--concurrency", "1"]
    os.execv(sys.executable, command)


if __name__ == "__main__":
    {"prepare": prepare, "work": work}[sys.argv[1]]()
