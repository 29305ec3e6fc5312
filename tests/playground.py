"""The app that the worker tests run, imported by real `faultline worker` processes.

A handler says where it is by a row in `mark`, and waits for a row in `go` where a test wants to
hold it: order comes from the database, never from time. `effect` is the business table; nobody but
a handler writes it. FAULTLINE_DATABASE_URL says where all this is.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from typing import Any
from uuid import UUID

import psycopg

from faultline import App, Backoff, Cancel, Context, Retry, Snooze, assert_fence

TABLES = """
create table mark (job_id uuid, token bigint, note text, at timestamptz default clock_timestamp());
create table go (job_id uuid, token bigint);
create table effect (job_id uuid, token bigint, note text);
grant select, insert on mark, go, effect to public;
"""

GIVEN_UP_SECONDS = 5.0  # not before the handler is inside, however busy the machine is

app = App()


def _connect() -> psycopg.Connection[Any]:
    return app.connect()


MARK = "insert into mark (job_id, token, note) values (%s, %s, %s)"


def mark(job_id: UUID, token: int, note: str) -> None:
    with _connect() as conn:
        conn.execute(MARK, (job_id, token, note))


def may_go(conn: psycopg.Connection[Any], ctx: Context) -> bool:
    """Whether a test lets this attempt go on; any token after the first goes at once."""
    asked = conn.execute(
        "select exists (select from go where job_id = %s and token = %s)", (ctx.job_id, ctx.token)
    )
    return asked.fetchone() == (True,)


def hold(ctx: Context) -> None:
    """Wait, blocking, until the test says go. It is inside when its connection is there: stopped
    while it connects, it would meet the limit of that when it goes on."""
    with _connect() as conn:
        conn.execute(MARK, (ctx.job_id, ctx.token, "in"))
        while not may_go(conn, ctx):
            time.sleep(0.01)


async def ahold(ctx: Context) -> None:
    """Wait on the event loop until the test says go."""
    with _connect() as conn:
        conn.execute(MARK, (ctx.job_id, ctx.token, "in"))
        while not may_go(conn, ctx):
            await asyncio.sleep(0.01)


def write_effect(ctx: Context, note: str) -> None:
    """A fenced business write."""
    with _connect() as conn, conn.transaction():
        conn.execute("insert into effect values (%s, %s, %s)", (ctx.job_id, ctx.token, note))
        assert_fence(conn, ctx.job_id, ctx.token)


# ── the duel ─────────────────────────────────────────────────────────────────────────────────────


@app.task(lease_seconds=1)
async def duel_async(ctx: Context) -> str:
    await ahold(ctx)
    write_effect(ctx, "async")
    return f"token {ctx.token}"


@app.task(lease_seconds=1)
def duel_sync(ctx: Context) -> str:
    hold(ctx)
    write_effect(ctx, "sync")
    return f"token {ctx.token}"


@app.task(lease_seconds=1)
async def duel_blocking(ctx: Context) -> str:
    hold(ctx)  # blocks the worker's loop
    write_effect(ctx, "blocking")
    return f"token {ctx.token}"


@app.task(lease_seconds=1)
def duel_raises(ctx: Context) -> str:
    hold(ctx)
    if ctx.token == 1:
        raise ValueError("late")
    write_effect(ctx, "raises")
    return f"token {ctx.token}"


@app.task(lease_seconds=1)
def duel_returns(ctx: Context) -> str:
    hold(ctx)
    if ctx.token > 1:
        write_effect(ctx, "returns")
    return f"token {ctx.token}"


# ── everyday ─────────────────────────────────────────────────────────────────────────────────────


@app.task
async def add(a: int, b: int) -> int:
    return a + b


@app.task
def add_sync(a: int, b: int) -> int:
    return a + b


@app.task(lease_seconds=1)
async def held(ctx: Context) -> str:
    await ahold(ctx)
    return f"token {ctx.token}"


@app.task(lease_seconds=1)
def held_sync(ctx: Context) -> str:
    hold(ctx)
    return f"token {ctx.token}"


@app.task(lease_seconds=1)
async def blocks_the_loop(ctx: Context, seconds: float) -> str:
    time.sleep(seconds)
    return f"token {ctx.token}"


@app.task(lease_seconds=30)
async def held_long(ctx: Context) -> str:
    await ahold(ctx)
    return f"token {ctx.token}"


@app.task(lease_seconds=3)
async def effect_once(ctx: Context, number: int) -> int:
    """Some work, and a fenced write."""
    await asyncio.sleep(0.02)
    await asyncio.to_thread(write_effect, ctx, str(number))
    return number


@app.task(lease_seconds=3)
async def stays(ctx: Context) -> str:
    """Needs no database, and ends only when it is told to; a second attempt ends at once."""
    if ctx.token == 1:
        await asyncio.Event().wait()
    return f"token {ctx.token}"


# ── how handlers end ─────────────────────────────────────────────────────────────────────────────


@app.task(max_attempts=2, retry=Backoff(base=0, cap=0))
async def fails(message: str) -> None:
    raise ValueError(message)


@app.task(max_attempts=3)
async def asks_to_retry(ctx: Context) -> int:
    if ctx.attempt < 3:
        raise Retry(after=0)
    return ctx.attempt


@app.task(max_attempts=1)
async def snoozes(ctx: Context) -> int:
    if ctx.token < 3:
        raise Snooze(0)
    return ctx.attempt


@app.task
async def cancels_itself() -> None:
    raise Cancel("not wanted any more")


@app.task
async def not_json() -> Any:
    return object()


@app.task
async def exits() -> None:
    sys.exit(3)


@app.task(timeout_seconds=0.2, max_attempts=1, lease_seconds=30)
async def too_slow(ctx: Context) -> None:
    await asyncio.sleep(3600)


@app.task(timeout_seconds=0.2, max_attempts=1, lease_seconds=30)
def never_returns(ctx: Context) -> None:
    while True:
        time.sleep(0.05)


@app.task(timeout_seconds=0.2, max_attempts=1, lease_seconds=30)
async def never_returns_and_blocks(ctx: Context) -> None:
    while True:
        time.sleep(0.05)


@app.task(lease_seconds=30)
async def blocks_when_told(ctx: Context, snooze: bool = False) -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        hold(ctx)
        if snooze:
            raise Snooze(3600) from None
        raise


@app.task(lease_seconds=30)
def stops_when_told(ctx: Context) -> None:
    mark(ctx.job_id, ctx.token, "in")
    while not ctx.cancelled:
        time.sleep(0.01)
    raise Cancel(f"told: {ctx.cancel_reason}")


@app.task(lease_seconds=30)
async def reports(ctx: Context) -> None:
    ctx.progress({"done": 3})
    await ahold(ctx)


@app.task(lease_seconds=30)
def kills_its_process(ctx: Context) -> None:
    mark(ctx.job_id, ctx.token, f"pid {os.getpid()}")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(lease_seconds=30)
async def neighbour(ctx: Context) -> str:
    """Runs until a test says go, in whatever process, under whatever token."""
    mark(ctx.job_id, ctx.token, f"pid {os.getpid()}")
    with _connect() as conn:
        ask = "select exists (select from go where job_id = %s)"
        while conn.execute(ask, (ctx.job_id,)).fetchone() != (True,):
            await asyncio.sleep(0.02)
    return f"token {ctx.token}"


@app.task(lease_seconds=3)
async def rests() -> None:
    """One of thousands: waits with all the others for one sign."""
    await _sign()


@app.task
def enqueues_another() -> str:
    return str(add.enqueue(a=1, b=1).id)


_waiting: asyncio.Task[None] | None = None


async def _sign() -> None:
    """One question to the database for all who wait."""
    global _waiting
    if _waiting is None:
        _waiting = asyncio.create_task(_ask_for_sign())
    await asyncio.shield(_waiting)


async def _ask_for_sign() -> None:
    async with await psycopg.AsyncConnection.connect(app.url, autocommit=True) as conn:
        while True:
            asked = await conn.execute("select exists (select from go where token = 0)")
            if await asked.fetchone() == (True,):
                return
            await asyncio.sleep(0.05)


@app.task(lease_seconds=1)
def inside_a_transaction(ctx: Context) -> str:
    """Is told while the server works for it, in a fenced transaction."""
    with ctx.transaction() as tx:
        tx.execute("insert into effect values (%s, %s, 'late')", (ctx.job_id, ctx.token))
        if ctx.token == 1:
            mark(ctx.job_id, ctx.token, "in")
            try:
                tx.execute("select pg_sleep(3600)")
            except psycopg.OperationalError:
                mark(ctx.job_id, ctx.token, "cut off")
                raise
    return f"token {ctx.token}"


@app.task(lease_seconds=1)
async def inside_an_async_transaction(ctx: Context) -> str:
    async with ctx.transaction() as tx:
        await tx.execute("insert into effect values (%s, %s, 'late')", (ctx.job_id, ctx.token))
        if ctx.token == 1:
            await ahold(ctx)
    return f"token {ctx.token}"


@app.task(lease_seconds=1)
def savepoint(ctx: Context, fail: bool = False) -> str:
    """A block of its own inside the fenced transaction; the first attempt is held inside."""
    with ctx.transaction() as tx:
        with tx.connection.transaction():
            tx.execute("insert into effect values (%s, %s, 'inner')", (ctx.job_id, ctx.token))
        if fail:
            raise ValueError("after the inner block")
        if ctx.token == 1:
            hold(ctx)
    return f"token {ctx.token}"


@app.task
def ends_its_transaction(ctx: Context) -> None:
    with ctx.transaction() as tx:
        tx.execute("commit")


@app.task(timeout_seconds=0.2, max_attempts=1)
def returns_too_late(ctx: Context) -> str:
    while not ctx.cancelled:
        time.sleep(0.01)
    return "done"


@app.task
async def leaves_a_thread(ctx: Context) -> None:
    mark(ctx.job_id, ctx.token, "in")
    await asyncio.to_thread(time.sleep, 3600)


@app.task(lease_seconds=30)
def exits_at_once(ctx: Context) -> None:
    mark(ctx.job_id, ctx.token, f"pid {os.getpid()}")
    os._exit(0)


_forgotten: list[psycopg.Connection[Any]] = []


@app.task(lease_seconds=30)
def forgets_to_commit(ctx: Context) -> None:
    """Passes the gate on a connection of its own, and leaves that open."""
    conn = psycopg.connect(app.url)
    _forgotten.append(conn)
    ctx.assert_fence(conn)
    conn.execute("set application_name = 'forgotten'")  # what the tests wait for


@app.task(timeout_seconds=GIVEN_UP_SECONDS, max_attempts=1, lease_seconds=30)
def goes_on_when_given_up(ctx: Context) -> None:
    with ctx.transaction() as tx:
        tx.execute("insert into effect values (%s, %s, 'late')", (ctx.job_id, ctx.token))
        hold(ctx)


@app.task(timeout_seconds=GIVEN_UP_SECONDS, max_attempts=1, lease_seconds=30)
async def goes_on_when_given_up_async(ctx: Context) -> None:
    async with ctx.transaction() as tx:
        await tx.execute("insert into effect values (%s, %s, 'late')", (ctx.job_id, ctx.token))
        with suppress(asyncio.CancelledError):
            await ahold(ctx)
        await ahold(ctx)
