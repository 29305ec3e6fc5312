"""The app whose commits are cut, imported by real `faultline worker` processes: every shape in
which a handler can write a payment under its fence, each of which writes one.

`payment` has no key: a second row of a job stays, and is counted. Nobody but a handler writes it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool

from faultline import App, Backoff, Cancel, Context

TABLES = """
create table payment (job_id uuid, token bigint, shape text);
create table go (job_id uuid);
create table seen (job_id uuid, token bigint, note text);
grant select, insert on payment, go, seen to public;
"""
INSERT = "insert into payment values (%s, %s, %s)"
HURRIED_SECONDS = 5.0  # long enough to reach the COMMIT, however busy the machine is
SOON = Backoff(base=0, cap=0)

app = App()


def row(ctx: Context) -> tuple[Any, ...]:
    return (ctx.job_id, ctx.token, ctx.task)


def see(ctx: Context, note: str) -> None:
    with app.connect() as conn:
        conn.execute("insert into seen values (%s, %s, %s)", (ctx.job_id, ctx.token, note))


def may_go(ctx: Context) -> bool:
    with app.connect() as conn:
        asked = conn.execute("select exists (select from go where job_id = %s)", (ctx.job_id,))
        return asked.fetchone() == (True,)


# ── one commit ───────────────────────────────────────────────────────────────────────────────────


@app.task(retry=SOON)
def sync_complete(ctx: Context) -> None:
    with ctx.transaction() as tx:
        tx.execute(INSERT, row(ctx))
        tx.complete({"paid": True})


@app.task(retry=SOON)
async def async_complete(ctx: Context) -> None:
    async with ctx.transaction() as tx:
        await tx.execute(INSERT, row(ctx))
        tx.complete({"paid": True})


@app.task(retry=SOON, transactional=True)
def sync_whole(ctx: Context) -> dict[str, bool]:
    ctx.tx.execute(INSERT, row(ctx))
    return {"paid": True}


@app.task(retry=SOON, transactional=True)
async def async_whole(ctx: Context) -> dict[str, bool]:
    await ctx.tx.execute(INSERT, row(ctx))
    return {"paid": True}


# ── a commit, and then the end of the job ────────────────────────────────────────────────────────


@app.task(retry=SOON)
def sync_step(ctx: Context) -> dict[str, bool]:
    with ctx.transaction(step="pay") as tx:
        if not tx.done:
            tx.execute(INSERT, row(ctx))
            tx.record({"paid": True})
    return dict(tx.value)


@app.task(retry=SOON)
async def async_step(ctx: Context) -> dict[str, bool]:
    async with ctx.transaction(step="pay") as tx:
        if not tx.done:
            await tx.execute(INSERT, row(ctx))
            tx.record({"paid": True})
    return dict(tx.value)


@app.task(retry=SOON)
def sync_plain(ctx: Context) -> dict[str, bool]:
    with ctx.transaction() as tx:
        tx.execute(INSERT, row(ctx))
    return {"paid": True}


@app.task(retry=SOON)
async def async_plain(ctx: Context) -> dict[str, bool]:
    async with ctx.transaction() as tx:
        await tx.execute(INSERT, row(ctx))
    return {"paid": True}


# ── on a SQLAlchemy session ──────────────────────────────────────────────────────────────────────

_engines: dict[str, AsyncEngine] = {}


def _url(driver: str) -> str:
    return app.url.replace("postgresql://", f"postgresql+{driver}://")


def _statement(ctx: Context) -> Any:
    values = dict(zip(("job", "token", "shape"), row(ctx), strict=True))
    return text("insert into payment values (:job, :token, :shape)").bindparams(**values)


@app.task(retry=SOON)
def sync_session(ctx: Context) -> None:
    engine = create_engine(_url("psycopg"), poolclass=NullPool)
    with ctx.session(sessionmaker(engine)) as session:
        session.execute(_statement(ctx))
        session.complete({"paid": True})


async def _in_session(ctx: Context, driver: str, step: str | None) -> None:
    engine = _engines.setdefault(driver, create_async_engine(_url(driver), pool_size=20))
    async with ctx.session(async_sessionmaker(engine), step=step) as session:
        if not session.done:
            await session.execute(_statement(ctx))
        session.complete({"paid": True})


@app.task(retry=SOON)
async def async_session(ctx: Context) -> None:
    await _in_session(ctx, "psycopg", None)


@app.task(retry=SOON)
async def asyncpg_session(ctx: Context) -> None:
    await _in_session(ctx, "asyncpg", "pay")


# ── told to stop while it commits ────────────────────────────────────────────────────────────────


@app.task(retry=SOON, timeout_seconds=HURRIED_SECONDS, max_attempts=1)
def sync_hurried(ctx: Context) -> None:
    with ctx.transaction() as tx:
        tx.execute(INSERT, row(ctx))
        tx.complete({"paid": True})


@app.task(retry=SOON, timeout_seconds=HURRIED_SECONDS, max_attempts=1)
async def async_hurried(ctx: Context) -> None:
    async with ctx.transaction() as tx:
        await tx.execute(INSERT, row(ctx))
        tx.complete({"paid": True})


@app.task(lease_seconds=4)
def sync_brief(ctx: Context) -> None:
    with ctx.transaction() as tx:
        tx.execute(INSERT, row(ctx))
        tx.complete({"paid": True})


@app.task(lease_seconds=4)
async def async_brief(ctx: Context) -> None:
    async with ctx.transaction() as tx:
        await tx.execute(INSERT, row(ctx))
        tx.complete({"paid": True})


@app.task
def sync_watched(ctx: Context) -> None:
    """Says when it is told to stop, whatever its transaction is doing."""
    with _watching(ctx), ctx.transaction() as tx:
        tx.execute(INSERT, row(ctx))
        tx.complete({"paid": True})


@app.task
async def async_watched(ctx: Context) -> None:
    with _watching(ctx):
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, row(ctx))
            tx.complete({"paid": True})


@app.task
def sync_obedient(ctx: Context) -> None:
    with _watching(ctx), ctx.transaction(step="pay") as tx:
        tx.execute(INSERT, row(ctx))
    if ctx.cancelled:
        raise Cancel(ctx.cancel_reason)


@app.task
async def async_obedient(ctx: Context) -> None:
    with _watching(ctx):
        async with ctx.transaction(step="pay") as tx:
            await tx.execute(INSERT, row(ctx))
    await asyncio.sleep(3600)


@contextmanager
def _watching(ctx: Context) -> Iterator[None]:
    over = threading.Event()

    def watch() -> None:
        while not (ctx.cancelled or over.wait(0.01)):
            pass
        if ctx.cancelled:
            see(ctx, "cancelled")

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()


@app.task(lease_seconds=12)
def goes_on_after_completing(ctx: Context) -> None:
    with ctx.transaction() as tx:
        tx.execute(INSERT, row(ctx))
        tx.complete({"paid": True})
    see(ctx, "completed")
    while not may_go(ctx) and not ctx.cancelled:
        time.sleep(0.01)


@app.task(timeout_seconds=HURRIED_SECONDS)
async def blocks_after_completing(ctx: Context) -> None:
    async with ctx.transaction() as tx:
        await tx.execute(INSERT, row(ctx))
        tx.complete({"paid": True})
    while True:
        time.sleep(0.05)


# ── connections ──────────────────────────────────────────────────────────────────────────────────


@app.task(lease_seconds=6)
def sync_keeps_its_connection(ctx: Context) -> None:
    keep(ctx)


@app.task(lease_seconds=6)
async def async_keeps_its_connection(ctx: Context) -> None:
    await akeep(ctx)


def keep(ctx: Context) -> None:
    """Stay inside a transaction until the test says go."""
    with ctx.transaction() as tx:
        tx.execute(INSERT, row(ctx))
        see(ctx, f"inside {tx.connection.info.backend_pid}")
        while not may_go(ctx):
            time.sleep(0.02)


async def akeep(ctx: Context) -> None:
    async with ctx.transaction() as tx:
        await tx.execute(INSERT, row(ctx))
        await asyncio.to_thread(see, ctx, f"inside {tx.connection.info.backend_pid}")
        while not await asyncio.to_thread(may_go, ctx):
            await asyncio.sleep(0.02)
