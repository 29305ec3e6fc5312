"""The app of old and new workers: one row for each job, with its success in one commit.

Run as a program it is a producer: it enqueues until its input ends, and prints each id that was
accepted. It uses only what every version of the package has.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from faultline import App, Context

QUEUE = "upgrade"
LEASE_SECONDS = 2.0
BETWEEN_SECONDS = 0.05  # two orders of a producer
SETUP = """
create schema faultline_upgrade;
create table faultline_upgrade.begun (job_id uuid, pid int);
create table faultline_upgrade.effect (job_id uuid, token bigint, pid int);
create table faultline_upgrade.gate (is_open boolean);
"""

app = App()


@app.task(queue=QUEUE, lease_seconds=LEASE_SECONDS, max_attempts=20, max_crashes=20)
def work(ctx: Context, held: bool = False) -> None:
    """A held job does not end before the gate is open."""
    facts = (ctx.job_id, os.getpid())
    with app.connect() as conn:
        conn.execute("insert into faultline_upgrade.begun values (%s, %s)", facts)
        while held and not conn.execute("select from faultline_upgrade.gate").fetchall():
            time.sleep(0.02)
    with ctx.transaction() as tx:
        tx.execute(
            "insert into faultline_upgrade.effect values (%s, %s, %s)",
            (ctx.job_id, ctx.token, os.getpid()),
        )
        tx.complete()


def produce() -> None:
    """One order after the other, until nobody wants any more."""
    over = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=listen, daemon=True).start()
    while not over.wait(BETWEEN_SECONDS):
        print(work.enqueue().id, flush=True)


if __name__ == "__main__":
    produce()
