"""The app's own connections: breaks, restarts, forks, threads, the end of a program.

An answer is lost for real: a proxy lets the statement through to the server and then cuts the line.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import psycopg
import pytest

from faultline import App, DatabaseUnavailable
from faultline.connect import connect, pooled
from faultline.ids import Ids
from faultline.launcher import Server
from faultline.migrate import migrate
from faultline.producer import MAX_CONNECTIONS, MAX_RETRIES
from tests.clocks import needs_a_wrong_clock, off_by
from tests.conftest import OPTIONS
from tests.pooler import needs_pgbouncer, pgbouncer
from tests.stage import Stage, until


@pytest.fixture
def app(stage: Stage) -> Iterator[App]:
    with App(stage.url) as app:
        yield app


class Line:
    """A proxy before the server that can lose the answer to a statement."""

    def __init__(self, url: str) -> None:
        self._server = urlsplit(url)
        self._socket = socket.create_server(("127.0.0.1", 0))
        port = self._socket.getsockname()[1]
        login = self._server.netloc.rpartition("@")[0]
        self.url = urlunsplit(self._server._replace(netloc=f"{login}@127.0.0.1:{port}"))
        self.lose = 0  # answers still to be lost
        self.lost = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                address = (self._server.hostname, self._server.port)
                server = socket.create_connection(address)
                for work in (self._ask, self._answer):
                    threading.Thread(target=work, args=(client, server), daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                losing = self.lose > 0 and b".enqueue" in data
                if losing:
                    # Shut the way back first: the server's answer must not get through.
                    self.lose -= 1
                    client.shutdown(socket.SHUT_WR)
                server.sendall(data)
                if losing:
                    self.lost += 1
        with suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                client.sendall(data)
        for end in (client, server):
            with suppress(OSError):
                end.close()


@pytest.fixture
def line(stage: Stage) -> Iterator[Line]:
    line = Line(stage.url)
    yield line
    line.close()


def jobs(stage: Stage) -> int:
    return int(stage.value("select count(*) from {schema}.job"))


# ── breaks ───────────────────────────────────────────────────────────────────────────────────────


def test_an_enqueue_whose_answer_was_lost_is_one_job(line: Line, stage: Stage) -> None:
    with App(line.url) as app:
        app.enqueue("work")
        line.lose = 2
        job = app.enqueue("work", {"n": 1})
        many = app.task(name="many")(lambda n: n)
        line.lose = 1
        batch = many.enqueue_many([{"n": 1}, {"n": 2}])
        until(lambda: line.lost == 3, "the line has passed all three on")
        assert job.status().state == "queued"
    assert jobs(stage) == 4
    assert len({job.id for job in batch}) == 2
    assert stage.violations() == []


def test_retries_are_bounded_and_the_doubt_is_said(line: Line, stage: Stage) -> None:
    with App(line.url) as app:
        app.enqueue("work")
        line.lose = MAX_RETRIES + 1
        with pytest.raises(DatabaseUnavailable, match="whether it was carried out is not known"):
            app.enqueue("work")
        assert line.lose == 0
    until(lambda: jobs(stage) == 2, "the server has carried out what it was sent")


@needs_a_wrong_clock
@pytest.mark.parametrize("offset", ["+30h", "-30h"])
def test_a_lost_answer_is_harmless_also_for_a_client_whose_clock_is_wrong(
    offset: str, stage: Stage
) -> None:
    """The id has to be accepted: one that is far off is replaced, and its retry is a second job."""
    program = textwrap.dedent("""
        import sys
        from faultline import App
        app = App(sys.argv[1])
        print(app.enqueue("work").id, app._producer.ids())
    """)
    command = [*off_by(offset), sys.executable, "-c", program, stage.url]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    for made in map(UUID, said):
        assert abs(moment(made) - datetime.now(UTC)).total_seconds() < 60
    assert stage.execute("select id from {schema}.job") == [(UUID(said[0]),)]


def test_connections_that_the_server_closed_are_replaced_unnoticed(app: App, stage: Stage) -> None:
    def one(_: int) -> None:
        app.enqueue("work")

    with ThreadPoolExecutor(MAX_CONNECTIONS) as threads:
        list(threads.map(one, range(20)))
        closed = stage.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where pid <> pg_backend_pid() and datname = current_database()"
        )
        assert closed
        list(threads.map(one, range(20)))
    assert jobs(stage) == 40


def test_producers_go_on_by_themselves_after_a_restart_of_the_server() -> None:
    server = Server.temporary(options=OPTIONS)
    with server, ExitStack() as stack:
        with psycopg.connect(server.url, autocommit=True) as conn:
            migrate(conn, "faultline")
        app = stack.enter_context(App(server.url))
        ended = threading.Event()
        sent: list[UUID] = []

        def keep_sending() -> None:
            while not ended.is_set():
                sent.append(app.enqueue("work").id)

        with ThreadPoolExecutor(2) as threads:
            sending = [threads.submit(keep_sending) for _ in range(2)]
            until(lambda: len(sent) > 10, "jobs are being sent")
            server.restart()
            before = len(sent)
            until(lambda: len(sent) > before + 10, "jobs are being sent again")
            ended.set()
            for future in sending:
                future.result(60)
        with Stage(server.url) as stage:
            assert stage.value("select count(*) from {schema}.job") == len(set(sent))
            assert stage.violations() == []


def test_a_deadlock_that_the_enqueue_lost_is_tried_again(stage: Stage) -> None:
    """The batch holds key a and waits for b, another session the other way round. The batch looks
    for deadlocks sooner, so it is the one that the server chooses."""
    stage.enqueue()  # so that nobody has to make the queue first
    other = stage.connect(isolation="read committed")
    other.execute("set deadlock_timeout = '60s'")
    stage.verbs.enqueue("work", idempotency_key="b").run(other)
    with App(f"{stage.url}?options=-c%20deadlock_timeout%3D4s") as app:
        work = app.task(name="work")(lambda: None)
        items = [work.options(idempotency_key=key).item() for key in ("a", "b")]
        answers: list[Any] = []
        sending = threading.Thread(target=lambda: answers.extend(work.enqueue_many(items)))
        sending.start()
        waiting = (
            "select count(*) from pg_stat_activity where wait_event_type = 'Lock' "
            "and datname = current_database()"
        )
        until(lambda: stage.value(waiting), "the batch waits for b")
        first = stage.verbs.enqueue("work", idempotency_key="a").run(other)
        other.commit()
        sending.join(60)
    assert answers[0].id == first
    assert jobs(stage) == 3
    assert stage.violations() == []


# ── processes and threads ────────────────────────────────────────────────────────────────────────


def test_many_threads_and_loops_share_a_few_connections(app: App, stage: Stage) -> None:
    async def some() -> None:
        await asyncio.gather(*(app.aenqueue("work") for _ in range(20)))

    threads = [threading.Thread(target=lambda: asyncio.run(some())) for _ in range(3)]
    threads += [threading.Thread(target=lambda: app.enqueue("work")) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert jobs(stage) == 80
    sessions = "select count(*) from pg_stat_activity where application_name = 'faultline' and "
    assert stage.value(sessions + "datname = current_database()") <= MAX_CONNECTIONS


def run(program: str, url: str) -> str:
    """A user's program, with every warning an error; it has to end by itself."""
    command = [sys.executable, "-W", "error", "-X", "dev", "-c", textwrap.dedent(program), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    # asyncio, which is in its debug mode here, says how busy the machine is.
    slow = re.compile(r"Executing <.*> took \d+\.\d+ seconds\n")
    assert slow.sub("", done.stderr) == ""
    assert done.returncode == 0
    return done.stdout


def test_a_program_that_closes_nothing_ends_quietly(stage: Stage) -> None:
    run(
        """
        import asyncio, sys
        from faultline import App
        app = App(sys.argv[1])
        app.enqueue("work")
        asyncio.run(app.aenqueue("work"))
        asyncio.run(app.aenqueue("work"))
        """,
        stage.url,
    )
    assert jobs(stage) == 3


def test_an_app_that_was_forgotten_leaves_quietly(stage: Stage) -> None:
    run(
        """
        import gc, sys
        from faultline import App
        for _ in range(3):
            App(sys.argv[1]).enqueue("work")
            gc.collect()
        """,
        stage.url,
    )
    assert jobs(stage) == 3


def test_a_fork_after_use_shares_no_connection_with_its_parent(stage: Stage) -> None:
    said = run(
        """
        import asyncio, gc, os, sys, warnings
        from faultline import App
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # 3.12: threads and fork
        app = App(sys.argv[1])
        app.enqueue("work")
        asyncio.run(app.aenqueue("work"))
        children = []
        for _ in range(3):
            if (child := os.fork()) == 0:
                gc.collect()
                app.enqueue("work")
                asyncio.run(app.aenqueue("work"))
                sys.exit(0)
            children.append(child)
        print([os.waitpid(child, 0)[1] for child in children])
        app.enqueue("work")
        print(app._producer._pool.get_stats()["connections_num"])
        """,
        stage.url,
    )
    assert said.splitlines() == ["[0, 0, 0]", "2"] or said.splitlines() == ["[0, 0, 0]", "1"]
    assert jobs(stage) == 9


def test_closing_lets_go_of_the_connections_and_use_opens_new_ones(stage: Stage) -> None:
    sessions = (
        "select count(*) from pg_stat_activity where application_name = 'faultline' and "
        "datname = current_database()"
    )
    with App(stage.url) as app:
        app.enqueue("work")
        assert stage.value(sessions) == 1
    until(lambda: stage.value(sessions) == 0, "the session has ended")
    app.enqueue("work")
    asyncio.run(use(app))
    until(lambda: stage.value(sessions) == 0, "the session has ended")
    assert jobs(stage) == 3


async def use(app: App) -> None:
    async with app:
        await app.aenqueue("work")


# ── poolers ──────────────────────────────────────────────────────────────────────────────────────


@needs_pgbouncer
def test_a_producer_works_through_a_pooler_in_transaction_mode(stage: Stage) -> None:
    with stage.login("producer") as url, pgbouncer(url) as through, App(through) as app:
        work = app.task(name="work")(lambda n: n)
        for n in range(3 * MAX_CONNECTIONS):
            work.enqueue(n=n)
        work.enqueue_many([{"n": n} for n in range(10)])
        with connect(through) as conn:
            assert pooled(conn)
            assert conn.prepare_threshold is None
    with connect(stage.url) as conn:
        assert not pooled(conn)
        assert conn.prepare_threshold is not None


# ── ids ──────────────────────────────────────────────────────────────────────────────────────────


def moment(job_id: UUID) -> datetime:
    return datetime.fromtimestamp((job_id.int >> 80) / 1000, UTC)


def test_ids_rise_are_of_version_7_and_never_repeat() -> None:
    ids = Ids()
    made = [ids() for _ in range(20_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert {(made_id.version, made_id.variant) for made_id in made} == {
        (7, "specified in RFC 4122")
    }
    assert abs(moment(made[0]) - datetime.now(UTC)).total_seconds() < 60


@pytest.mark.parametrize("year", [2001, 2099])
def test_ids_follow_the_database_s_clock_wherever_it_is(year: int) -> None:
    ids = Ids()
    ids()
    ids.correct(datetime(year, 6, 1, tzinfo=UTC).timestamp())
    assert moment(ids()).year == year
    ids.correct(datetime(2030, 6, 1, tzinfo=UTC).timestamp())
    assert moment(ids()).year == 2030


def test_a_small_correction_does_not_let_ids_fall_back() -> None:
    ids = Ids()
    now = datetime(2030, 6, 1, tzinfo=UTC).timestamp()
    ids.correct(now)
    before = ids()
    ids.correct(now - 1)
    assert ids() > before


def test_ids_of_a_forked_process_are_not_its_parents() -> None:
    ids = Ids()
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writer, ids().bytes)
        os._exit(0)
    os.waitpid(child, 0)
    theirs = UUID(bytes=os.read(reader, 16))
    os.close(reader)
    os.close(writer)
    assert theirs != ids()
