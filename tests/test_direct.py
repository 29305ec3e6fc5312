"""Enqueues that go past psycopg's cursor: the tenth is as the first, whatever is in it.

Method: the same enqueue again and again on one connection, so that the first ones are sent with a
cursor and the later ones without; what the database has of them is compared.
"""

from __future__ import annotations

import asyncio
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from psycopg import Rollback
from psycopg.types.string import StrDumper

from faultline import App, Backoff
from faultline.direct import MOST, USES, Direct
from faultline.drills.proxy import Fate, Moment, Proxy
from faultline.enqueueing import SUPPOSED
from faultline.errors import IdempotencyConflict, InvalidArgument
from faultline.protocol import enqueues
from tests.pooler import needs_pgbouncer, pgbouncer
from tests.stage import BLOCKED, Stage, until, unwatched

OFTEN = USES + 3
PREPARED = "select count(*) from pg_prepared_statements where name like 'faultline_%%'"


class Prepared:
    """Asks the producer's own connection how many statements it has prepared."""

    def run(self, conn: Any) -> int:
        assert isinstance(conn, Direct)
        row = conn.execute(PREPARED).fetchone()
        assert row is not None
        return int(row[0])


@pytest.fixture
def app(stage: Stage) -> Iterator[App]:
    with App(stage.url) as app:
        yield app


def of_jobs(stage: Stage) -> list[Any]:
    """What the database has of each job, but for what differs from one to the next."""
    return stage.execute(
        "select lane, max_attempts, max_crashes, lease_seconds, backoff_seconds, "
        "backoff_cap_seconds, task, producer, payload, headers - 'faultline-due' "
        "from {schema}.job order by id"
    )


def prepared(app: App) -> int:
    return app._producer.run(Prepared())


def test_what_is_asked_again_and_again_is_prepared_once_and_what_is_not_never(app: App) -> None:
    for _ in range(USES):
        app.enqueue("work")
    assert prepared(app) == 0
    for _ in range(3):
        app.enqueue("work")
    assert prepared(app) == 1
    app.enqueue("work", {"a": 1}, queue="other")
    assert prepared(app) == 1


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"name": "O'Reilly"},
        {"name": "back\\slash \\' $1 %s %%"},
        {"name": "ü€😀", "more": ["\x01\n\t", None, True, 1e-30, -0.5, 2**62]},
        {"long": "x" * 100_000},
    ],
    ids=["nothing", "a quote", "marks", "any character", "long"],
)
def test_whatever_a_payload_contains_the_last_arrives_as_the_first(
    app: App, stage: Stage, payload: Any
) -> None:
    for _ in range(OFTEN):
        app.enqueue("work", payload)
    first, *others = of_jobs(stage)
    assert first[8] == payload
    assert others == [first] * (OFTEN - 1)
    assert prepared(app) == 1


@pytest.mark.parametrize(
    ("options", "is_prepared"),
    [
        ({"queue": "some'where", "priority": -3, "notify": False}, True),
        ({"lease_seconds": 0.25, "max_attempts": 7, "max_crashes": 2}, True),
        ({"headers": {"a": "ü'\\"}, "retry": Backoff(1.5, 20)}, True),
        ({"delay_seconds": 3600.5}, True),
        ({"run_at": datetime.now(UTC) + timedelta(days=1)}, False),
    ],
)
def test_whatever_its_options_are_the_last_job_is_as_the_first(
    app: App, stage: Stage, options: Any, is_prepared: bool
) -> None:
    for _ in range(OFTEN):
        app.enqueue("work", {}, **options)
    first, *others = of_jobs(stage)
    assert others == [first] * (OFTEN - 1)
    assert prepared(app) == is_prepared, "what is no plain value is a cursor's"


@pytest.mark.parametrize("verb", ["enqueue", "enqueue_many"])
def test_what_clients_leave_out_is_what_the_database_supposes(stage: Stage, verb: str) -> None:
    """In every release: a client of another one leaves it out as well."""
    found = stage.value(
        "select pg_get_function_arguments(oid) from pg_proc "
        "where pronamespace = '{schema}'::regnamespace and proname = %s", verb,
    )  # fmt: skip
    defaults = dict(re.findall(r"(\w+) [\w ]+ DEFAULT ([^,]+)", found))
    supposed = {name: defaults[name].split("::")[0].strip("'") for name in SUPPOSED}
    assert {name: type(SUPPOSED[name])(value) for name, value in supposed.items()} == SUPPOSED
    assert supposed["notify"] == "true"


def test_a_refusal_is_the_same_error_with_and_without_a_cursor(app: App) -> None:
    for n in range(OFTEN):
        app.enqueue("work", {"n": 1}, idempotency_key="one")
        with pytest.raises(IdempotencyConflict):
            app.enqueue("work", {"n": n + 2}, idempotency_key="one")
        with pytest.raises(InvalidArgument, match="128 characters"):
            app.enqueue("work", queue="q" * 129)


def test_of_many_batches_the_last_is_as_the_first(app: App, stage: Stage) -> None:
    task = app.task(lambda **_: None, name="work")
    arguments = [{}, {"name": "ü'\\ $1 %s"}, *[{"long": "x" * 900_000}] * 6]  # megabytes
    for _ in range(OFTEN):
        jobs = task.enqueue_many(arguments)
        found = stage.execute("select id, payload from {schema}.job order by id desc limit 8")
        assert [(job.id, each) for job, each in zip(jobs, arguments, strict=True)] == found[::-1]
    assert prepared(app) == 1


def test_a_zero_byte_is_refused_and_never_taken_for_the_end(app: App, stage: Stage) -> None:
    for _ in range(OFTEN):
        app.enqueue("work", queue="here")
    with pytest.raises(InvalidArgument):
        app.enqueue("work", queue="here\0and there")
    assert len(of_jobs(stage)) == OFTEN


def test_an_enqueue_that_was_interrupted_while_it_prepared_breaks_none_after_it(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Ctrl-C, after the server has prepared it and before we know."""
    wait = Direct.wait

    def interrupted(conn: Direct, generator: Any) -> None:
        wait(conn, generator)
        raise KeyboardInterrupt

    for _ in range(USES):
        app.enqueue("work")
    with monkeypatch.context() as patch:
        patch.setattr(Direct, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            app.enqueue("work")
    for _ in range(OFTEN):
        app.enqueue("work")
    assert prepared(app) == 2


class Discard:
    """As a pooler does, behind whoever believes that a session is theirs alone."""

    def run(self, conn: Any) -> None:
        conn.execute("discard all")


def test_a_session_that_has_forgotten_what_it_had_prepared_costs_no_enqueue(
    app: App, stage: Stage
) -> None:
    task = app.task(lambda **_: None, name="work")
    for _ in range(2):
        for _ in range(OFTEN):
            task.enqueue()
            task.enqueue_many([{"a": 1}])
        assert prepared(app) == 2
        app._producer.run(Discard())
    task.enqueue()
    assert len(of_jobs(stage)) == 4 * OFTEN + 1


TIMES, ROLLBACK_EVERY = 30, 10


class RollingBack:
    """As the service does: each call in a transaction, some of which are rolled back. psycopg has
    prepared a statement of its own by then, so it has the server forget all of them."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def run(self, conn: Any) -> None:
        for number in range(1, TIMES + 1):
            with suppress(Rollback), conn.transaction():
                conn.execute("select 1")
                self._call.run(conn)
                if number % ROLLBACK_EVERY == 0:
                    assert conn._prepared._names, "psycopg has something to be forgotten"
                    raise Rollback


def test_what_a_rollback_has_made_forgotten_costs_no_enqueue_in_a_transaction(
    app: App, stage: Stage
) -> None:
    for _ in range(OFTEN):
        app.enqueue("work")
    assert prepared(app) == 1
    app._producer.run(RollingBack(enqueues("faultline", "work", {})({}, None)))
    for _ in range(OFTEN):
        app.enqueue("work")
    assert len(of_jobs(stage)) == 2 * OFTEN + TIMES - TIMES // ROLLBACK_EVERY
    assert prepared(app) == 1


def test_an_id_is_accepted_whatever_type_the_application_sends_text_as(
    app: App, stage: Stage
) -> None:
    """By default psycopg leaves the type of a text to the server."""
    with app.connect() as conn:
        conn.adapters.register_dumper(str, StrDumper)
        enqueues("faultline", "work", {})({}, app._producer.ids.text()).run(conn)
    assert len(of_jobs(stage)) == 1


class Interrupted(Exception):
    """What the handler of a signal raises, as those of time limits do."""


def test_an_enqueue_that_a_signal_interrupts_is_cancelled_and_breaks_none_after_it(
    stage: Stage,
) -> None:
    """In the middle of the answer: the server waits for a table that another session holds."""
    app = App(unwatched(stage.url))

    def interrupt(*_: object) -> None:
        raise Interrupted

    for number in range(OFTEN):
        app.enqueue("work", {"number": number})
    holder = stage.connect(isolation="read committed")
    holder.execute("lock table faultline.job")
    waits = f"select count(*) from {BLOCKED}"
    before = signal.signal(signal.SIGUSR1, interrupt)
    main = threading.get_ident()

    def watch() -> None:
        until(lambda: stage.value(waits) == 1, "the enqueue waits")
        signal.pthread_kill(main, signal.SIGUSR1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with pytest.raises(Interrupted):
            app.enqueue("work")
    finally:
        watcher.join()
        signal.signal(signal.SIGUSR1, before)
    until(lambda: stage.value(waits) == 0, "the server was told that nobody waits any more")
    holder.rollback()
    app.enqueue("work")
    app.close()
    assert len(of_jobs(stage)) == OFTEN + 1


class Sent:
    """libpq, on which a signal comes after a statement was sent and before anything else is done;
    by then the server is at it."""

    def __init__(self, real: Any, stage: Stage) -> None:
        self._real = real
        self._stage = stage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def send_query_prepared(self, *what: Any) -> None:
        self._real.send_query_prepared(*what)
        until(lambda: self._stage.value(f"select count(*) from {BLOCKED}") == 1, "it waits")
        raise Interrupted


def test_an_enqueue_that_is_interrupted_right_after_it_was_sent_is_cancelled(stage: Stage) -> None:
    conn = Direct.connect(stage.url, autocommit=True)
    session, enqueue = conn.info.backend_pid, stage.verbs.enqueue("work", {})
    for _ in range(OFTEN):
        enqueue.run(conn)
    holder = stage.connect(isolation="read committed")
    holder.execute("lock table faultline.job")
    conn.pgconn = Sent(conn.pgconn, stage)  # type: ignore[assignment]
    with pytest.raises(Interrupted):
        enqueue.run(conn)
    conn.close()
    holder.rollback()
    ended = "select count(*) = 0 from pg_stat_activity where pid = %s"
    until(lambda: stage.value(ended, session), "the server is done with it")
    assert len(of_jobs(stage)) == OFTEN


def test_as_many_statements_are_prepared_as_there_is_room_for(app: App) -> None:
    options = {"queue": "q", "priority": 1, "max_attempts": 2, "max_crashes": 2, "notify": False}
    several = [
        {name: value for bit, (name, value) in enumerate(options.items()) if number >> bit & 1}
        for number in range(2 ** len(options))
    ]
    more = [{**some, "lease_seconds": 9.0} for some in several]
    assert len(several + more) > MOST
    for _ in range(OFTEN):
        for some in several + more:
            app.enqueue("work", {}, **some)
    assert prepared(app) == MOST


def test_in_another_encoding_nothing_is_sent_past_a_cursor(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    with App(stage.url) as app:
        for _ in range(OFTEN):
            app.enqueue("work", {"name": "Zoë"})
        assert prepared(app) == 0
    assert [row[8] for row in of_jobs(stage)] == [{"name": "Zoë"}] * OFTEN


def test_an_enqueue_without_a_cursor_whose_answer_was_lost_is_one_job(stage: Stage) -> None:
    lost: list[str] = []

    def lose_one(moment: Moment) -> Fate | None:
        if lost or "enqueue" not in moment.text:
            return None
        lost.append(moment.text)
        return Fate.LOSE_ANSWER

    with Proxy(stage.url) as proxy, App(proxy.url) as app:
        for _ in range(OFTEN):
            app.enqueue("work")
        proxy.when(lose_one)
        app.enqueue("work")
        asyncio.run(app.aenqueue("work"))
    assert len(lost) == 1
    assert len(of_jobs(stage)) == OFTEN + 2


@needs_pgbouncer
def test_behind_a_pooler_nothing_is_prepared(stage: Stage) -> None:
    with pgbouncer(stage.url) as url, App(url) as app:
        for _ in range(OFTEN):
            app.enqueue("work")
        assert prepared(app) == 0
    assert len(of_jobs(stage)) == OFTEN


def test_a_session_that_the_server_ended_because_it_was_idle_costs_no_enqueue(
    stage: Stage,
) -> None:
    with stage.login("producer") as url:
        user = urlsplit(url).username
        stage.execute(f"alter role {user} set idle_session_timeout = '50ms'")
        with App(url) as app:
            sessions = f"select count(*) from pg_stat_activity where usename = '{user}'"
            until(lambda: stage.value(sessions) == 0, "it was ended after it was opened")
            app.enqueue("work")
            until(lambda: stage.value(sessions) == 0, "they were ended")
            app.enqueue("work")
    assert len(of_jobs(stage)) == 2
