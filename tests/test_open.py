"""Opening ahead of use: after `app.open()` a first enqueue imports nothing and connects nowhere.

Nothing here looks at a clock; `make bench-first` does.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest

from faultline import App, DatabaseUnavailable
from faultline.producer import MAX_CONNECTIONS
from faultline.service import service
from tests.stage import Stage, until

NOBODY = "postgresql://nobody@127.0.0.1:1/none"
SESSIONS = (
    "select pid, backend_start from pg_stat_activity where application_name = 'faultline' and "
    "datname = current_database() and pid <> pg_backend_pid()"
)
START = f"""
import asyncio, gc, os, sys, threading
from faultline import App
app = App(sys.argv[1])

@app.task
def work(n: int = 0) -> None: ...

def sessions() -> set[object]:
    with app.connect() as conn:
        return set(conn.execute({SESSIONS!r}).fetchall())
"""
OPENING = {"open": "app.open()", "aopen": "asyncio.run(app.aopen())"}
TRACED = "import opentelemetry.trace\n"


def run(program: str, url: str) -> str:
    """Run a user's program in a process of its own; returns what it prints."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def sessions(stage: Stage) -> int:
    return len(stage.execute(SESSIONS))


# ── what the first enqueue finds ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("before", ["", TRACED], ids=["plain", "opentelemetry"])
@pytest.mark.parametrize("opening", OPENING)
def test_an_enqueue_after_open_imports_and_connects_nothing(
    opening: str, before: str, stage: Stage
) -> None:
    use = """
        known, connected = set(sys.modules), sessions()
        work.enqueue(n=1)
        work.options(idempotency_key="one", delay_seconds=60).enqueue(n=2)
        work.enqueue_many([{"n": 3}, {"n": 4}])
        app.enqueue("work", {"n": 5})
        asyncio.run(work.aenqueue(n=6))
        assert sys.modules.keys() == known, sys.modules.keys() - known
        assert sessions() == connected, (sessions(), connected)
        print(len(connected))
    """
    program = before + START + OPENING[opening] + textwrap.dedent(use)
    assert run(program, stage.url) == "1\n"
    assert stage.value("select count(*) from {schema}.job") == 6


def test_making_an_app_imports_no_driver_and_starts_no_thread() -> None:
    check = """
        heavy = {"psycopg", "psycopg_pool", "opentelemetry", "prometheus_client", "concurrent"}
        assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()
        assert threading.active_count() == 1
    """
    start = START.replace("import asyncio, gc, os, sys, threading", "import sys, threading")
    run(start + textwrap.dedent(check), NOBODY)


def test_open_again_from_many_threads_connects_no_more(stage: Stage) -> None:
    app = App(stage.url)
    try:
        with ThreadPoolExecutor(8) as threads:
            for opened in [threads.submit(app.open) for _ in range(8)]:
                opened.result(60)
        connected = stage.execute(SESSIONS)
        assert 1 <= len(connected) <= MAX_CONNECTIONS
        app.open()
        asyncio.run(app.aopen())
        assert stage.execute(SESSIONS) == connected
    finally:
        app.close()


def test_entering_an_app_opens_it_and_leaving_closes_it(stage: Stage) -> None:
    app = App(stage.url)

    async def enter() -> None:
        async with app:
            assert sessions(stage) == 1

    with app:
        assert sessions(stage) == 1
    until(lambda: sessions(stage) == 0, "the session has ended")
    asyncio.run(enter())
    until(lambda: sessions(stage) == 0, "the session has ended")
    away = App(NOBODY)
    with pytest.raises(DatabaseUnavailable, match=r"no connection to PostgreSQL"), away:
        pass


def test_a_fork_after_open_leaves_the_parent_its_connection(stage: Stage) -> None:
    """One child opens, the other just enqueues. A second app was made before, and not opened."""
    fork = """
        app.open()
        made = App(sys.argv[1])
        parents = sessions()
        children = []
        for opens in (True, False):
            if (child := os.fork()) == 0:
                gc.collect()
                if opens:
                    app.open()
                work.enqueue()
                own = sessions() - parents
                assert parents < sessions() and own, (parents, own)
                made.enqueue("work")
                sys.exit(0)
            children.append(child)
            assert os.waitpid(child, 0)[1] == 0
        work.enqueue()
        made.enqueue("work")
        assert parents < sessions()
    """
    run(START + textwrap.dedent(fork), stage.url)
    assert stage.value("select count(*) from {schema}.job") == 6


# ── who opens by itself ──────────────────────────────────────────────────────────────────────────


def test_the_service_connects_when_it_starts(stage: Stage) -> None:
    async def start(url: str, connected: int) -> None:
        web = service(App(url))
        try:
            async with web.router.lifespan_context(web):
                assert sessions(stage) == connected
        finally:
            web.state.access.close()

    asyncio.run(start(stage.url, 1))
    until(lambda: sessions(stage) == 0, "the session has ended")
    asyncio.run(start(NOBODY, 0))
