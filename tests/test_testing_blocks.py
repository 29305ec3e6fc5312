"""Where `app.testing()` puts an app, what it leaves behind, and enqueues that run at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest

from faultline import App
from faultline.testing import Testing

ELSEWHERE = "postgresql://nobody@127.0.0.1:1/nothing"


@pytest.fixture
def app() -> App:
    return App(ELSEWHERE)


def databases(server_url: str) -> set[str]:
    with psycopg.connect(server_url) as conn:
        return {row[0] for row in conn.execute("select datname from pg_database")}


# ── inline ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def inline(app: App, server_url: str) -> Iterator[Testing]:
    with app.testing(server_url, inline=True) as testing:
        yield testing


def test_inline_whatever_is_enqueued_has_run(app: App, inline: Testing) -> None:
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    @app.task(max_attempts=1)
    def fails() -> None:
        raise ValueError("no")

    @app.task
    def adds_by_another(a: int) -> int:
        return add.enqueue(a, 1).result(1)

    @app.task
    async def adds_by_another_async(a: int) -> int:
        return await (await add.aenqueue(a, 1)).aresult(1) + add.enqueue(0, 0).result(1)

    async def main() -> int:
        job = await add.aenqueue(2, 2)
        jobs = await add.aenqueue_many([{"a": 1, "b": 1}])
        return await job.aresult(1) + await jobs[0].aresult(1) + add.enqueue(1, 0).result(1)

    assert add.enqueue(1, 2).result(1) == 3
    assert fails.enqueue().status().state == "failed"
    assert [job.result(1) for job in add.enqueue_many([{"a": 1, "b": n} for n in (1, 2)])] == [2, 3]
    assert app.enqueue("add", {"a": 1, "b": 1}).result(1) == 2
    assert adds_by_another.enqueue(4).result(1) == 5
    assert adds_by_another_async.enqueue(4).result(1) == 5
    assert asyncio.run(main()) == 7


def test_inline_nothing_runs_before_it_is_due_committed_or_new(app: App, inline: Testing) -> None:
    @app.task
    def work() -> None: ...

    delayed = work.options(delay_seconds=60).enqueue()
    assert delayed.status().state == "scheduled"
    with psycopg.connect(inline.url) as conn:
        joined = work.options(connection=conn).enqueue()
    assert joined.status().state == "queued"
    first = work.options(idempotency_key="once").enqueue()
    assert work.options(idempotency_key="once").enqueue() == first
    assert first.status().token == 1
    assert inline.drain() == [(joined.id, "succeeded")]


def test_a_plain_block_inside_an_inline_one_is_plain(
    app: App, inline: Testing, server_url: str
) -> None:
    @app.task
    def work() -> None: ...

    with app.testing(server_url):
        assert work.enqueue().status().state == "queued"
    assert work.enqueue().status().state == "succeeded"


# ── where ────────────────────────────────────────────────────────────────────────────────────────


def test_afterwards_the_app_is_where_it_was_and_the_database_is_gone(
    app: App, server_url: str
) -> None:
    @app.task
    def work() -> None: ...

    name = ""
    with suppress(ZeroDivisionError), app.testing(server_url) as testing:
        work.enqueue()
        assert app.url == testing.url != ELSEWHERE
        name = testing.url.rpartition("/")[2]
        assert name in databases(server_url)
        raise ZeroDivisionError
    assert app.url == ELSEWHERE
    assert name not in databases(server_url)


def test_a_database_that_was_named_is_migrated_and_left_there(
    app: App, empty_database: str
) -> None:
    @app.task
    def work() -> None: ...

    with app.testing(database=empty_database) as testing:
        assert testing.url == empty_database
        job = work.enqueue()
    with app.testing(database=empty_database) as testing:
        assert testing.run(job).state == "succeeded"


def test_an_app_with_a_schema_of_its_own_finds_it(server_url: str) -> None:
    app = App(schema="jobs_of_a_test")

    @app.task
    def work() -> None: ...

    with app.testing(server_url) as testing:
        assert testing.run(work.enqueue()).state == "succeeded"
        assert testing.connection.execute("select count(*) from jobs_of_a_test.jobs")


def test_without_a_url_the_blocks_of_a_process_share_an_embedded_server(app: App) -> None:
    @app.task
    def work() -> None: ...

    with app.testing() as testing:
        first = testing.url
        assert testing.run(work.enqueue()).state == "succeeded"
    with app.testing() as testing:
        assert testing.jobs() == []
        assert testing.url.rpartition("/")[0] == first.rpartition("/")[0]
        assert testing.url != first
