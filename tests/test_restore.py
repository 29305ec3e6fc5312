"""Backups, taken in the middle of jobs and restored, as docs/how-to/backup-and-restore.md says.

Three kinds: a dump, restored where it came from and into a newer server; a base backup with its
WAL, recovered to a moment in the past; a copy of the disk. Each time tokens are handed out after
the moment that is restored, so that the restored database has never heard of them.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from faultline.errors import StaleLease
from faultline.launcher import Server
from faultline.migrate import migrate
from tests.command import CommandLine
from tests.conftest import OPTIONS, database_url, debian_binaries
from tests.restoring import TABLES
from tests.stage import Stage, until
from tests.workers import Process

BUMP = 16 << 40
JOBS = 400
APP = "tests.restoring:app"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where the servers' own users may write, too."""
    path = Path(tempfile.mkdtemp(prefix="backup-"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


def installed(server: Server, name: str) -> str:
    """A new database on this server, migrated, with the tables of the handlers."""
    with psycopg.connect(server.url, autocommit=True) as conn:
        conn.execute(f"create database {name}")
    url = database_url(server.url, name)
    with psycopg.connect(url, autocommit=True) as conn:
        migrate(conn, "faultline")
        conn.execute(TABLES)
    return url


def charged(stage: Stage) -> list[int]:
    return [order_id for (order_id,) in stage.execute("select order_id from charge")]


def succeeded(stage: Stage) -> int:
    return int(stage.value("select count(*) from {schema}.ledger"))


# ── a dump ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=["18", "15 to 18"])
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Server]]:
    """Where the dump is taken, and where it is restored."""
    binaries = debian_binaries()
    if request.param == "18":
        with Server.temporary(options=OPTIONS) as server:
            yield server, server
        return
    if binaries is None:
        pytest.skip("PostgreSQL 15 is not installed")
    with (
        Server.temporary(binaries=binaries, options=OPTIONS) as old,
        # The roles come with their passwords, the superuser's too.
        Server.temporary(options=OPTIONS, password=old.password) as new,
    ):
        yield old, new


def restore(old: Server, new: Server, dump: Path, roles: Path) -> str:
    """The database as it was dumped, with its roles; the new server's programs read both."""
    if old is not new:
        new.run("psql", "--quiet", "--file", roles, check=False)  # postgres is there already
    with psycopg.connect(new.url, autocommit=True) as conn:
        conn.execute("drop database if exists shop with (force)")
        conn.execute("create database shop")
    new.run("pg_restore", "--exit-on-error", "--dbname=shop", dump)
    return database_url(new.url, "shop")


def test_after_a_restored_dump_late_workers_are_refused_and_every_job_is_done_once(
    servers: tuple[Server, Server], folder: Path, tmp_path: Path
) -> None:
    old, new = servers
    url = installed(old, "shop")
    dump, roles = folder / "shop.dump", folder / "roles.sql"
    there = {"PGHOST": "127.0.0.1", "PGPORT": str(old.port), "PGPASSWORD": old.password}
    with Process(url, "--queues", "default", app=APP) as late:
        with Stage(url) as before:
            held = before.enqueue("held")
            for order_id in range(JOBS):
                queue = ("default", "later")[order_id % 2]  # only the second worker serves both
                before.enqueue("charge", {"order_id": order_id}, queue=queue, lease_seconds=3)
            late.until("execution_started", job_id=held)
            until(lambda: len(charged(before)) > JOBS // 10, "it is in the middle of its work")
            new.run("pg_dump", "--format=custom", "--file", dump, "shop", environment=there)
            new.run("pg_dumpall", "--roles-only", "--file", roles, environment=there)
            late.stall()
            lost = before.take_over(held, "C")  # token 2, which the dump has never heard of
        restored = restore(old, new, dump, roles)
        with Stage(restored) as after:
            assert JOBS // 10 < len(charged(after)) <= JOBS // 2
            holder = after.job(held)
            assert (holder["state"], holder["fencing_token"]) == ("running", 1)
            faultline = CommandLine(restored, tmp_path)
            faultline("epoch", "bump", "--yes")
            assert faultline("rescue") == "rescued 0 jobs\n"
            with pytest.raises(StaleLease):
                after.verbs.complete_one(*lost).run(after.conn)
            after.expire(held)  # else they had to wait for the lease that the dump has of it
            with Process(restored, "--queues", "default,later", app=APP):
                inside = "select max(token) from mark where job_id = %s and token > 1"
                token = until(lambda: after.value(inside, held), "a new attempt is inside")
                assert token >= BUMP
                after.execute("insert into go values (%s, %s)", held, token)
                until(lambda: succeeded(after) == JOBS + 1, "every job is done")
            if old is new:  # it finds the restored database at the same address
                late.wake()
                told = late.until("stale_write_blocked", job_id=held, stale_token=1)
                assert told["current_token"] == token
            assert sorted(charged(after)) == list(range(JOBS))
            assert succeeded(after) == JOBS + 1
            assert after.violations() == []


def test_a_dump_restored_on_the_server_it_came_from_raises_the_tokens_by_itself(
    folder: Path,
) -> None:
    """Identifier and timeline are the same; but its tables are others."""
    with Server.temporary(options=OPTIONS) as server:
        with Stage(installed(server, "shop")) as before:
            job_id = before.enqueue()
            server.run("pg_dump", "--format=custom", "--file", folder / "dump", "shop")
            lost = before.claim("A")[0]
        with Stage(restore(server, server, folder / "dump", folder)) as after:
            (rightful,) = after.claim("B")
            assert (rightful.job_id, rightful.token) == (job_id, BUMP)
            refused = after.verbs.complete([(job_id, lost.token)]).run(after.conn)
            assert [stale.reason for stale in refused] == ["token_mismatch"]
            after.verbs.complete([(job_id, rightful.token)]).run(after.conn)
            _, token = after.running("B")
            assert token == BUMP, "it is noticed once"


# ── a base backup, and a moment in its WAL ───────────────────────────────────────────────────────


def test_a_recovery_to_a_moment_in_the_past_raises_the_tokens_by_itself(folder: Path) -> None:
    archiving = {
        **OPTIONS,
        "archive_mode": "on",
        "archive_command": f'cp "%p" "{folder}/%f"',
        "restore_command": f'cp "{folder}/%f" "%p"',
        "recovery_target_name": "before the mistake",
        "recovery_target_action": "promote",
    }
    with Server.temporary(options=archiving) as server:
        with Stage(installed(server, "shop")) as before:
            copy = server.standby(options=archiving)  # a base backup; it follows nobody below
            jobs = [before.enqueue() for _ in range(3)]
            kept = before.claim("A")[0]
            before.value("select pg_create_restore_point('before the mistake')::text")
            lost = [(lease.job_id, lease.token) for lease in before.claim("A", 3)]
            assert len(lost) == 2
            last = before.value("select pg_walfile_name(pg_switch_wal())")
            until(lambda: (folder / last).exists(), "the WAL is archived")
        server.stop()
        (copy.data / "standby.signal").rename(copy.data / "recovery.signal")
        with copy, Stage(database_url(copy.url, "shop")) as after:
            until(lambda: not after.value("select pg_is_in_recovery()"), "it is recovered")
            assert after.verbs.rescue().run(after.conn) == 0
            rightful = [(lease.job_id, lease.token) for lease in after.claim("B", 3)]
            assert [job_id for job_id, _ in rightful] == jobs[1:]
            assert all(1 << 40 <= token < BUMP for _, token in rightful)
            refused = after.verbs.complete(lost).run(after.conn)
            assert {stale.job_id for stale in refused} == set(jobs[1:])
            assert after.verbs.complete(rightful).run(after.conn) == []
            # Whom the backup has as the holder of a lease may go on: nobody else has the job.
            assert after.verbs.complete([(kept.job_id, kept.token)]).run(after.conn) == []
            assert {after.state(job_id) for job_id in jobs} == {"succeeded"}
            assert after.violations() == []


# ── a copy of the disk ───────────────────────────────────────────────────────────────────────────


def test_a_copy_of_the_disk_repeats_tokens_until_it_is_bumped(folder: Path) -> None:
    server = Server(folder / "home", options=OPTIONS)
    snapshot = folder / "snapshot"
    try:
        server.start()
        with Stage(installed(server, "shop")) as before:
            jobs = [before.enqueue() for _ in range(2)]
        server.stop()
        shutil.copytree(server.data, snapshot)
        server.start()
        lost = claimed(server, "A")
        server.stop()
        shutil.rmtree(server.data)
        shutil.copytree(snapshot, server.data)
        server.start()
        with Stage(database_url(server.url, "shop")) as after:
            assert after.claim("B")[0].token == lost[0][1], "the server cannot tell"
            after.verbs.epoch_bump().run(after.conn)
            rightful = after.claim("B")[0]
            assert (rightful.job_id, rightful.token) == (jobs[1], BUMP)
            refused = after.verbs.complete([lost[1]]).run(after.conn)
            assert [stale.job_id for stale in refused] == [jobs[1]]
    finally:
        server.stop()


def claimed(server: Server, worker: str) -> list[tuple[UUID, int]]:
    with Stage(database_url(server.url, "shop")) as stage:
        return [(lease.job_id, lease.token) for lease in stage.claim(worker, 10)]
