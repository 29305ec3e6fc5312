"""A call that its client has given up does not keep its session, though it waits for a lock."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from faultline import App, connect
from faultline.connect import aconnect
from faultline.protocol import Protocol
from faultline.worker.session import Session, Unavailable
from tests.pooler import needs_pgbouncer, pgbouncer
from tests.stage import Stage, until
from tests.workers import Process

SHOW = "select setting::int from pg_settings where name = 'client_connection_check_interval'"
CALLS = 6


def sessions(stage: Stage, user: str) -> set[int]:
    """The server processes of this user."""
    rows = stage.execute("select pid from pg_stat_activity where usename = %s", user)
    return {pid for (pid,) in rows}


@pytest.mark.both_servers
def test_calls_that_wait_for_a_lock_leave_no_session_behind(stage: Stage) -> None:
    holder = stage.connect(isolation="read committed")
    holder.execute("lock table faultline.lease in access exclusive mode")
    seen = set[int]()
    with stage.login("worker") as url:
        user = str(psycopg.conninfo.conninfo_to_dict(url)["user"])

        async def give_up() -> None:
            session = Session(url, "faultline")
            for _ in range(CALLS):
                pid = (await session.connection()).info.backend_pid
                with pytest.raises(Unavailable) as lost:
                    await session.run(Protocol("faultline").reconcile(), 0.1)
                assert lost.value.unknown
                seen.add(pid)

        asyncio.run(give_up())
        assert len(seen) == CALLS
        until(lambda: not sessions(stage, user), "the sessions have ended while the lock is held")
        holder.rollback()


def test_a_worker_that_cannot_report_itself_keeps_few_sessions(stage: Stage) -> None:
    """Its row is locked, so that each report is given up, and a new session made for the next."""
    with stage.login("worker") as url, Process(url) as worker:
        user = str(psycopg.conninfo.conninfo_to_dict(url)["user"])
        worker.ready()
        until(lambda: stage.value("select count(*) from {schema}.worker"), "it has reported itself")
        before = sessions(stage, user)
        holder = stage.connect(isolation="read committed")
        holder.execute("select from faultline.worker for update")
        seen = set[int]()

        def is_bounded() -> bool:
            now = sessions(stage, user)
            seen.update(now - before)
            return len(seen) >= 5 and len(now) <= 4

        until(is_bounded, "five more sessions were made, and at most four are left")
        holder.rollback()


def test_every_connection_of_ours_asks_for_the_check(stage: Stage) -> None:
    app = App(stage.url)
    with app.connect() as conn:
        assert conn.execute(SHOW).fetchone() == (2000,)

    class Shown:
        verb = "shown"

        def run(self, conn: psycopg.Connection[Any]) -> Any:
            return conn.execute(SHOW).fetchone()

    assert app._producer.run(Shown()) == (2000,)
    app.close()


def test_a_check_of_the_users_own_is_kept(stage: Stage) -> None:
    database = stage.conn.info.dbname
    stage.execute(f"alter database {database} set client_connection_check_interval = '7s'")
    with connect.connect(stage.url) as conn:
        assert conn.execute(SHOW).fetchone() == (7000,)


def test_a_server_that_refuses_the_check_is_used_without_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "CONNECTION_CHECK", "-1")  # refused, as any value on Windows
    with connect.connect(stage.url) as conn:
        assert conn.execute(SHOW).fetchone() == (0,)

    async def ask() -> Any:
        async with await aconnect(stage.url) as conn:
            return await (await conn.execute(SHOW)).fetchone()

    assert asyncio.run(ask()) == (0,)


def test_in_a_session_that_is_not_its_own_the_check_is_local(stage: Stage) -> None:
    """As behind a pooler: the process that answers is not the one that was connected to."""
    meant, answering = stage.connect(), stage.connect()
    question = connect._ask("faultline", meant)
    assert answering.execute(question).fetchone() is not None
    assert answering.execute(SHOW).fetchone() == (0,)
    meant.execute(question)
    assert meant.execute(SHOW).fetchone() == (2000,)


@needs_pgbouncer
def test_behind_a_pooler_no_other_client_gets_the_check(stage: Stage) -> None:
    with pgbouncer(stage.url, "default_pool_size = 1") as url:
        with connect.connect(url) as conn:
            assert connect.pooled(conn)
        with psycopg.connect(url, autocommit=True) as other:
            assert other.execute(SHOW).fetchone() == (0,)
