"""The database goes away under a working worker, and comes back."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit, urlunsplit

import pytest

from faultline.drills.workers import descendants
from faultline.launcher import Server
from faultline.migrate import migrate
from faultline.worker import outage
from faultline.worker.parent import ENDING_SECONDS as ALL_ENDING_SECONDS
from faultline.worker.worker import ENDING_SECONDS
from tests.conftest import OPTIONS
from tests.stage import DEADLINE_SECONDS, Stage, until
from tests.workers import Ground, Process


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of this test's own, to be mistreated."""
    with Server.temporary(options=OPTIONS) as server:
        yield server


def prepared(server: Server) -> None:
    with Stage(server.url) as stage:
        migrate(stage.conn, "faultline")
        Ground(stage)


def crash(server: Server) -> None:
    """An immediate shutdown: no checkpoint, no good-bye."""
    os.kill(server.pid, signal.SIGQUIT)
    until(lambda: not server.is_running(), "the server is down")


def effects(stage: Stage) -> list[tuple[int, int]]:
    """Which attempt has written what. An attempt that was lost after its write is made again: the
    write and the job's end are two commits here."""
    return [(token, int(note)) for token, note in stage.execute("select token, note from effect")]


def unfinished(stage: Stage) -> int:
    return int(stage.value("select count(*) from {schema}.jobs where state <> 'succeeded'"))


@pytest.mark.parametrize("fault", ["immediate restart", "backend killed", "outage"])
def test_a_worker_goes_on_by_itself_when_the_server_does_and_nothing_is_lost_or_done_twice(
    server: Server, fault: str
) -> None:
    """In mid-load, with leases of 3 s and, for the outage, 5 s without a server."""
    prepared(server)
    count = 200
    with Stage(server.url) as stage:
        held = stage.enqueue("stays", lease_seconds=3)
        for number in range(count):
            stage.enqueue("effect_once", {"number": number}, lease_seconds=3)
    with Process(server.url, "--concurrency", "5", "--grace-seconds", "1") as worker:
        until(lambda: len(worker.told("job_completed")) > 20, "the load is on")
        if fault == "immediate restart":
            crash(server)
            server.restart()
        elif fault == "backend killed":  # the server resets all sessions
            with Stage(server.url) as stage:
                [(pid,)] = stage.execute(  # the worker's own: a handler's may be gone already
                    "select pid from pg_stat_activity where application_name = 'faultline' "
                    "order by backend_start limit 1"
                )
            os.kill(pid, signal.SIGKILL)
        else:
            crash(server)
            worker.until("lease_lost", job_id=held, reason="deadline")  # it stops what it may lose
            server.restart()
        worker.until("database_back")

        def finished() -> bool:
            with Stage(server.url) as stage:
                states = dict(stage.execute("select state, count(*) from {schema}.jobs group by 1"))
            return states == {"succeeded": count, "running": 1} or states == {
                "succeeded": count + 1
            }

        until(finished, f"all jobs are done: {worker.events[-5:]}")
        worker.terminate()
        assert worker.ended() == 0
    with Stage(server.url) as stage:
        assert {number for _, number in effects(stage)} == set(range(count)), "nothing is lost"
        assert len(effects(stage)) == len(set(effects(stage))), "no attempt commits twice"
        assert stage.value("select count(*) from {schema}.ledger") == count + 1 - unfinished(stage)
        if fault == "outage":
            assert stage.job(held)["result"] != "token 1"
        assert stage.violations() == []


def test_a_worker_that_is_to_end_while_the_database_is_away_does_not_wait_for_ever(
    server: Server,
) -> None:
    prepared(server)
    with Stage(server.url) as stage:
        job_id = stage.enqueue("stays", lease_seconds=3)
    with Process(server.url) as worker:
        worker.until("execution_started", job_id=job_id)
        crash(server)
        worker.until("database_lost")
        worker.terminate()
        worker.until("worker_draining")
        worker.terminate()
        assert worker.ended() == 1
        assert worker.told("worker_exit", reason="database away")
    server.restart()
    with Process(server.url), Stage(server.url) as stage:
        until(lambda: stage.state(job_id) == "succeeded", "somebody else goes on")
        assert stage.violations() == []


# ── a server that is there and does not answer ───────────────────────────────────────────────────


@contextmanager
def frozen(server: Server) -> Iterator[None]:
    """Nothing is refused and nothing breaks off: there is just no answer."""
    pids = [server.pid, *descendants(server.pid)]
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def at_ten_hosts(url: str) -> str:
    """Name the server ten times: if it does not answer, it takes 105 s to open a connection."""
    parts = urlsplit(url)
    login, _, address = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{login}@{','.join([address] * 10)}"))


@pytest.mark.parametrize("has_noticed", [False, True], ids=["at once", "noticed"])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_hurried_worker_has_ended_in_time_though_its_database_does_not_answer(
    server: Server, processes: int, has_noticed: bool
) -> None:
    """Calls are under way when it is hurried; or, once it has noticed, a connection is opened."""
    prepared(server)
    with Stage(server.url) as stage:
        tasks = ("stays", "inside_a_transaction")
        jobs = [stage.enqueue(task, lease_seconds=60) for task in tasks]
    options = ("--processes", str(processes), "--poll-seconds", "0.1")
    with Process(at_ten_hosts(server.url), *options) as worker:
        until(lambda: len(worker.told("worker_started")) == processes, "all of them work")
        worker.until("execution_started", job_id=jobs[0])
        with Stage(server.url) as stage:
            until(lambda: stage.value("select count(*) from mark where note = 'in'"), "it is in")
        with frozen(server):
            if has_noticed:
                worker.until("database_lost")
            worker.terminate()
            until(lambda: len(worker.told("worker_draining")) == processes, "all of them drain")
            worker.terminate()
            hurried_at = time.monotonic()
            assert worker.ended() == (1 if processes == 1 else 0)
            took = time.monotonic() - hurried_at
        assert took < (ENDING_SECONDS if processes == 1 else ALL_ENDING_SECONDS) + 30
        assert worker.told("worker_exit", reason="database away")
    with Stage(server.url) as stage:
        for job_id in jobs:  # what was sent may be written when the server goes on
            assert stage.outcomes(job_id) in ([], [(1, "released")])
        assert stage.violations() == []


def test_a_pause_between_two_tries_is_no_longer_than_there_is_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outage, "FIRST_SECONDS", 3600.0)
    waiting = outage.Outage("A", outage.nothing).wait(OSError("away"), 0.01)
    asyncio.run(asyncio.wait_for(waiting, DEADLINE_SECONDS))
