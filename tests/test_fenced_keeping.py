"""Between a fenced transaction and the keeper of its lease: who may say what while it commits.

app.testing() behind a proxy, which holds a statement or its answer until the test has done the
other thing: the order that a slow network makes by chance.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from faultline import App, Context
from faultline.drills.proxy import Fate, Moment, Proxy
from faultline.jobs import Lease
from faultline.protocol import Protocol
from faultline.testing import Testing
from faultline.worker.attempt import Attempt, Hands
from faultline.worker.endings import Gone, Settled, Unsure, ending_of
from faultline.worker.keeper import _due_at
from faultline.worker.session import Session
from faultline.worker.settler import Settler
from tests.charging import INSERT, TABLES, app, events, notes
from tests.stage import Stage, until
from tests.workers import PATH

__all__ = ["app"]


@pytest.fixture
def proxy(database: str) -> Iterator[Proxy]:
    with Proxy(database) as proxy:
        yield proxy


@pytest.fixture
def testing(app: App, proxy: Proxy) -> Iterator[Testing]:
    with app.testing(database=proxy.url) as testing:
        testing.connection.execute(TABLES)
        yield testing


def hold_the_answer_to_the_commit(moment: Moment) -> Fate | None:
    return Fate.HOLD_ANSWER if moment.is_commit and moment.fence is not None else None


def hold_the_renewal(moment: Moment) -> Fate | None:
    return Fate.HOLD_REQUEST if "faultline.renew(" in moment.text else None


def renew_now(testing: Testing, ctx: Context) -> Attempt:
    """The keeper asks for this attempt's lease; its `renew_at` moves when the answer is heeded."""
    attempt = ctx._attempt
    assert attempt is not None
    attempt.renew_at = 0.0
    testing._runner._started_keeper().wake()
    return attempt


def ended_well(testing: Testing, job: Any, contexts: list[Context]) -> None:
    assert notes(testing) == ["paid"]
    assert testing.refusals(job) == []
    assert not {"lease_lost", "stale_write_blocked", "ending_ignored"} & set(events(testing))
    assert events(testing).count("job_completed") == 1
    assert contexts[0].cancel_reason in (None, "shutdown")


def test_a_lease_that_its_own_commit_has_just_ended_is_not_called_lost(
    app: App, testing: Testing, proxy: Proxy
) -> None:
    contexts: list[Context] = []

    @app.task
    def charge(ctx: Context) -> None:
        contexts.append(ctx)
        with ctx.transaction() as tx:
            tx.execute(INSERT, (ctx.job_id, ctx.token, "paid"))
            tx.complete("by its own commit")

    job = charge.enqueue()
    proxy.when(hold_the_answer_to_the_commit)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(testing.run, job)
        until(lambda: proxy.held, "it is committed, and only the server knows")
        attempt = renew_now(testing, contexts[0])
        until(lambda: attempt.renew_at or attempt.told, "the renewal is refused")
        proxy.release()
        assert running.result().result == "by its own commit"
    ended_well(testing, job, contexts)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_renewal_that_was_under_way_when_the_job_was_completed_tells_nobody_to_stop(
    app: App, testing: Testing, proxy: Proxy, kind: str
) -> None:
    contexts: list[Context] = []

    def begin(ctx: Context, tx: Any) -> Attempt:
        contexts.append(ctx)
        proxy.when(hold_the_renewal)
        attempt = renew_now(testing, ctx)
        until(lambda: proxy.held, "the renewal is on its way")
        tx.complete("before the renewal came")
        return attempt

    def finish(attempt: Attempt) -> None:
        proxy.release()
        until(lambda: attempt.renew_at or attempt.told, "the renewal is refused")

    @app.task(name="sync")
    def sync(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.execute(INSERT, (ctx.job_id, ctx.token, "paid"))
            attempt = begin(ctx, tx)
        finish(attempt)

    @app.task(name="async")
    async def asynchronous(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, (ctx.job_id, ctx.token, "paid"))
            attempt = begin(ctx, tx)
        finish(attempt)
        await asyncio.sleep(0)  # where it would be cancelled

    job = app.enqueue(kind)
    assert testing.run(job).result == "before the renewal came"
    ended_well(testing, job, contexts)


def test_the_keeper_looks_again_while_a_transaction_keeps_the_lease() -> None:
    counts = {"attempts": 0, "crashes": 0, "snoozes": 0}
    lease = Lease(
        **counts,
        job_id=uuid4(),
        token=1,
        lane=1,
        seq=1,
        lease_seconds=6.0,
        task="charge",
        payload={},
        headers=None,
        last_chance=False,
    )
    attempt = Attempt(lease, None, 100.0)
    attempt.held = 1
    assert _due_at(attempt, 100.0) < 100.0 + lease.lease_seconds


def test_a_lease_is_kept_again_once_its_frozen_snapshot_is_over(app: App, testing: Testing) -> None:
    """While the snapshot lasts nobody renews; the worker has nothing else to do, and sleeps."""

    def expiry(ctx: Context) -> Any:
        asked = "select expires_at from faultline.lease where job_id = %s"
        return testing.connection.execute(asked, (ctx.job_id,)).fetchone()

    @app.task(lease_seconds=6)
    def charge(ctx: Context) -> str:
        with ctx.transaction(isolation="repeatable read") as tx:
            tx.execute("select pg_sleep(2.3)")  # a renewal would be due after a third
        before = expiry(ctx)
        until(lambda: expiry(ctx) != before or ctx.cancelled, "it is renewed, or told to stop")
        return str(ctx.cancel_reason)

    assert testing.run(charge.enqueue()).result == "None"
    assert "lease_lost" not in events(testing)


def test_a_handler_that_is_cancelled_in_the_middle_of_its_commit_has_committed(
    app: App, testing: Testing, proxy: Proxy
) -> None:
    contexts: list[Context] = []

    @app.task
    async def charge(ctx: Context) -> None:
        contexts.append(ctx)
        async with ctx.transaction() as tx:
            await tx.execute(INSERT, (ctx.job_id, ctx.token, "paid"))
            tx.complete("whatever came in between")

    job = charge.enqueue()
    proxy.when(hold_the_answer_to_the_commit)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(testing.run, job)
        until(lambda: proxy.held, "it is committed, and only the server knows")
        attempt = contexts[0]._attempt
        assert attempt is not None
        assert attempt.running is not None
        attempt.tell("shutdown")
        until(attempt.running.cancelling, "the handler is cancelled")
        proxy.release()
        assert running.result().result == "whatever came in between"
    assert attempt.has_ended_itself, "the block has heard of its own commit"
    assert type(ending_of(attempt, None)) is Settled, "nothing is left to be written"
    ended_well(testing, job, contexts)


def test_a_beat_that_names_the_life_of_the_server_does_not_end_the_transactions_in_it(
    app: App, testing: Testing
) -> None:
    """After a crash the life has no name until somebody beats; a transaction may begin before."""

    @app.task(max_attempts=1)
    def charge(ctx: Context) -> None:
        testing.connection.execute("truncate faultline.server_life")
        with ctx.transaction() as tx:
            tx.execute(INSERT, (ctx.job_id, ctx.token, "paid"))
            Protocol("faultline").beat("another", ["default"]).run(testing.connection)
            tx.complete("in one life")

    status = testing.run(charge.enqueue())
    assert (status.result, status.error) == ("in one life", None)
    assert notes(testing) == ["paid"]


def test_what_a_handler_returns_after_completing_need_not_be_fit_to_be_stored(
    app: App, testing: Testing
) -> None:
    @app.task
    def charge(ctx: Context) -> Any:
        with ctx.transaction() as tx:
            tx.complete("stored")
        return tx  # no JSON at all

    job = charge.enqueue()
    assert testing.run(job).result == "stored"
    assert testing.refusals(job) == []
    assert {"ending_ignored", "job_completed"} <= set(events(testing))
    assert "stale_write_blocked" not in events(testing)


def test_a_completion_that_nobody_knows_of_and_that_was_lost_leaves_nothing_to_write(
    stage: Stage,
) -> None:
    """Its answer was lost, and so was its lease: the worker has nothing to say, and goes on."""
    job_id = stage.enqueue()
    (lease,) = stage.claim("A")
    attempt, hands = Attempt(lease, None, time.monotonic()), Hands()
    hands.take([attempt])
    stage.take_over(job_id)

    async def settle() -> None:
        session = Session(stage.url, stage.schema)
        settler = Settler("A", Protocol(stage.schema), session, hands, lambda _: None)
        settler.add(Unsure(attempt, Gone(attempt)))
        try:
            await settler.settle()
        finally:
            await session.close()
        assert not settler

    asyncio.run(settle())
    assert len(hands) == 0


CUT = """
import socket, sys, threading
import psycopg
from faultline.connect import abort

def passed_on(source, target):
    while data := source.recv(1 << 16):
        target.sendall(data)

def line(listener, server):
    client, _ = listener.accept()
    for ends in ((client, server), (server, client)):
        threading.Thread(target=passed_on, args=ends, daemon=True).start()

host, port = psycopg.conninfo.conninfo_to_dict(sys.argv[1])["host"], sys.argv[2]
listener = socket.create_server(("127.0.0.1", 0))
server = socket.create_connection((host, port))
threading.Thread(target=line, args=(listener, server), daemon=True).start()
conn = psycopg.connect(sys.argv[1], host="127.0.0.1", port=listener.getsockname()[1])
abort(conn)
asking = listener.accept()  # the server is asked to give up, and does not answer
print("goes on", flush=True)
"""


def test_a_server_that_does_not_answer_does_not_stop_the_process_that_cuts_a_connection(
    database: str,
) -> None:
    """In a process of its own, which would otherwise not even notice its timeout."""
    command = [sys.executable, "-c", CUT, database, str(urlsplit(database).port)]
    environment = {**os.environ, "PYTHONPATH": PATH}
    cut = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert cut.stdout == "goes on\n", cut.stderr
