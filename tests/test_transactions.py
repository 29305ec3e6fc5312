"""Enqueue in the caller's own transaction: the job is there exactly if the caller's rows are.

Through every kind of connection that can be given: psycopg and SQLAlchemy, sync and async, with
psycopg and asyncpg underneath.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
import pytest
import sqlalchemy
from psycopg import AsyncConnection
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from faultline import (
    App,
    Backoff,
    IdempotencyConflict,
    InvalidArgument,
    NotPermitted,
    PayloadTooLarge,
    SchemaMismatch,
)
from tests.stage import Stage

Opened = AbstractAsyncContextManager[Any]


class Business:
    """A table of the user's, and an app whose own connections would fail."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.url = stage.url
        stage.execute("create table orders (id integer primary key)")
        # Whoever enqueues must not need a connection of our own.
        self.app = App("postgresql://nobody@127.0.0.1:1/none")
        self.charge = self.app.task(name="charge", queue="billing")(charge)

    def found(self) -> tuple[list[int], list[int]]:
        """The orders, and the orders for which there are jobs."""
        orders = [row[0] for row in self.stage.execute("select id from orders order by id")]
        jobs = self.stage.execute(
            "select (payload ->> 'order_id')::int from {schema}.job order by 1"
        )
        assert self.stage.violations() == []
        return orders, [row[0] for row in jobs]


def charge(order_id: int, at: datetime | None = None) -> None: ...


@pytest.fixture
def business(stage: Stage) -> Business:
    return Business(stage)


def with_driver(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://")


# ── sync ─────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def a_psycopg_connection(url: str) -> Iterator[Any]:
    with psycopg.connect(url) as conn:
        yield conn


@contextmanager
def an_autocommit_transaction(url: str) -> Iterator[Any]:
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("begin")
        yield conn


@contextmanager
def a_dict_row_connection(url: str) -> Iterator[Any]:
    with psycopg.connect(url, row_factory=psycopg.rows.dict_row) as conn:
        yield conn


@contextmanager
def an_engine(url: str) -> Iterator[Any]:
    engine = create_engine(with_driver(url, "psycopg"))
    yield engine
    engine.dispose()


@contextmanager
def a_sqlalchemy_connection(url: str) -> Iterator[Any]:
    with an_engine(url) as engine, engine.connect() as conn:
        yield conn


@contextmanager
def a_sqlalchemy_session(url: str) -> Iterator[Any]:
    with an_engine(url) as engine, Session(engine) as session:
        yield session


@contextmanager
def a_scoped_session(url: str) -> Iterator[Any]:
    with an_engine(url) as engine:
        session = scoped_session(sessionmaker(engine))
        yield session
        session.remove()


SYNC = [
    a_psycopg_connection,
    an_autocommit_transaction,
    a_dict_row_connection,
    a_sqlalchemy_connection,
    a_sqlalchemy_session,
    a_scoped_session,
]


def run(conn: Any, statement: str) -> Any:
    """A statement of the caller's own, in the caller's own way."""
    own = type(conn).__module__.startswith("psycopg")
    return conn.execute(statement if own else sqlalchemy.text(statement))


def insert(order_id: int, conn: Any) -> Any:
    return run(conn, f"insert into orders values ({order_id})")


@pytest.mark.parametrize("opened", SYNC)
def test_a_job_is_there_if_and_only_if_its_transaction_was_committed(
    opened: Callable[[str], Any], business: Business
) -> None:
    with opened(business.url) as conn:
        joined = business.charge.options(connection=conn)
        insert(1, conn)
        job = joined.enqueue(order_id=1)
        assert business.found() == ([], [])  # nothing was committed behind the caller's back
        conn.commit()
        assert business.found() == ([1], [1])
        if opened is an_autocommit_transaction:
            conn.execute("begin")
        insert(2, conn)
        joined.enqueue(2)
        joined.enqueue_many([{"order_id": 3}, business.charge.options(priority=1).item(4)])
        conn.rollback()
    assert business.found() == ([1], [1])
    assert isinstance(job.id, UUID)
    assert business.stage.job(job.id)["queue"] == "billing"


@pytest.mark.parametrize("opened", SYNC)
def test_every_option_arrives_through_every_connection(
    opened: Callable[[str], Any], business: Business
) -> None:
    at = datetime(2100, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    with opened(business.url) as conn:
        joined = business.charge.options(
            connection=conn, run_at=at, priority=-3, headers={"a": ['"', "\\", "é", None]},
            lease_seconds=0.25, max_attempts=2, retry=Backoff(1.5, 7), notify=False, queue="v:i p",
        )  # fmt: skip
        one = joined.options(idempotency_key='quo"te\\:x').enqueue(order_id=1, at=at)
        many = joined.enqueue_many(
            [business.charge.options(idempotency_key=key).item(n)
             for n, key in enumerate(['a"b', "c\\d", "{e,f}", "null", "é:x"])] + [{"order_id": 9}]
        )  # fmt: skip
        conn.commit()
    stage = business.stage
    row = stage.execute(
        "select priority, queue, headers, lease_seconds, max_attempts, backoff_cap_seconds "
        "from {schema}.job join {schema}.lane using (lane) where id = any (%s)",
        [one.id, many[0].id, many[-1].id],
    )
    headers = {"a": ['"', "\\", "é", None], "faultline-due": at.timestamp()}
    assert row == [(-3, "v:i p", headers, 0.25, 2, 7.0)] * 3
    assert stage.job(one.id)["next_run_at"] == at
    keys = dict(stage.execute("select job_id, key from {schema}.idempotency"))
    assert [keys.get(job.id) for job in many] == ['a"b', "c\\d", "{e,f}", "null", "é:x", None]
    assert keys[one.id] == 'quo"te\\:x'


@pytest.mark.parametrize("opened", SYNC)
def test_a_refusal_is_our_own_error_through_every_connection(
    opened: Callable[[str], Any], business: Business
) -> None:
    keyed = business.charge.options(idempotency_key="k")
    with opened(business.url) as conn:
        first = keyed.options(connection=conn).enqueue(1)
        conn.commit()
    with opened(business.url) as conn:
        with pytest.raises(IdempotencyConflict) as caught:
            keyed.options(connection=conn).enqueue(2)
        assert caught.value.job_id == first.id
        conn.rollback()
        with pytest.raises(PayloadTooLarge):
            business.app.enqueue("other", {"text": "x" * 2_000_000}, connection=conn)
        conn.rollback()
        with pytest.raises(SchemaMismatch):
            App(schema="nowhere").enqueue("other", connection=conn)
        conn.rollback()
        run(conn, "set session authorization faultline_reader")
        with pytest.raises(NotPermitted, match="faultline_producer"):
            business.app.enqueue("other", connection=conn)
        conn.rollback()


def test_a_batch_is_all_or_nothing_on_a_connection_that_commits_by_itself(
    business: Business,
) -> None:
    charge = business.charge
    items = [charge.item(1), charge.options(priority=1, idempotency_key="k").item(2)]
    with psycopg.connect(business.url, autocommit=True) as conn:
        charge.options(connection=conn, idempotency_key="k").enqueue(9)
        with pytest.raises(IdempotencyConflict):
            charge.options(connection=conn).enqueue_many(items)
    with an_engine(business.url) as engine:
        committing = engine.execution_options(isolation_level="AUTOCOMMIT")
        with committing.connect() as conn, pytest.raises(IdempotencyConflict):
            charge.options(connection=conn).enqueue_many(items)
    assert business.found() == ([], [9])


def test_the_savepoint_of_the_caller_decides_too(business: Business) -> None:
    with psycopg.connect(business.url) as conn:
        joined = business.charge.options(connection=conn)
        with conn.transaction():
            joined.enqueue(1)
            with conn.transaction():
                joined.enqueue(2)
                raise psycopg.Rollback
    assert business.found() == ([], [1])


# ── async ────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def an_async_psycopg_connection(url: str) -> AsyncIterator[Any]:
    async with await AsyncConnection.connect(url) as conn:
        yield conn


def an_async_connection(driver: str) -> Callable[[str], Opened]:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Any]:
        engine = create_async_engine(with_driver(url, driver))
        async with engine.connect() as conn:
            yield conn
        await engine.dispose()

    return opened


def an_async_session(driver: str) -> Callable[[str], Opened]:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Any]:
        engine = create_async_engine(with_driver(url, driver))
        async with AsyncSession(engine) as session:
            yield session
        await engine.dispose()

    return opened


ASYNC = {
    "psycopg": an_async_psycopg_connection,
    "sqlalchemy connection, psycopg": an_async_connection("psycopg"),
    "sqlalchemy connection, asyncpg": an_async_connection("asyncpg"),
    "sqlalchemy session, psycopg": an_async_session("psycopg"),
    "sqlalchemy session, asyncpg": an_async_session("asyncpg"),
}


def in_a_loop(
    opened: Callable[[str], Opened], url: str, use: Callable[[Any], Awaitable[Any]]
) -> Any:
    async def main() -> Any:
        async with opened(url) as conn:
            return await use(conn)

    return asyncio.run(main())


@pytest.mark.parametrize("opened", ASYNC.values(), ids=ASYNC)
def test_an_async_job_is_there_if_and_only_if_its_transaction_was_committed(
    opened: Callable[[str], Opened], business: Business
) -> None:
    async def use(conn: Any) -> None:
        joined = business.charge.options(connection=conn)
        await insert(1, conn)
        await joined.aenqueue(order_id=1)
        assert business.found() == ([], [])
        await conn.commit()
        await insert(2, conn)
        await joined.aenqueue(order_id=2)
        await joined.aenqueue_many([{"order_id": 3}])
        await conn.rollback()
        await joined.aenqueue_many([{"order_id": 4}, business.charge.options(priority=2).item(5)])
        await business.app.aenqueue("charge", {"order_id": 6}, connection=conn)
        await conn.commit()

    in_a_loop(opened, business.url, use)
    assert business.found() == ([1], [1, 4, 5, 6])


@pytest.mark.parametrize("opened", ASYNC.values(), ids=ASYNC)
def test_a_refusal_is_our_own_error_through_every_async_connection(
    opened: Callable[[str], Opened], business: Business
) -> None:
    async def use(conn: Any) -> None:
        keyed = business.charge.options(connection=conn, idempotency_key='k"')
        first = await keyed.aenqueue(1)
        with pytest.raises(IdempotencyConflict) as caught:
            await keyed.aenqueue(2)
        assert (caught.value.job_id, caught.value.key) == (first.id, 'k"')
        await conn.rollback()
        late = keyed.options(run_at=datetime(9500, 1, 1, tzinfo=UTC))
        with pytest.raises(InvalidArgument, match="run_at is"):
            await late.aenqueue(3)
        await conn.rollback()

    in_a_loop(opened, business.url, use)
    assert business.found() == ([], [])


# ── what is not a connection ─────────────────────────────────────────────────────────────────────


def test_an_async_connection_is_not_for_the_sync_method_nor_the_other_way_round(
    business: Business,
) -> None:
    async def wrong_way(conn: Any) -> None:
        with pytest.raises(InvalidArgument, match=r"which enqueue cannot use: call await aenqueue"):
            business.charge.options(connection=conn).enqueue(1)
        with pytest.raises(InvalidArgument, match="await aenqueue"):
            business.charge.options(connection=conn).enqueue_many([{"order_id": 1}])

    for opened in ASYNC.values():
        in_a_loop(opened, business.url, wrong_way)
    for opening in SYNC:
        with opening(business.url) as conn:
            joined = business.charge.options(connection=conn)
            with pytest.raises(InvalidArgument, match=r"which aenqueue cannot use: call enqueue"):
                asyncio.run(joined.aenqueue(1))
    assert business.found() == ([], [])


def test_what_is_no_connection_is_refused_with_what_can_be_given(business: Business) -> None:
    with an_engine(business.url) as engine, psycopg.connect(business.url) as conn:
        for thing in (engine, conn.cursor(), "postgresql://", object()):
            with pytest.raises(InvalidArgument) as caught:
                business.charge.options(connection=thing).enqueue(1)
            said = str(caught.value)
            assert f"connection is of type {type(thing).__qualname__}" in said
            assert "give a psycopg Connection" in said
            assert "SELECT faultline.enqueue(" in said


def test_any_other_driver_calls_the_function(business: Business) -> None:
    """What the refusal above advises."""
    import asyncpg

    async def main() -> None:
        conn = await asyncpg.connect(business.url)
        async with conn.transaction():
            await conn.execute("insert into orders values (1)")
            await conn.execute("""select faultline.enqueue('charge', '{"order_id": 1}')""")
        await conn.close()

    asyncio.run(main())
    assert business.found() == ([1], [1])
