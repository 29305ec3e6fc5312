"""Handlers that leave their fenced transactions in every way there is, imported by real workers.

`leaves` runs one of WAYS; what it raises ends its attempt, and the job is tried once.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import random
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from faultline import App, Context
from faultline.protocol import Protocol
from tests import paying

app = App()
Sync = Callable[[Context], None]
Async = Callable[[Context], Awaitable[None]]
SYNC: dict[str, Sync] = {}
ASYNC: dict[str, Async] = {}
KEPT: list[Any] = []  # what would else be closed as garbage
SLEEP = "select pg_sleep(3)"  # not for ever: until Python 3.12 wait_for may swallow a cancellation


def way(function: Callable[[Context], Any]) -> Callable[[Context], Any]:
    ways: dict[str, Any] = ASYNC if inspect.iscoroutinefunction(function) else SYNC
    ways[function.__name__] = function
    return function


@app.task(max_attempts=1)
def leaves(ctx: Context, way: str) -> None:
    SYNC[way](ctx)


@app.task(max_attempts=1)
async def aleaves(ctx: Context, way: str) -> None:
    await ASYNC[way](ctx)


@app.task
def keeps(ctx: Context) -> None:
    paying.keep(ctx)


@app.task
async def akeeps(ctx: Context) -> None:
    await paying.akeep(ctx)


@app.task
def threads() -> list[str]:
    gc.collect()  # psycopg leaves a connection whose opening was cancelled to the garbage
    return sorted(thread.name for thread in threading.enumerate())


def burn(ctx: Context) -> None:
    """The token is worth nothing from here on, though nobody says so to the handler."""
    with app.connect() as conn:
        Protocol(app.schema).cancel_attempt([(ctx.job_id, ctx.token)], "burnt").run(conn)


@way
def raises(ctx: Context) -> None:
    with ctx.transaction():
        raise ValueError("inside")


@way
def exits(ctx: Context) -> None:
    with ctx.transaction():
        raise SystemExit


@way
def goes_on_after_an_error(ctx: Context) -> None:
    with ctx.transaction() as tx:
        try:
            tx.execute("select nonsense")
        except Exception:
            tx.execute("select 1")


@way
def ignores_an_error(ctx: Context) -> None:
    with ctx.transaction(step="one") as tx:
        try:
            tx.execute("select nonsense")
        except Exception:
            tx.complete()


@way
def is_stale_on_leaving(ctx: Context) -> None:
    with ctx.transaction() as tx:
        burn(ctx)
        tx.complete()


@way
def is_stale_on_entering(ctx: Context) -> None:
    burn(ctx)
    with ctx.transaction():
        pass


@way
def is_stale_with_a_snapshot(ctx: Context) -> None:
    with ctx.transaction(isolation="serializable") as tx:
        tx.execute("select 1")
        burn(ctx)


@way
def commits(ctx: Context) -> None:
    with ctx.transaction() as tx:
        tx.connection.commit()


@way
def says_commit(ctx: Context) -> None:
    with ctx.transaction() as tx:
        tx.execute("commit")


@way
def closes(ctx: Context) -> None:
    with ctx.transaction() as tx:
        tx.connection.close()


@way
def is_cut(ctx: Context) -> None:
    with ctx.transaction() as tx:
        tx.execute("select pg_terminate_backend(pg_backend_pid())")


@way
def leaves_a_savepoint_open(ctx: Context) -> None:
    with ctx.transaction() as tx:
        KEPT.append(tx.connection.transaction())
        KEPT[-1].__enter__()


@way
def leaves_a_pipeline_open(ctx: Context) -> None:
    with ctx.transaction() as tx:
        KEPT.append(tx.connection.pipeline())
        KEPT[-1].__enter__()
        tx.execute("select 1")


@way
def violates_a_constraint_at_the_commit(ctx: Context) -> None:
    with ctx.transaction() as tx:
        tx.execute("create temporary table t (x int unique deferrable initially deferred)")
        tx.execute("insert into t values (1), (1)")


@way
def nests(ctx: Context) -> None:
    with ctx.transaction(), ctx.transaction():
        raise ValueError("inside both")


@way
def asks_for_a_step_that_is_none(ctx: Context) -> None:
    with ctx.transaction(step="x"), ctx.transaction(step="x") as tx:
        tx.complete()


# ── async ────────────────────────────────────────────────────────────────────────────────────────


@way
async def araises(ctx: Context) -> None:
    async with ctx.transaction():
        raise ValueError("inside")


@way
async def acloses(ctx: Context) -> None:
    async with ctx.transaction() as tx:
        await tx.connection.close()


@way
async def ais_cut(ctx: Context) -> None:
    async with ctx.transaction() as tx:
        await tx.execute("select pg_terminate_backend(pg_backend_pid())")


@way
async def ais_stale(ctx: Context) -> None:
    async with ctx.transaction() as tx:
        await asyncio.to_thread(burn, ctx)
        tx.complete()


@way
async def is_cancelled_in_a_statement(ctx: Context) -> None:
    async with asyncio.timeout(0.05), ctx.transaction() as tx:
        await tx.execute(SLEEP)


@way
async def is_cancelled_somewhere(ctx: Context) -> None:
    """On entering, inside, or on leaving; as chance has it."""
    async with asyncio.timeout(random.Random(ctx.job_id.int).uniform(0, 0.03)):
        for _ in range(50):
            async with ctx.transaction() as tx:
                await tx.execute("select 1")


@way
async def is_cancelled_twice(ctx: Context) -> None:
    async def work() -> None:
        async with ctx.transaction() as tx:
            await tx.execute(SLEEP)

    task = asyncio.create_task(work())
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    await task


@way
async def two_at_once_and_one_fails(ctx: Context) -> None:
    async def one(fail: bool) -> None:
        async with ctx.transaction() as tx:
            await tx.execute("select nonsense" if fail else "select 1")

    await asyncio.gather(one(True), one(False))


@way
async def one_statement_of_two_fails(ctx: Context) -> None:
    async with ctx.transaction() as tx:
        await asyncio.gather(tx.execute("select nonsense"), tx.execute("select 1"))


@way
async def blocks_in_a_sync_one(ctx: Context) -> None:
    with ctx.transaction():
        raise ValueError("inside")


@way
def runs_a_loop_of_its_own(ctx: Context) -> None:
    asyncio.run(araises(ctx))


@way
def is_cancelled_on_a_loop_of_its_own(ctx: Context) -> None:
    asyncio.run(is_cancelled_in_a_statement(ctx))
