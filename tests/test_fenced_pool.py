"""The connections of fenced transactions: lent to one at a time, given back on every way out of a
block, replaced when they died unused. With real workers, and the server's own list of sessions."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, LiteralString
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import psycopg
import pytest
from psycopg.pq import PipelineStatus

from faultline.drills.proxy import Fate, Moment, Proxy
from faultline.errors import DatabaseUnavailable
from faultline.fenced.pool import Pool
from tests import misusing
from tests.cutting import APP, ONCE, ends_well, enqueue, paying, payments, proxy
from tests.stage import Stage, until, unwatched
from tests.workers import Process

__all__ = ["paying", "proxy"]
KEEPS = ["sync_keeps_its_connection", "async_keeps_its_connection"]


def inside(stage: Stage, *job_ids: UUID) -> dict[UUID, int]:
    """Those of these jobs whose handlers are inside a transaction, and the server's process."""
    found = stage.execute("select job_id, note from seen where job_id = any (%s)", list(job_ids))
    return {job_id: int(note.removeprefix("inside ")) for job_id, note in found}


def go(stage: Stage, *job_ids: UUID) -> None:
    for job_id in job_ids:
        stage.execute("insert into go values (%s)", job_id)
    for job_id in job_ids:
        until(lambda job_id=job_id: stage.state(job_id) == "succeeded", f"{job_id} succeeded")


def test_connections_that_died_between_two_jobs_cost_nobody_an_attempt(paying: Stage) -> None:
    with paying.login("worker") as url, Process(url, app=APP) as worker:
        first = enqueue(paying, *KEEPS, count=3)
        used = until(lambda: len(x := inside(paying, *first)) == 6 and x, "all are inside")
        go(paying, *first)
        for pid in used.values():
            assert paying.value("select pg_terminate_backend(%s, 60000)", pid)
        second = enqueue(paying, *KEEPS)  # alone, so that nobody takes the dead ones for it
        until(lambda: len(inside(paying, *second)) == 2, "both are inside")
        go(paying, *second)
        assert worker.told("job_failed") == []
        ends_well(worker)
    assert payments(paying) == {job_id: [1] for job_id in [*first, *second]}
    assert not set(inside(paying, *second).values()) & set(used.values())


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_connection_that_dies_as_it_is_used_again_costs_nobody_an_attempt(
    paying: Stage, proxy: Proxy, kind: str
) -> None:
    begun: list[Moment] = []

    def cut_the_second(moment: Moment) -> Fate | None:
        if not moment.text.startswith("begin "):
            return None
        begun.append(moment)
        return Fate.LOSE_REQUEST if len(begun) == 2 else None

    proxy.when(cut_the_second)
    with Process(proxy.url, app=APP) as worker:
        for _ in range(2):
            (job_id,) = enqueue(paying, f"{kind}_complete")
            worker.until("job_completed", job_id=job_id)
        assert (len(begun), worker.told("job_failed")) == (3, [])
        ends_well(worker)


@pytest.mark.parametrize("shape", KEEPS)
def test_a_second_transaction_waits_for_the_only_connection_and_gets_it(
    paying: Stage, shape: str
) -> None:
    with (
        paying.login("worker") as url,
        Process(url, "--transactions", "1", app=APP) as worker,
    ):
        one, two = jobs = list(enqueue(paying, shape, count=2))
        for job_id in jobs:
            worker.until("execution_started", job_id=job_id)
        (begun,) = until(lambda: inside(paying, *jobs), "one of them is inside")
        waiting = two if begun == one else one
        go(paying, begun)
        until(lambda: inside(paying, waiting), "the other one is inside")
        go(paying, waiting)
        ends_well(worker)
    assert [paying.outcomes(job_id) for job_id in jobs] == [ONCE, ONCE]
    pids = inside(paying, *jobs)
    assert pids[one] == pids[two]


def test_no_way_out_of_a_block_keeps_a_connection_a_statement_or_a_thread(paying: Stage) -> None:
    """5 times each of them; then the pool still has all it can have."""
    ways = [*[("leaves", way) for way in misusing.SYNC], *[("aleaves", w) for w in misusing.ASYNC]]
    sessions = (
        "select state, query from pg_stat_activity "
        "where application_name = 'misused' and datname = current_database()"
    )
    with (
        paying.login("worker", "producer") as url,
        Process(
            f"{url}?application_name=misused",
            *("--transactions", "6", "--concurrency", "12"),
            app="tests.misusing:app",
        ) as worker,
    ):
        jobs = [start(paying, task, way=way) for task, way in ways * 5]
        assert len(jobs) >= 100
        for job_id in jobs:
            until(lambda job_id=job_id: paying.state(job_id) not in ("queued", "running"), "ended")
        busy = f"{sessions} and state <> 'idle'"
        until(lambda: not paying.execute(busy), "the server works for nobody any more")
        kept = [start(paying, task) for task in ("keeps", "akeeps") for _ in range(6)]
        until(lambda: len(inside(paying, *kept)) == 12, "as many as there may be are inside")
        go(paying, *kept)

        def threads() -> list[str]:
            asked = start(paying, "threads")
            until(lambda: paying.state(asked) == "succeeded", "its threads are known")
            names: list[str] = paying.job(asked)["result"]
            return [n for n in names if not n.startswith(("asyncio", "MainThread"))]

        # One for each sync handler; events, keeper, and two of the pool. One may be about to end.
        try:
            until(lambda: len(threads()) <= 12 + 4, "no thread is left over")
        except AssertionError as error:
            error.add_note(f"there are {sorted(threads())}")
            raise
        until(lambda: len(paying.execute(sessions)) <= 3 + 2 * 6, "no session is left over")
        ends_well(worker)
    assert paying.violations() == []


def test_a_worker_that_ends_with_transactions_open_commits_nothing_and_leaves_nothing(
    paying: Stage,
) -> None:
    sessions = (
        "select 1 from pg_stat_activity "
        "where application_name = 'ending' and datname = current_database()"
    )
    with (
        paying.login("worker") as url,
        Process(f"{url}?application_name=ending", app=APP) as worker,
    ):
        jobs = list(enqueue(paying, *KEEPS, count=3))
        until(lambda: len(inside(paying, *jobs)) == 6, "all are inside")
        worker.terminate()
        worker.until("worker_draining")
        worker.terminate()
        assert worker.ended() == 0
        assert not any("Traceback" in line for line in worker.errors), worker.errors
        until(lambda: not paying.execute(sessions), "its connections are gone")
    assert payments(paying) == {}
    assert [paying.outcomes(job_id) for job_id in jobs] == [[(1, "released")]] * 6
    assert paying.execute("select * from {schema}.refusals") == paying.violations() == []


def start(stage: Stage, task: str, **payload: str) -> UUID:
    return misusing.app.tasks[task].options(connection=stage.conn).enqueue(**payload).id


# ── the pool alone ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_connection_that_comes_back_after_the_end_is_closed_and_no_new_one_is_lent(
    database: str, kind: str
) -> None:
    """Of a handler that was left behind by a worker that has ended."""

    async def play() -> None:
        pool = Pool(database, "faultline", 1)
        pool.at_home()
        conn = await (pool.atake() if kind == "async" else asyncio.to_thread(pool.take))
        await pool.aclose()
        with pytest.raises(DatabaseUnavailable, match="the worker has ended"):
            await (pool.atake() if kind == "async" else asyncio.to_thread(pool.take))
        await (pool.agive(conn) if kind == "async" else asyncio.to_thread(pool.give, conn))
        assert conn.closed

    asyncio.run(play())


@pytest.mark.parametrize("statements", [["select 1"], []])
def test_a_pipeline_that_was_left_open_is_nobody_elses_problem(
    database: str, statements: list[LiteralString]
) -> None:
    """In it the next one's COMMIT would only be queued."""
    pool = Pool(database, "faultline", 1)
    conn = pool.take()
    pipeline = conn.pipeline()
    pipeline.__enter__()
    for statement in statements:
        conn.execute(statement)
    pool.give(conn)
    again = pool.take()
    assert (conn.closed, again.pgconn.pipeline_status) == (True, PipelineStatus.OFF)
    pool.give(again)
    asyncio.run(pool.aclose())


def test_a_statement_that_was_cancelled_twice_does_not_go_on_in_the_server(stage: Stage) -> None:
    """psycopg then no longer waits for it to end, and its transaction would keep its locks."""
    running = (
        "select 1 from pg_stat_activity where state = 'active' and query like '%%pg_sleep(6000%%' "
        "and datname = current_database()"
    )

    async def play() -> None:
        pool = Pool(unwatched(stage.url), "faultline", 1)
        pool.at_home()
        conn = await pool.atake()
        task = asyncio.create_task(conn.execute("select pg_sleep(6000)"))
        await asyncio.to_thread(until, lambda: others(), "it runs")
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await pool.agive(conn)
        await asyncio.to_thread(until, lambda: not others(), "it is given up")
        await pool.aclose()

    def others() -> list[object]:
        return [*stage.execute(f"{running} and pid <> pg_backend_pid()")]

    asyncio.run(play())


def test_a_block_that_is_still_open_when_its_loop_is_gone_ends_without_a_word(
    database: str,
) -> None:
    """Of a handler that was given up: Python closes its coroutine as the process ends."""
    pool = Pool(database, "faultline", 1)

    async def take() -> psycopg.AsyncConnection[Any]:
        pool.at_home()
        return await pool.atake()

    conn = asyncio.run(take())
    with pytest.raises(StopIteration):
        pool.agive(conn).send(None)
    assert conn.closed


def test_a_connection_that_a_handler_kept_and_closed_is_not_lent_again(database: str) -> None:
    pool = Pool(database, "faultline", 1)
    conn = pool.take()
    pool.give(conn)
    conn.close()
    again = pool.take()
    assert again.execute("select 1").fetchone() == (1,)
    pool.give(again)
    asyncio.run(pool.aclose())


def test_a_pool_looks_for_the_database_every_few_seconds_however_long_it_is_away(
    database: str,
) -> None:
    """psycopg_pool's own pauses double: after an outage of minutes it would take minutes more."""
    pool = Pool(database, "faultline", 5)
    with deaf_server(database) as (url, knocks):
        pool.url = url

        def wait() -> None:
            with suppress(psycopg.Error, DatabaseUnavailable):
                pool.take()

        threading.Thread(target=wait, daemon=True).start()
        until(
            lambda: len(knocks) >= 8,
            "it has tried eight times: in 13 s; with doubled pauses, in 127",
        )
    asyncio.run(pool.aclose())


@contextmanager
def deaf_server(url: str) -> Iterator[tuple[str, list[None]]]:
    """Hang up on every caller; the list grows by one each time."""
    knocks: list[None] = []
    parts = urlsplit(url)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    knocks.append(None)
                    client.close()

        threading.Thread(target=accept, daemon=True).start()
        user = parts.netloc.rpartition("@")[0]
        address = f"{user}@127.0.0.1:{listener.getsockname()[1]}"
        yield urlunsplit(parts._replace(netloc=address)), knocks
