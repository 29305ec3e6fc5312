"""ctx.session(), and ctx.fence and ctx.assert_fence on connections of the handler's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

from faultline import App, Context, InvalidArgument
from faultline.testing import Testing
from tests.charging import app, notes, testing

__all__ = ["app", "testing"]


# ── SQLAlchemy ───────────────────────────────────────────────────────────────────────────────────


def engine_url(testing: Testing, driver: str) -> str:
    return testing.url.replace("postgresql://", f"postgresql+{driver}://")


def insert(ctx: Context, note: str) -> Any:
    statement = text("insert into charge values (:job, :token, :note)")
    return statement.bindparams(job=ctx.job_id, token=ctx.token, note=note)


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg", "psycopg async"])
@pytest.mark.parametrize("lost", [False, True])
def test_a_session_is_fenced_with_every_driver(
    app: App, testing: Testing, driver: str, lost: bool
) -> None:
    @app.task(name="sync")
    def sync(ctx: Context) -> None:
        engine = create_engine(engine_url(testing, "psycopg"), poolclass=NullPool)
        with ctx.session(sessionmaker(engine)) as session:
            session.execute(insert(ctx, "x"))
            session.emit("receipts", {"order": 7})
            if lost:
                testing.take_over(ctx.job_id)
            session.complete({"by": "session"})

    @app.task(name="async")
    async def asynchronous(ctx: Context) -> None:
        engine = create_async_engine(engine_url(testing, driver.split()[0]), poolclass=NullPool)
        async with ctx.session(async_sessionmaker(engine)) as session:
            await session.execute(insert(ctx, "x"))
            session.emit("receipts", {"order": 7})
            if lost:
                await asyncio.to_thread(testing.take_over, ctx.job_id)
            session.complete({"by": "session"})

    job = app.enqueue("sync" if driver == "psycopg" else "async")
    status = testing.run(job)
    assert notes(testing) == ([] if lost else ["x"])
    assert len(testing.jobs(task="relay:receipts")) == (not lost)
    if lost:
        assert [row["operation"] for row in testing.refusals(job)] == ["complete_one"]
    else:
        assert status.result == {"by": "session"}


def test_a_session_has_steps_too_and_its_plain_session_can_be_handed_on(
    app: App, testing: Testing
) -> None:
    engine = create_engine(engine_url(testing, "psycopg"))

    @app.task
    def charge(ctx: Context) -> Any:
        with ctx.session(lambda: Session(engine), step="one") as tx:
            if not tx.done:
                assert isinstance(tx.session, Session)
                tx.session.execute(insert(ctx, "x"))
                tx.record([1])
        if ctx.token == 1:
            raise ValueError("again")
        return tx.value

    job = charge.enqueue()
    testing.run(job)
    assert testing.run(job).result == [1]
    assert notes(testing) == ["x"]
    engine.dispose()


ENDS: dict[str, Callable[[Any], Any]] = {
    "commit": lambda tx: tx.commit(),
    "rollback": lambda tx: tx.rollback(),
    "close": lambda tx: tx.close(),
    "begin": lambda tx: tx.begin(),
    "plain commit": lambda tx: tx.session.commit(),
    "plain rollback": lambda tx: tx.session.rollback(),
    "plain close": lambda tx: tx.session.close(),
    "sql commit": lambda tx: tx.execute(text("commit")),
    "sql rollback": lambda tx: tx.execute(text("rollback")),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_nothing_lands_in_a_session_whose_transaction_the_handler_has_ended(
    app: App, testing: Testing, driver: str, end: str
) -> None:
    @app.task(name="psycopg", max_attempts=1)
    def sync(ctx: Context) -> None:
        engine = create_engine(engine_url(testing, "psycopg"), poolclass=NullPool)
        with ctx.session(sessionmaker(engine)) as session:
            ENDS[end](session)
            testing.take_over(ctx.job_id)
            session.execute(insert(ctx, "late"))
            session.emit("receipts", {})
            session.complete()
            session.session.commit()

    @app.task(name="asyncpg", max_attempts=1)
    async def asynchronous(ctx: Context) -> None:
        engine = create_async_engine(engine_url(testing, "asyncpg"), poolclass=NullPool)
        async with ctx.session(async_sessionmaker(engine)) as session:
            await ENDS[end](session)
            await asyncio.to_thread(testing.take_over, ctx.job_id)
            await session.execute(insert(ctx, "late"))
            session.emit("receipts", {})
            session.complete()

    job = app.enqueue(driver)
    testing.run(job)
    assert notes(testing) == []
    assert testing.jobs(task="relay:receipts") == []
    assert testing.jobs(state="succeeded") == []


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_the_end_of_the_job_does_not_commit_alone_when_the_handler_rolled_back_in_sql(
    app: App, testing: Testing, driver: str
) -> None:
    @app.task(max_attempts=1)
    async def charge(ctx: Context) -> None:
        engine = create_async_engine(engine_url(testing, driver), poolclass=NullPool)
        async with ctx.session(async_sessionmaker(engine)) as session:
            await session.execute(insert(ctx, "undone"))
            await session.execute(text("rollback"))
            session.complete()

    job = charge.enqueue()
    assert testing.run(job).state == "failed"
    assert "leave COMMIT and ROLLBACK" in testing.jobs()[0]["error"]["message"]
    assert notes(testing) == []
    assert testing.refusals(job) == []


def test_a_nested_transaction_of_a_session_is_fine(app: App, testing: Testing) -> None:
    engine = create_engine(engine_url(testing, "psycopg"), poolclass=NullPool)

    @app.task(max_attempts=1)
    def charge(ctx: Context) -> None:
        with ctx.session(sessionmaker(engine)) as session:
            session.execute(insert(ctx, "kept"))
            with session.begin_nested() as savepoint:
                session.execute(insert(ctx, "undone"))
                savepoint.rollback()
            session.complete()

    assert testing.run(charge.enqueue()).state == "succeeded"
    assert notes(testing) == ["kept"]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_session_with_a_frozen_snapshot_completes_though_its_lease_was_renewed(
    app: App, testing: Testing, level: str
) -> None:
    engine = create_engine(
        engine_url(testing, "psycopg"), poolclass=NullPool, isolation_level=level
    )

    @app.task(lease_seconds=12, max_attempts=1)
    def charge(ctx: Context) -> None:
        with ctx.session(sessionmaker(engine)) as session:
            session.execute(insert(ctx, "once"))
            session.execute(text("select pg_sleep(4.3)"))  # past a third of the lease
            session.complete("kept")

    assert testing.run(charge.enqueue()).result == "kept"
    assert notes(testing) == ["once"]


def test_a_session_in_autocommit_mode_is_refused(app: App, testing: Testing) -> None:
    engine = create_engine(engine_url(testing, "psycopg"), isolation_level="AUTOCOMMIT")

    @app.task(max_attempts=1)
    def charge(ctx: Context) -> None:
        with ctx.session(sessionmaker(engine)) as session:
            session.execute(insert(ctx, "never"))

    assert "in autocommit mode" in testing.run(charge.enqueue()).error["message"]
    assert notes(testing) == []
    engine.dispose()


@pytest.mark.parametrize("make", [lambda _: AsyncSession(), lambda url: psycopg.connect(url)])
def test_a_factory_of_something_else_is_refused_in_words(
    app: App, testing: Testing, make: Callable[[str], Any]
) -> None:
    made: list[Any] = []

    @app.task(max_attempts=1)
    def charge(ctx: Context) -> None:
        made.append(make(testing.url))
        with ctx.session(lambda: made[0]):
            pass

    message = testing.run(charge.enqueue()).error["message"]
    assert "async with ctx.session" in message or "sessionmaker" in message
    if isinstance(made[0], psycopg.Connection):
        made[0].close()


# ── connections of the handler's own ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("gate", ["assert_fence", "fence"])
@pytest.mark.parametrize("kind", ["psycopg", "psycopg async", "sqlalchemy", "sqlalchemy async"])
def test_the_gate_and_the_fence_work_on_every_kind_of_connection(
    app: App, testing: Testing, kind: str, gate: str, lost: bool
) -> None:
    @app.task(name="sync")
    def sync(ctx: Context) -> None:
        if kind == "psycopg":
            connection: Any = psycopg.connect(testing.url)
        else:
            connection = Session(create_engine(engine_url(testing, "psycopg"), poolclass=NullPool))
        with connection as conn:
            if gate == "fence":
                ctx.fence(conn)
            conn.execute(insert(ctx, "x") if kind == "sqlalchemy" else insert_one(ctx))
            if lost:
                testing.take_over(ctx.job_id)
            if gate == "assert_fence":
                ctx.assert_fence(conn)
            conn.commit()

    @app.task(name="async")
    async def asynchronous(ctx: Context) -> None:
        if kind == "psycopg async":
            connection: Any = await psycopg.AsyncConnection.connect(testing.url)
        else:
            engine = create_async_engine(engine_url(testing, "asyncpg"), poolclass=NullPool)
            connection = AsyncSession(engine)
        async with connection as conn:
            if gate == "fence":
                await ctx.fence(conn)
            await conn.execute(insert(ctx, "x") if "sql" in kind else insert_one(ctx))
            if lost:
                await asyncio.to_thread(testing.take_over, ctx.job_id)
            if gate == "assert_fence":
                await ctx.assert_fence(conn)
            await conn.commit()

    job = app.enqueue("async" if "async" in kind else "sync")
    status = testing.run(job)
    assert notes(testing) == ([] if lost else ["x"])
    assert lost or status.state == "succeeded"
    if lost:
        expected = "commit" if gate == "fence" else gate
        assert [row["operation"] for row in testing.refusals(job)] == [expected]


def insert_one(ctx: Context) -> Any:
    return f"insert into charge values ('{ctx.job_id}', {ctx.token}, 'x')"


@pytest.mark.parametrize("gate", ["assert_fence", "fence"])
@pytest.mark.parametrize("kind", ["psycopg", "psycopg async", "sqlalchemy", "sqlalchemy async"])
def test_a_connection_in_autocommit_mode_is_refused_by_the_gate_and_the_fence(
    app: App, testing: Testing, kind: str, gate: str
) -> None:
    @app.task(name="sync", max_attempts=1)
    def sync(ctx: Context) -> None:
        if kind == "psycopg":
            with psycopg.connect(testing.url, autocommit=True) as conn:
                getattr(ctx, gate)(conn)
        else:
            engine = create_engine(engine_url(testing, "psycopg"), poolclass=NullPool)
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
                getattr(ctx, gate)(conn)

    @app.task(name="async", max_attempts=1)
    async def asynchronous(ctx: Context) -> None:
        if kind == "psycopg async":
            opened = await psycopg.AsyncConnection.connect(testing.url, autocommit=True)
            async with opened as conn:
                await getattr(ctx, gate)(conn)
        else:
            engine = create_async_engine(
                engine_url(testing, "asyncpg"), poolclass=NullPool, isolation_level="AUTOCOMMIT"
            )
            async with engine.connect() as conn:
                await getattr(ctx, gate)(conn)

    status = testing.run(app.enqueue("async" if "async" in kind else "sync"))
    assert "in autocommit mode" in status.error["message"]


@pytest.mark.parametrize(
    "make", [lambda _: None, lambda engine: engine, Session, lambda engine: engine.connect]
)
def test_what_is_no_factory_of_sessions_is_refused_in_words(
    app: App, testing: Testing, make: Callable[[Any], Any]
) -> None:
    engine = create_engine(engine_url(testing, "psycopg"), poolclass=NullPool)

    @app.task(max_attempts=1)
    def charge(ctx: Context) -> None:
        with ctx.session(make(engine)):
            pass

    message = testing.run(charge.enqueue()).error["message"]
    assert "sessionmaker" in message or "wants sessions" in message


def test_a_context_made_by_hand_has_no_transactions() -> None:
    context = Context(uuid4(), 1)
    with pytest.raises(InvalidArgument, match="made by hand"):
        context.transaction()
