"""The app whose jobs are measured: handlers that do as little as their scenario allows."""

from __future__ import annotations

import asyncio
import os
import time

from faultline import App, Context

app = App()
_begun: list[int] = []  # the file that `probe` writes to, once it is open


@app.task
async def noop() -> None:
    """Nothing: what is left is what the queue costs."""


@app.task
def noop_sync() -> None:
    """Nothing, in a thread."""


@app.task
async def nap(ms: float) -> None:
    """Suspend, as a handler does that waits for somebody else."""
    await asyncio.sleep(ms / 1000)


@app.task(lease_seconds=30)
async def long() -> None:
    """Run until the worker is ended."""
    await asyncio.sleep(3600)


@app.task
def charge(ctx: Context, order: int) -> None:
    """One row of the user's own and the job's success, in one commit."""
    with ctx.transaction() as tx:
        tx.execute("insert into bench.charges (order_id) values (%s)", (order,))
        tx.complete()


@app.task
async def probe(n: int) -> None:
    """Write down when it began: its first line is the moment that counts."""
    began = time.time()
    if not _begun:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        _begun.append(os.open(os.environ["BENCH_BEGUN"], flags, 0o600))
    os.write(_begun[0], f"{n} {began!r}\n".encode())
