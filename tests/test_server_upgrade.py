"""A newer PostgreSQL, by pg_upgrade and by logical replication: docs/how-to/upgrading.md.

Real servers, 15 and 18. (By a dump: tests/test_restore.py.) Each has handed out tokens before, and
none of them may be handed out again.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from faultline.launcher import Server, identity
from tests.conftest import OPTIONS, database_url, debian_binaries
from tests.documents import blocks
from tests.stage import Stage, until
from tests.test_restore import installed

needs_both = pytest.mark.skipif(debian_binaries() is None, reason="PostgreSQL 15 is not installed")
PAGE = Path(__file__).parent.parent / "docs" / "how-to" / "upgrading.md"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where the servers' own users may write, too."""
    path = Path(tempfile.mkdtemp(prefix="upgrade-"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


def goes_on(url: str, lost: tuple[UUID, int], *, lowest: int) -> None:
    """Tokens of before are refused, those of now are higher, and nothing is missing."""
    with Stage(url) as after:
        after.claim("B", 10)  # sees that this is another life: leases start anew
        taken = after.take_over(lost[0], "C")
        assert taken[1] >= lowest
        assert [x.token for x in after.verbs.complete([lost]).run(after.conn)] == [lost[1]]
        assert after.verbs.complete([taken]).run(after.conn) == []
        assert after.state(after.enqueue()) == "queued"
        assert after.violations() == []


@needs_both
def test_after_pg_upgrade_tokens_rise_by_themselves_and_all_jobs_are_there(folder: Path) -> None:
    old = Server(folder / "old", binaries=debian_binaries(), options=OPTIONS)
    try:
        old.start()
        with Stage(installed(old, "shop")) as before:
            lost = before.running("A")
            before.enqueue()
    finally:
        old.stop()
    new = Server(folder / "new", options=OPTIONS, password=old.password)
    try:
        new.start()
        new.stop()
        upgrade(old, new, folder / "scratch")
        new.start()
        goes_on(database_url(new.url, "shop"), lost, lowest=1 << 40)
    finally:
        new.stop()


def upgrade(old: Server, new: Server, scratch: Path) -> None:
    """pg_upgrade, as the user that both belong to."""
    scratch.mkdir()
    scratch.chmod(0o777)
    done = identity.choose("auto", new.data).run(
        [
            new.binaries.program("pg_upgrade"),
            *("--old-bindir", old.binaries.directory, "--new-bindir", new.binaries.directory),
            *("--old-datadir", old.data, "--new-datadir", new.data),
            *("--username", "postgres", "--socketdir", scratch, "--no-sync"),
        ],
        cwd=scratch,
        environment={"PGPASSWORD": old.password},
    )
    assert done.returncode == 0, done.stdout[-2000:]


@needs_both
def test_a_switch_to_a_logical_copy_goes_on_as_the_page_says(folder: Path) -> None:
    # Shown as text, since they need two servers.
    on_old, on_new, at_the_switch, then = (
        block.text for block in blocks(PAGE) if block.language == "text" and ";" in block.text
    )
    options = {**OPTIONS, "wal_level": "logical"}
    with (
        Server.temporary(binaries=debian_binaries(), options=options) as old,
        Server.temporary(options=options, password=old.password) as new,
    ):
        url = installed(old, "shop")
        there = {"PGPORT": str(old.port), "PGDATABASE": "shop"}
        roles, shape = folder / "roles.sql", folder / "shape.sql"
        new.run("pg_dumpall", "--roles-only", "--file", roles, environment=there)
        new.run("pg_dump", "--schema-only", "--file", shape, environment=there)
        new.run("psql", "--quiet", "--file", roles, check=False)
        new.run("createdb", "shop")
        new.run("psql", "--quiet", "-v", "ON_ERROR_STOP=1", "--file", shape, "--dbname", "shop")
        with Stage(url) as before, Stage(database_url(new.url, "shop")) as after:
            waiting = [before.enqueue() for _ in range(3)]
            before.execute(on_old)
            connection = f"host=127.0.0.1 port={old.port} user=postgres password={old.password}"
            after.execute(re.sub(r"host=\S+ ", f"{connection} ", on_new))
            lost = before.running("A")  # while it is copied, or after
            caught_up(before, after)
            for (statement,) in before.execute(at_the_switch):
                after.execute(statement)
            for statement in then.rstrip("\n;").split(";\n"):
                after.execute(statement)
            for job_id in waiting:
                assert after.state(job_id) == "running"  # claimed with the lost one
        goes_on(database_url(new.url, "shop"), lost, lowest=16 << 40)


def caught_up(before: Stage, after: Stage) -> None:
    until(
        lambda: after.value("select bool_and(srsubstate = 'r') from pg_subscription_rel"),
        "every table is copied",
    )
    here = before.value("select pg_current_wal_lsn()::text")
    until(
        lambda: before.value(
            "select bool_and(confirmed_flush_lsn >= %s::pg_lsn) from pg_replication_slots", here
        ),
        "the copy has everything",
    )
