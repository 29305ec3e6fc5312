"""Migrations on real databases: what is installed, once, wholly, and what is refused.

Versions and checksums of other releases are forged in the database. Who may migrate, and who owns
what, is in test_migrate_roles.py; the command is in test_migrate_command.py.
"""

from __future__ import annotations

import asyncio
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import psycopg
import pytest
from psycopg import Connection

from faultline import script as module
from faultline.config import schema_name
from faultline.connect import aconnect
from faultline.connect import connect as open_client
from faultline.errors import InvalidArgument, MigrationRefused, NotPermitted, SchemaMismatch
from faultline.migrate import is_current, migrate
from faultline.script import SCHEMA_VERSION, Migration, migrations
from proofs.release import CALLABLE_BY_CLIENTS, RELEASED
from tests.installation import AS_VERSION_1, catalogue, run_one_job, schema_exists
from tests.stage import Stage, until

SQL = Path(str(resources.files("faultline").joinpath("sql")))
ALL = [migration.name for migration in migrations()]


def connect(url: str) -> Connection[Any]:
    return psycopg.connect(url, autocommit=True)


@pytest.mark.both_servers
def test_a_fresh_install_works_and_calls_itself_current(empty_database: str) -> None:
    with connect(empty_database) as conn:
        assert not is_current(conn, "faultline")
        assert migrate(conn, "faultline") == ALL
        assert is_current(conn, "faultline")
        open_client(empty_database).close()
        run_one_job(conn, "faultline")


@pytest.mark.both_servers
def test_a_second_migrate_changes_nothing(database: str) -> None:
    with connect(database) as conn:
        before = catalogue(conn, "faultline")
        assert migrate(conn, "faultline") == []
        assert catalogue(conn, "faultline") == before


@pytest.mark.both_servers
def test_six_that_migrate_one_empty_database_at_once_apply_each_migration_once(
    empty_database: str,
) -> None:
    barrier = threading.Barrier(6)

    def one(_: int) -> list[str]:
        with connect(empty_database) as conn:
            barrier.wait(60)
            return migrate(conn, "faultline")

    with ThreadPoolExecutor(6) as pool:
        answers = sorted(pool.map(one, range(6)))
    assert answers == [[], [], [], [], [], ALL]
    with connect(empty_database) as conn:
        recorded = conn.execute("select name from faultline.migration order by version").fetchall()
        assert [row[0] for row in recorded] == ALL
        run_one_job(conn, "faultline")


def test_a_migration_looks_only_after_it_has_the_lock(database: str) -> None:
    """A newer release migrates while this one waits: it must not put its older functions on top."""
    with Stage(database) as stage, connect(database) as newer, connect(database) as conn:
        newer.execute("begin")
        newer.execute("select pg_advisory_xact_lock(hashtextextended('faultline.migrate', 0))")
        newer.execute("insert into faultline.migration values (99, '0099_next', 'x')")
        conn.execute("set default_transaction_isolation = 'repeatable read'")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(migrate, conn, "faultline")
            blocked = f"select pg_blocking_pids({conn.info.backend_pid}) <> '{{}}'"
            until(lambda: stage.value(blocked), "the migration waits for the lock")
            newer.execute("commit")
            with pytest.raises(MigrationRefused, match="has version 99"):
                waiting.result(60)


def broken(table: str) -> list[Migration]:
    text = f"create table {{schema}}.{table} (n integer); select 1 / 0;"
    return [*migrations(), Migration(99, "0099_broken", text)]


def test_a_migration_that_fails_on_an_empty_database_leaves_nothing(
    empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending = broken("half")
    monkeypatch.setattr(module, "migrations", lambda: pending)
    with connect(empty_database) as conn:
        with pytest.raises(psycopg.errors.DivisionByZero):
            migrate(conn, "never_there")
        assert not schema_exists(conn, "never_there")
        made = "select count(*) from pg_roles where rolname like 'never\\_there%'"
        assert conn.execute(made).fetchone() == (0,)


def test_a_migration_that_fails_leaves_the_installation_as_it_was(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending = broken("half")
    with connect(database) as conn:
        before = catalogue(conn, "faultline")
        with monkeypatch.context() as patched:
            patched.setattr(module, "migrations", lambda: pending)
            with pytest.raises(psycopg.errors.DivisionByZero):
                migrate(conn, "faultline")
        assert catalogue(conn, "faultline") == before
        run_one_job(conn, "faultline")


def test_a_released_migration_that_was_edited_is_refused(database: str) -> None:
    with connect(database) as conn:
        conn.execute("update faultline.migration set checksum = 'another'")
        before = catalogue(conn, "faultline")
        with pytest.raises(MigrationRefused, match="0001_tables was changed after it was applied"):
            migrate(conn, "faultline")
        assert catalogue(conn, "faultline") == before


def test_a_newer_database_is_not_downgraded(database: str) -> None:
    with connect(database) as conn:
        conn.execute("insert into faultline.migration values (99, '0099_later', 'x')")
        before = catalogue(conn, "faultline")
        with pytest.raises(MigrationRefused, match=r"version 99.* upgrade faultline-queue"):
            migrate(conn, "faultline")
        assert catalogue(conn, "faultline") == before


@pytest.mark.parametrize(
    ("forged", "facts"),
    [
        ("return row(0, 0)::record", ["version 0", f"needs {SCHEMA_VERSION}", "faultline migrate"]),
        ("return row(99, 99)::record", ["has version 99", "from 99 on", "upgrade faultline-queue"]),
    ],
    ids=["client too new", "client too old"],
)
def test_a_client_is_told_when_it_does_not_fit_the_installation(
    database: str, forged: str, facts: list[str]
) -> None:
    signature = "faultline.schema_version(out version integer, out oldest_client integer)"
    with connect(database) as conn:
        conn.execute(f"create or replace function {signature} language sql stable {forged}")
    with pytest.raises(SchemaMismatch) as caught:
        open_client(database)
    with pytest.raises(SchemaMismatch):
        asyncio.run(aconnect(database))
    for fact in facts:
        assert fact in str(caught.value)


def test_a_newer_installation_that_still_knows_this_client_is_accepted(database: str) -> None:
    signature = "faultline.schema_version(out version integer, out oldest_client integer)"
    with connect(database) as conn:
        conn.execute(
            f"create or replace function {signature} language sql stable return row(99, 1)::record"
        )
    open_client(database).close()


@pytest.mark.parametrize("there", ["", "create schema elsewhere"], ids=["no schema", "no function"])
def test_a_client_is_told_when_there_is_no_installation(empty_database: str, there: str) -> None:
    with connect(empty_database) as conn:
        if there:
            conn.execute(there)
    with pytest.raises(SchemaMismatch, match=r"'elsewhere'.* run `faultline migrate`"):
        open_client(empty_database, schema="elsewhere")


def test_a_user_without_any_role_is_told_which_roles_there_are(database: str) -> None:
    with connect(database) as conn:
        conn.execute("create role nobody_yet login password 'x'")
        try:
            parts = urlsplit(database)
            url = f"postgresql://nobody_yet:x@{parts.hostname}:{parts.port}{parts.path}"
            with pytest.raises(NotPermitted, match="faultline_worker"):
                open_client(url)
        finally:
            conn.execute("drop role nobody_yet")


@pytest.mark.parametrize(
    "theirs",
    [
        "create table theirs.invoice (n integer)",
        "create table theirs.migration (id integer, applied boolean)",
        "create function theirs.answer() returns integer language sql return 42",
        "create type theirs.mood as enum ('good')",
    ],
)
def test_a_schema_that_is_not_ours_is_not_touched(empty_database: str, theirs: str) -> None:
    with connect(empty_database) as conn:
        conn.execute("create schema theirs")
        conn.execute(theirs)
        with pytest.raises(MigrationRefused, match="'theirs' exists and is not a Faultline"):
            migrate(conn, "theirs")
        acl = "select nspacl from pg_namespace where nspname = 'theirs'"
        assert conn.execute(acl).fetchone() == (None,)


def test_two_installations_live_in_one_database_and_share_no_job(database: str) -> None:
    with connect(database) as conn:
        assert migrate(conn, "faultline_b") == ALL
        run_one_job(conn, "faultline_b")
        assert conn.execute("select count(*) from faultline.job").fetchone() == (0,)
        run_one_job(conn, "faultline")
        open_client(database, schema="faultline_b").close()
        assert is_current(conn, "faultline")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Upper",
        "1st",
        "pg_jobs",
        "a-b",
        "a; drop",
        'a"b',
        "a.b",
        "é",
        "new\n",
        "x" * 49,
        "public",
    ],
)
def test_a_schema_name_that_could_not_be_written_unquoted_is_rejected(name: str) -> None:
    with pytest.raises(InvalidArgument, match="is not usable"):
        schema_name(name)


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_cannot_store_every_json_is_refused(
    empty_database: str, encoding: str
) -> None:
    name = f"t_{encoding.lower()}_{uuid4().hex}"
    with connect(empty_database) as conn:
        conn.execute(f"create database {name} encoding '{encoding}' locale 'C' template template0")
        parts = urlsplit(empty_database)
        try:
            with (
                connect(urlunsplit(parts._replace(path=f"/{name}"))) as narrow,
                pytest.raises(MigrationRefused, match=f"encoded in {encoding}.*UTF8"),
            ):
                migrate(narrow, "faultline")
        finally:
            conn.execute(f"drop database {name}")


def test_a_schema_name_that_is_a_word_of_sql_is_refused(empty_database: str) -> None:
    with connect(empty_database) as conn, pytest.raises(MigrationRefused, match="'user' is a word"):
        migrate(conn, "user")


@pytest.mark.both_servers
def test_an_upgrade_from_version_1_keeps_every_job_and_ends_like_a_fresh_install(
    stage: Stage,
) -> None:
    fresh = catalogue(stage.conn, "faultline")
    held, done, dead = stage.running("A"), stage.running("A"), stage.running("A", max_crashes=1)
    stage.verbs.complete([done], [{"paid": 7}]).run(stage.conn)
    stage.expire(dead[0])
    stage.verbs.reclaim().run(stage.conn)
    stage.enqueue(queue="later", delay_seconds=3600), stage.enqueue(queue="bank", priority=5)
    view = (SQL / "views" / "010_jobs.sql").read_text("utf-8")
    view = view.partition(" cross join lateral (  -- OFFSET")[0].rstrip() + ";"
    view = re.sub(r"case when text.bytes <= \d+ then (\S+) end as \w+", r"\1", view)
    new = ("progress", "payload_bytes")
    lines = [line for line in view.splitlines() if not any(name in line for name in new)]
    assert stage.value("select retention_days from {schema}.setting") == 30
    stage.execute(AS_VERSION_1)  # takes the view with it
    stage.execute("\n".join(lines).replace("       j.producer,", "       j.producer"))
    stage.execute("alter view {schema}.jobs owner to {schema}_owner")
    tables = ["job", "attempt", "ready", "scheduled", "lease", "quarantine", "refusal", "lane"]
    rows = {table: stage.execute(f"select * from {{schema}}.{table}") for table in tables}
    before = stage.execute("select * from {schema}.jobs order by id")

    assert migrate(stage.conn, "faultline") == ALL[1:]
    for name, before_it in rows.items():
        after_it = stage.execute(f"select * from {{schema}}.{name}")
        width = len(before_it[0]) if before_it else 0  # a migration may add columns
        assert [row[:width] for row in after_it] == before_it, name
        assert not any(value for row in after_it for value in row[width:]), name
    assert [row[:-2] for row in stage.execute("select * from {schema}.jobs order by id")] == before
    upgraded = catalogue(stage.conn, "faultline")
    assert len(upgraded.pop("migrations")) == len(fresh.pop("migrations"))
    assert upgraded == fresh
    kept = "it has jobs that nobody has said may go"
    assert stage.value("select retention_days from {schema}.setting") is None, kept
    assert stage.verbs.complete([held]).run(stage.conn) == []
    assert stage.violations() == []


class LoopingWorker:
    """Enqueues, claims, renews and completes, one job after the other, until it is told to stop."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.jobs_done = 0
        self.stopped = threading.Event()
        self.conn = stage.connect()
        stage.verbs.enqueue("work", queue="default").run(self.conn)
        self.lanes = [lane.lane for lane in stage.verbs.lanes(["default"]).run(self.conn)]

    def run(self) -> None:
        verbs = self.stage.verbs
        while not self.stopped.is_set():
            verbs.enqueue("work").run(self.conn)
            leases = verbs.claim("A", self.lanes, max_jobs=10).run(self.conn)
            held = [(lease.job_id, lease.token) for lease in leases]
            assert all(kept.verdict == "renewed" for kept in verbs.renew(held).run(self.conn))
            assert verbs.complete(held).run(self.conn) == []
            self.jobs_done += len(held)


@pytest.mark.both_servers
def test_a_worker_at_work_does_not_notice_a_migrate(stage: Stage) -> None:
    worker = LoopingWorker(stage)
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(worker.run)
        try:
            for _ in range(3):
                before = worker.jobs_done
                with connect(stage.url) as conn:
                    migrate(conn, "faultline")
                until(
                    lambda seen=before: worker.jobs_done > seen + 10 or working.done(),
                    "the worker went on",
                )
        finally:
            worker.stopped.set()
        working.result(60)
    assert stage.value("select count(*) from faultline.ledger") == worker.jobs_done
    assert stage.value("select count(*) from faultline.job") == worker.jobs_done
    assert stage.violations() == []


@pytest.mark.both_servers
def test_what_the_previous_release_calls_is_still_there(stage: Stage) -> None:
    """Workers of the previous release go on after a migrate: nothing that they call may change.

    sql/released.txt lists what clients could call in that release: the functions granted to a role,
    with argument names, types, defaults and results. It is written anew when a release is made
    (docs/releasing.md).
    """
    there = [row[0] for row in stage.execute(CALLABLE_BY_CLIENTS)]
    released = RELEASED.read_text("utf-8").splitlines()
    assert any(line.startswith("claim(") for line in released)
    assert set(released) - set(there) == set()


@pytest.mark.parametrize("path", sorted(SQL.glob("functions/*.sql")), ids=lambda path: path.stem)
def test_every_function_is_explained_right_above_it(path: Path) -> None:
    lines = path.read_text("utf-8").splitlines()
    created = [n for n, line in enumerate(lines) if line.startswith("create or replace function")]
    assert created
    assert [lines[n] for n in created if n == 0 or not lines[n - 1].startswith("--")] == []
