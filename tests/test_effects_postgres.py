"""The fence in another PostgreSQL: two servers, real sessions, the order forced by locks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, Connection
from psycopg.rows import dict_row

from faultline import App, Context, InvalidArgument, StaleLease
from faultline.effects.postgres import acreate_table, afence, create_table, fence
from tests.sinks import HUGE, attempts, race
from tests.stage import until

ISOLATION = ["read committed", "repeatable read", "serializable"]


@pytest.fixture
def url(elsewhere: str) -> str:
    with psycopg.connect(elsewhere) as conn:
        create_table(conn)
        create_table(conn)  # it is there: nothing happens
        conn.execute("create table log (id bigserial, token bigint)")
    return elsewhere


@pytest.fixture
def watcher(url: str) -> Iterator[Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as conn:
        yield conn


def connect(url: str, isolation: str) -> Connection[Any]:
    options = f"-c default_transaction_isolation={isolation.replace(' ', chr(92) + ' ')}"
    return psycopg.connect(url, options=options)


def write(conn: Connection[Any], ctx: Context) -> None:
    """As a handler does it; the caller commits."""
    fence(conn, ctx)
    conn.execute("insert into log (token) values (%s)", (ctx.token,))


def log(watcher: Connection[Any]) -> list[int]:
    return [row[0] for row in watcher.execute("select token from log order by id")]


def seen(watcher: Connection[Any], ctx: Context) -> int:
    query = "select token from faultline_seen where job_id = %s"
    return watcher.execute(query, (ctx.job_id,)).fetchall()[0][0]


def blocked(watcher: Connection[Any], conn: Connection[Any]) -> bool:
    query = "select pg_blocking_pids(%s) <> '{}'"
    return watcher.execute(query, (conn.info.backend_pid,)).fetchall()[0][0]


# ── one after the other ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("isolation", ISOLATION)
@pytest.mark.parametrize(("low", "high"), [(1, 2), (9, 10), (HUGE, HUGE + 1), (1, 2**62 - 1)])
def test_an_attempt_that_was_overtaken_cannot_write(
    url: str, watcher: Connection[Any], isolation: str, low: int, high: int
) -> None:
    first, second = attempts(low, high)
    for ctx in (first, second, second):  # the last one repeats itself: its answer was lost
        with connect(url, isolation) as conn:
            write(conn, ctx)
    with pytest.raises(StaleLease) as refused, connect(url, isolation) as conn:
        write(conn, first)
    stale = refused.value
    assert (stale.job_id, stale.token, stale.current_token) == (first.job_id, low, high)
    assert stale.reason == "token_mismatch"
    assert log(watcher) == [low, high, high]
    assert seen(watcher, first) == high


def test_two_jobs_do_not_disturb_each_other(url: str, watcher: Connection[Any]) -> None:
    [one], [other] = attempts(1000), attempts(1)
    with psycopg.connect(url) as holds, psycopg.connect(url) as conn:
        write(holds, one)
        write(conn, other)  # does not wait
        conn.commit()
    assert log(watcher) == [1000, 1]


def test_a_fence_that_is_rolled_back_was_not_there(url: str, watcher: Connection[Any]) -> None:
    first, second = attempts(1, 2)
    with psycopg.connect(url) as conn:
        write(conn, second)
        conn.rollback()
        write(conn, first)
    assert log(watcher) == [1]


def test_a_connection_that_commits_each_statement_is_refused(
    url: str, watcher: Connection[Any]
) -> None:
    [ctx] = attempts(1)
    with pytest.raises(InvalidArgument, match="inside `with"):
        fence(watcher, ctx)
    assert watcher.execute("select from faultline_seen").fetchall() == []
    with watcher.transaction():
        fence(watcher, ctx)
    assert seen(watcher, ctx) == 1


def test_the_rows_of_the_users_connection_may_be_of_any_kind(url: str) -> None:
    first, second = attempts(1, 2)
    with psycopg.connect(url, row_factory=dict_row) as conn:
        fence(conn, second)
        with pytest.raises(StaleLease) as refused:
            fence(conn, first)
    assert refused.value.current_token == 2


def test_asyncio_has_the_same(url: str) -> None:
    first, second = attempts(HUGE, HUGE + 1)

    async def story() -> None:
        async with await AsyncConnection.connect(url) as conn:
            await acreate_table(conn)
            await afence(conn, second)
        async with await AsyncConnection.connect(url) as conn:
            with pytest.raises(StaleLease) as refused:
                await afence(conn, first)
        assert refused.value.current_token == HUGE + 1
        async with await AsyncConnection.connect(url, autocommit=True) as conn:
            with pytest.raises(InvalidArgument):
                await afence(conn, second)

    asyncio.run(story())


# ── at the same time ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("known", [False, True], ids=["first write", "later write"])
@pytest.mark.parametrize("isolation", ISOLATION)
def test_an_earlier_attempt_waits_for_a_later_one_and_is_refused(
    url: str, watcher: Connection[Any], isolation: str, known: bool
) -> None:
    """In the two stricter levels by PostgreSQL itself, since the row it would need has changed."""
    first, second = attempts(1, 2)
    if known:
        with psycopg.connect(url) as conn:
            fence(conn, first)
    with (
        connect(url, isolation) as ahead,
        connect(url, isolation) as late,
        ThreadPoolExecutor(1) as thread,
    ):
        write(ahead, second)
        refused = thread.submit(write, late, first)
        until(lambda: blocked(watcher, late), "the earlier attempt waits")
        ahead.commit()
        error = refused.exception(60)
        late.rollback()
    expected = StaleLease if isolation == "read committed" else psycopg.errors.SerializationFailure
    assert isinstance(error, expected)
    assert log(watcher) == [2]


def test_a_later_attempt_waits_for_the_commit_of_an_earlier_one(
    url: str, watcher: Connection[Any]
) -> None:
    first, second = attempts(1, 2)
    with (
        psycopg.connect(url) as early,
        psycopg.connect(url) as ahead,
        ThreadPoolExecutor(1) as thread,
    ):
        write(early, first)
        waits = thread.submit(write, ahead, second)
        until(lambda: blocked(watcher, ahead), "the later attempt waits")
        assert log(watcher) == []
        early.commit()
        waits.result(60)
        ahead.commit()
    assert log(watcher) == [1, 2]


@pytest.mark.parametrize("isolation", ISOLATION)
def test_no_lower_token_lands_after_a_higher_one(
    url: str, watcher: Connection[Any], isolation: str
) -> None:
    [ctx] = attempts(1)
    mine = threading.local()
    opened: list[Connection[Any]] = []

    def attempt(ctx: Context) -> None:
        if not hasattr(mine, "conn"):
            mine.conn = connect(url, isolation)
            opened.append(mine.conn)
        while True:
            try:
                with mine.conn.transaction():
                    write(mine.conn, ctx)
                return
            except psycopg.errors.SerializationFailure:
                continue  # PostgreSQL says: again

    passed = race(attempt, ctx.job_id, 200)
    for conn in opened:
        conn.close()
    assert log(watcher) == passed


# ── a job ────────────────────────────────────────────────────────────────────────────────────────


def test_a_handler_that_comes_back_from_a_stall_is_refused_and_that_is_recorded(
    server_url: str, url: str, watcher: Connection[Any]
) -> None:
    app = App()
    with app.testing(server_url) as testing:

        @app.task
        def ship(ctx: Context) -> str:
            if ctx.token == 1:  # stalls here, and another worker does the job
                testing.expire_lease(ctx.job_id)
                assert testing.run(ctx.job_id).state == "succeeded"
            with psycopg.connect(url) as conn:
                write(conn, ctx)
            return f"shipped under token {ctx.token}"

        job = ship.enqueue()
        status = testing.run(job)
        assert (status.state, status.result) == ("succeeded", "shipped under token 2")
        assert log(watcher) == [2]
        [refusal] = testing.refusals(job)
        assert (refusal["stale_token"], refusal["current_token"]) == (1, 2)
        assert refusal["operation"] == "postgres"
        assert testing.connection.execute("select * from faultline.violations").fetchall() == []
