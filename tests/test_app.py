"""The app: where its database is, producers by name, and what a job says from outside."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

import faultline
from faultline import (
    App,
    DatabaseUnavailable,
    InvalidArgument,
    Job,
    JobCancelled,
    JobFailed,
    JobNotFound,
    NotPermitted,
    SchemaMismatch,
    WrongArguments,
)
from faultline.connect import connect
from faultline.migrate import migrate
from tests.stage import Stage

NOBODY = "postgresql://nobody@127.0.0.1:1/none"  # whoever talks to it fails


@pytest.fixture
def app(stage: Stage) -> Iterator[App]:
    with App(stage.url) as app:
        yield app


def ended(stage: Stage, job: Job[Any], **how: Any) -> None:
    """A worker has run the job, and this is what became of it."""
    (lease,) = [lease for lease in stage.claim(max_jobs=1000) if lease.job_id == job.id]
    attempt = [(lease.job_id, lease.token)]
    if "result" in how:
        stage.verbs.complete(attempt, [how["result"]]).run(stage.conn)
    else:
        stage.verbs.fail(attempt, [how["error"]], dead=[True]).run(stage.conn)


# ── where ────────────────────────────────────────────────────────────────────────────────────────


def test_importing_faultline_imports_no_driver() -> None:
    program = (
        "import sys, faultline\n"
        "app = faultline.App()\n"
        "@app.task\n"
        "def work(n: int) -> None: ...\n"
        "heavy = {'psycopg', 'psycopg_pool', 'pydantic', 'sqlalchemy', 'rich', 'asyncio'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_an_app_asks_the_environment_when_it_is_used_and_not_before(
    monkeypatch: pytest.MonkeyPatch, stage: Stage
) -> None:
    app = App()
    monkeypatch.setenv("FAULTLINE_DATABASE_URL", stage.url)
    monkeypatch.setenv("FAULTLINE_SCHEMA", "other_schema")
    monkeypatch.setenv("FAULTLINE_LISTEN_URL", "postgresql://direct")
    assert (app.url, app.schema, app.listen_url) == (
        stage.url, "other_schema", "postgresql://direct",
    )  # fmt: skip
    named = App("postgresql://there", schema="mine", listen_url="postgresql://listen")
    assert (named.url, named.schema, named.listen_url) == (
        "postgresql://there", "mine", "postgresql://listen",
    )  # fmt: skip
    assert App("postgresql://there", listen_url="").listen_url is None, "nothing is nowhere"


def test_an_app_without_any_database_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("FAULTLINE_DATABASE_URL", raising=False)
    monkeypatch.setenv("FAULTLINE_HOME", str(tmp_path))
    app = App()
    with pytest.raises(DatabaseUnavailable, match="set FAULTLINE_DATABASE_URL, or start the emb"):
        app.enqueue("work")
    monkeypatch.setenv("FAULTLINE_DATABASE_URL", "postgresql://there")
    assert App().url == "postgresql://there"


def test_a_schema_name_that_cannot_be_one_is_refused_when_the_app_is_made() -> None:
    with pytest.raises(InvalidArgument, match="schema name 'a; drop' is not usable"):
        App(schema="a; drop")


def test_an_app_can_use_an_installation_under_another_name(stage: Stage) -> None:
    migrate(stage.conn, "second")
    with App(stage.url, schema="second") as app:
        job = app.enqueue("work")
        assert job.status().state == "queued"
    assert stage.value("select count(*) from second.job") == 1
    assert stage.value("select count(*) from {schema}.job") == 0


def test_a_server_that_is_not_there_is_one_sentence_and_no_long_wait() -> None:
    app = App(NOBODY)
    with pytest.raises(DatabaseUnavailable, match=r"no connection to PostgreSQL at 127.0.0.1:1"):
        app.enqueue("work")
    with pytest.raises(DatabaseUnavailable, match=r"no connection to PostgreSQL at 127.0.0.1:1"):
        app.open()
    with pytest.raises(DatabaseUnavailable):
        asyncio.run(app.aopen())
    with pytest.raises(DatabaseUnavailable):
        asyncio.run(app.aenqueue("work"))
    with pytest.raises(DatabaseUnavailable):
        app.connect()


def test_a_database_without_an_installation_is_one_sentence(empty_database: str) -> None:
    app = App(empty_database)
    for refused in (app.open, lambda: asyncio.run(app.aopen()), lambda: app.enqueue("work")):
        with pytest.raises(SchemaMismatch, match="faultline migrate"):
            refused()


def test_a_role_without_the_right_is_told_which_one_to_be_granted(stage: Stage) -> None:
    with stage.login("reader") as url, App(url) as app:
        with pytest.raises(NotPermitted) as caught:
            app.enqueue("work")
        assert "may not call enqueue in schema 'faultline'" in str(caught.value)
        assert "one of faultline_producer, faultline_worker" in str(caught.value)
        assert f'GRANT faultline_producer TO "{caught.value.role}"' in str(caught.value)
        assert caught.value.role in url
    with stage.login("producer") as url, connect(url) as conn:
        with pytest.raises(NotPermitted, match="grant it faultline_worker, e"):
            stage.verbs.claim("A", [1]).run(conn)
        with pytest.raises(NotPermitted, match=r"may not read this .* faultline_reader"):
            stage.reading.workers(conn)


def test_a_stranger_is_told_which_roles_there_are(stage: Stage) -> None:
    with stage.login("producer") as url:
        name = url.split("//")[1].split(":")[0]
        stage.execute(f"revoke faultline_producer from {name}")
        with pytest.raises(NotPermitted, match="grant it one of faultline_worker, faultline_prod"):
            App(url).enqueue("work")


# ── by name ──────────────────────────────────────────────────────────────────────────────────────


def test_a_producer_without_the_code_enqueues_by_name(app: App, stage: Stage) -> None:
    job = app.enqueue("charge", {"order_id": 7}, queue="billing", priority=2)
    row = stage.job(job.id)
    assert (row["task"], row["queue"], row["state"]) == ("charge", "billing", "queued")
    assert app.enqueue("bare").status().state == "queued"
    with pytest.raises(InvalidArgument, match=r"the payload for task 'x' at \['a'\] is of type UU"):
        app.enqueue("x", {"a": uuid4()})
    with pytest.raises(InvalidArgument, match="the payload for task 'x' is 7: give a dict"):
        app.enqueue("x", 7)


def test_a_task_that_is_known_is_checked_also_by_name(app: App, stage: Stage) -> None:
    @app.task(queue="billing", max_attempts=2)
    def charge(order: UUID) -> None: ...

    with pytest.raises(WrongArguments, match="task 'charge' has no argument 'ordr'"):
        app.enqueue("charge", {"order": str(uuid4()), "ordr": 1})
    with pytest.raises(WrongArguments, match="it must be UUID"):
        app.enqueue("charge", {"order": "seven"})
    for order in (uuid4(), str(uuid4())):
        job = app.enqueue("charge", {"order": order})
        assert stage.job(job.id)["queue"] == "billing"


# ── jobs from outside ────────────────────────────────────────────────────────────────────────────


@dataclass
class Receipt:
    number: UUID
    total: int


def test_a_result_is_what_the_handler_returned_with_its_type(app: App, stage: Stage) -> None:
    @app.task
    def charge(order_id: int) -> Receipt:
        return Receipt(uuid4(), order_id)

    receipt = charge(7)
    job = charge.enqueue(7)
    ended(stage, job, result=charge.dump_result(receipt)[0])
    assert job.result(timeout=5) == receipt
    assert asyncio.run(job.aresult(timeout=5)) == receipt
    assert charge.job(str(job.id)).result() == receipt
    assert app.job(job.id).result() == {"number": str(receipt.number), "total": 7}


def test_waiting_ends_when_the_job_does(app: App, stage: Stage) -> None:
    job = app.enqueue("work")
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(job.result(timeout=60)))
    waiting.start()
    ended(stage, job, result=[1])
    waiting.join(60)
    assert answers == [[1]]


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_waiting_too_long_is_a_timeout_and_leaves_the_job_alone(app: App, timeout: float) -> None:
    job = app.enqueue("work")
    with pytest.raises(TimeoutError, match=f"has not ended within {timeout} s; it goes on"):
        job.result(timeout=timeout)
    with pytest.raises(TimeoutError):
        asyncio.run(job.aresult(timeout=timeout))
    assert job.status().state == "queued"


def test_a_result_that_is_there_is_given_even_without_time_to_wait(app: App, stage: Stage) -> None:
    job = app.enqueue("work")
    ended(stage, job, result=5)
    assert job.result(timeout=0) == 5


def test_a_dead_job_raises_what_its_last_attempt_said(app: App, stage: Stage) -> None:
    job = app.enqueue("work")
    ended(stage, job, error={"type": "ValueError", "message": "no such card", "traceback": "…"})
    with pytest.raises(JobFailed, match=r"is failed: ValueError: no such card$") as caught:
        job.result()
    assert (caught.value.job_id, caught.value.state) == (job.id, "failed")
    assert caught.value.error["traceback"] == "…"


def test_a_job_in_quarantine_is_not_waited_for(app: App, stage: Stage) -> None:
    job = app.enqueue("work", max_crashes=1)
    stage.claim()
    stage.expire(job.id)
    stage.verbs.reclaim().run(stage.conn)
    with pytest.raises(JobFailed, match="is quarantined"):
        job.result()


def test_a_cancelled_job_says_why(app: App, stage: Stage) -> None:
    job = app.enqueue("work")
    assert job.cancel("sold out") == "cancelled"
    assert job.cancel() == "finished"
    with pytest.raises(JobCancelled, match=r"was cancelled: sold out$") as caught:
        job.result()
    assert caught.value.reason == "sold out"
    silent = app.enqueue("work")
    assert asyncio.run(silent.acancel()) == "cancelled"
    with pytest.raises(JobCancelled, match=r"was cancelled$"):
        silent.result()
    running = app.enqueue("work")
    stage.claim()
    assert running.cancel() == "requested"


def test_a_job_that_is_not_there_is_one_sentence(app: App) -> None:
    job = app.job(uuid4())
    for ask in (job.status, job.result, job.cancel):
        with pytest.raises(JobNotFound, match="is not here"):
            ask()
    with pytest.raises(JobNotFound):
        asyncio.run(job.astatus())
    with pytest.raises(InvalidArgument, match="'seven' is not the id of a job"):
        app.job("seven")


def test_a_job_of_another_role_is_not_shown(app: App, stage: Stage) -> None:
    job = app.enqueue("work")
    with stage.login("producer") as url, App(url) as other:
        with pytest.raises(JobNotFound, match="another role enqueued it"):
            other.job(job.id).status()
        own = other.enqueue("work")
        assert own.status().state == "queued"


def test_jobs_are_equal_by_their_ids(app: App) -> None:
    job = app.enqueue("work")
    assert {job, app.job(job.id)} == {job}
    assert job != job.id
    assert repr(job) == f"Job({job.id})"


def test_a_blocking_call_works_inside_an_event_loop(app: App, stage: Stage) -> None:
    async def main() -> str:
        return app.enqueue("work").status().state

    assert asyncio.run(main()) == "queued"


def test_the_users_own_connection_to_the_apps_database(app: App) -> None:
    with app.connect() as conn:
        assert conn.autocommit
        assert conn.execute("select count(*) from faultline.job").fetchone() == (0,)
    with app.connect(autocommit=False) as conn:
        assert conn.info.transaction_status.name == "IDLE"


def test_every_error_can_be_caught_as_one_and_is_public() -> None:
    from faultline import errors

    tree = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.FaultlineError)
    }
    assert tree <= set(faultline.__all__)
    drawn = errors.__doc__ or ""
    assert all(name in drawn for name in tree)


@pytest.mark.parametrize("name", ["_route", "_task", "_options", "defaults", "name", "queue"])
def test_what_is_written_on_a_handler_is_on_its_task_and_hides_nothing_of_ours(name: str) -> None:
    """As a decorator of somebody else's may do."""
    app = App("postgresql://nowhere")

    def work() -> None: ...

    vars(work).update({name: "theirs", "note": "theirs"})
    task = app.task(work)
    assert vars(task)["note"] == "theirs"
    assert vars(task)[name] != "theirs"


def test_the_defaults_of_a_task_are_what_it_was_registered_with() -> None:
    task = App("postgresql://nowhere").task(work_of_a_module)
    with pytest.raises(TypeError):
        task.defaults["queue"] = "other"  # type: ignore[index]


def work_of_a_module() -> None: ...
