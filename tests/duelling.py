"""The app of the duel over the handlers' own writes, imported by real `faultline worker` processes.

A handler is told by its payload which shape to have and where to stall: `before` it opens its
transaction, `opened`, `written`, or `checked`, between its own gate and its commit. Only the first
attempt stalls, until there is a row in `go`; then it goes on, whatever it was told meanwhile.
`effect` and `guarded` are the business tables: whoever writes to the latter needs a fence.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from faultline import App, Context, Message, StaleLease
from tests.playground import MARK

TABLES = """
create table guarded (job_id uuid, token bigint, note text);
create table delivery (job_id uuid, token bigint, key text);
grant select, insert on guarded, delivery to public;
"""
LATE = (StaleLease, psycopg.Error)  # what a careless handler swallows; a cut connection, too

app = App()


# ── stalling ─────────────────────────────────────────────────────────────────────────────────────

_go = threading.Event()
_asking = threading.Lock()
_connected = threading.Event()
_marking = threading.Lock()
_marks: list[psycopg.Connection[Any]] = []  # one for all: fifty at once take a busy machine seconds


def _ask() -> None:
    """One question to the database for all who wait in this process."""
    with app.connect() as conn:
        _marks.append(app.connect())
        _connected.set()
        while conn.execute("select exists (select from go)").fetchone() != (True,):
            time.sleep(0.01)
    _go.set()


def _inside(ctx: Context) -> None:
    """Not before somebody can ask: who is stopped while connecting has no connection afterwards."""
    if _asking.acquire(blocking=False):
        threading.Thread(target=_ask, daemon=True).start()
    _connected.wait()
    with _marking:
        _marks[0].execute(MARK, (ctx.job_id, ctx.token, "in"))


def hold(ctx: Context, here: bool) -> None:
    if here and ctx.token == 1:
        _inside(ctx)
        _go.wait()


async def ahold(ctx: Context, here: bool) -> None:
    if here and ctx.token == 1:
        _inside(ctx)
        while not _go.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue  # it was told to stop, and does not care


def row(ctx: Context) -> tuple[Any, ...]:
    return (ctx.job_id, ctx.token, ctx.task)


def insert(table: str) -> str:
    return f"insert into {table} values (%s, %s, %s)"


# ── ctx.transaction() ────────────────────────────────────────────────────────────────────────────


@app.task
def fenced(
    ctx: Context,
    stall: str,
    complete: bool = False,
    emit: bool = False,
    step: str | None = None,
    swallow: bool = False,
) -> int:
    try:
        hold(ctx, stall == "before")
        with ctx.transaction(step=step) as tx:
            hold(ctx, stall == "opened")
            tx.execute(insert("effect"), row(ctx))
            if emit:
                tx.emit("receipts", {"by": ctx.token})
            hold(ctx, stall == "written")
            if step is not None:
                tx.record(ctx.token)
            if complete:
                tx.complete(ctx.token)
    except LATE:
        if not swallow:
            raise
    return ctx.token


@app.task
async def fenced_async(
    ctx: Context,
    stall: str,
    complete: bool = False,
    emit: bool = False,
    step: str | None = None,
    swallow: bool = False,
) -> int:
    try:
        await ahold(ctx, stall == "before")
        async with ctx.transaction(step=step) as tx:
            await ahold(ctx, stall == "opened")
            await tx.execute(insert("effect"), row(ctx))
            if emit:
                tx.emit("receipts", {"by": ctx.token})
            await ahold(ctx, stall == "written")
            if step is not None:
                tx.record(ctx.token)
            if complete:
                tx.complete(ctx.token)
    except LATE:
        if not swallow:
            raise
    return ctx.token


@app.relay("receipts")
def send(message: Message) -> None:
    """At least once: the table has every delivery."""
    with app.connect() as conn:
        conn.execute(insert("delivery"), (message.job_id, message.token, message.key))


@app.task(transactional=True)
def whole(ctx: Context, stall: str) -> int:
    hold(ctx, stall == "opened")
    ctx.tx.execute(insert("effect"), row(ctx))
    hold(ctx, stall == "written")
    return ctx.token


@app.task(transactional=True)
async def whole_async(ctx: Context, stall: str) -> int:
    await ahold(ctx, stall == "opened")
    await ctx.tx.execute(insert("effect"), row(ctx))
    await ahold(ctx, stall == "written")
    return ctx.token


# ── ctx.session(): SQLAlchemy with psycopg, and with asyncpg ─────────────────────────────────────

STATEMENT = text("insert into effect values (:job_id, :token, :note)")


def _engine_url(driver: str) -> str:
    return app.url.replace("postgresql://", f"postgresql+{driver}://")


def _values(ctx: Context) -> dict[str, Any]:
    return dict(zip(("job_id", "token", "note"), row(ctx), strict=True))


@app.task
def session(ctx: Context, stall: str, complete: bool = False) -> int:
    engine = create_engine(_engine_url("psycopg"), poolclass=NullPool)
    hold(ctx, stall == "before")
    with ctx.session(lambda: Session(engine)) as tx:
        hold(ctx, stall == "opened")
        tx.execute(STATEMENT, _values(ctx))
        hold(ctx, stall == "written")
        if complete:
            tx.complete(ctx.token)
    return ctx.token


@app.task
async def session_async(ctx: Context, stall: str, complete: bool = False) -> int:
    engine = create_async_engine(_engine_url("asyncpg"), poolclass=NullPool)
    await ahold(ctx, stall == "before")
    async with ctx.session(lambda: AsyncSession(engine)) as tx:
        await ahold(ctx, stall == "opened")
        await tx.execute(STATEMENT, _values(ctx))
        await ahold(ctx, stall == "written")
        if complete:
            tx.complete(ctx.token)
    return ctx.token


# ── connections of the handler's own ─────────────────────────────────────────────────────────────


@app.task
def gate(ctx: Context, stall: str, swallow: bool = False) -> int:
    with psycopg.connect(app.url) as conn:
        hold(ctx, stall == "opened")
        conn.execute(insert("effect"), row(ctx))
        hold(ctx, stall == "written")
        try:
            ctx.assert_fence(conn)
        except StaleLease:
            if not swallow:
                raise  # else it commits what it has written, or so it thinks
        hold(ctx, stall == "checked")
        conn.commit()
    return ctx.token


@app.task
async def gate_async(ctx: Context, stall: str, swallow: bool = False) -> int:
    async with await psycopg.AsyncConnection.connect(app.url) as conn:
        await ahold(ctx, stall == "opened")
        await conn.execute(insert("effect"), row(ctx))
        await ahold(ctx, stall == "written")
        try:
            await ctx.assert_fence(conn)
        except StaleLease:
            if not swallow:
                raise
        await ahold(ctx, stall == "checked")
        await conn.commit()
    return ctx.token


@app.task
def guarded(ctx: Context, stall: str, forget: bool = False, swallow: bool = False) -> int:
    """The first attempt may forget the fence: then not even a worker that is not late can write."""
    try:
        with psycopg.connect(app.url) as conn:
            hold(ctx, stall == "before")
            if ctx.token > 1 or not forget:
                ctx.fence(conn)
            hold(ctx, stall == "opened")
            conn.execute(insert("guarded"), row(ctx))
            hold(ctx, stall == "written")
            conn.commit()
    except LATE:
        if not swallow:
            raise
    return ctx.token


@app.task
async def guarded_async(
    ctx: Context, stall: str, forget: bool = False, swallow: bool = False
) -> int:
    try:
        async with await psycopg.AsyncConnection.connect(app.url) as conn:
            await ahold(ctx, stall == "before")
            if ctx.token > 1 or not forget:
                await ctx.fence(conn)
            await ahold(ctx, stall == "opened")
            await conn.execute(insert("guarded"), row(ctx))
            await ahold(ctx, stall == "written")
            await conn.commit()
    except LATE:
        if not swallow:
            raise
    return ctx.token


@app.task
async def following() -> None:
    """What a worker does next."""
