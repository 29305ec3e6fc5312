"""A migrate that somebody is in the way of: it makes nobody else wait, and says so."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from faultline.errors import MigrationRefused
from faultline.migrate import migrate
from faultline.script import migrations, script
from tests.stage import Stage, until

LAST = [migration.name for migration in migrations() if migration.version > 5]
AS_VERSION_5 = """
drop table {schema}.announcement;
alter table {schema}.lease drop column renewals cascade;
alter table {schema}.attempt drop column renewals cascade;
alter table {schema}.epoch drop column relation cascade;
delete from {schema}.migration where version > 5;
drop index {schema}.a_paused_queue_is_found_at_once;
"""


@pytest.mark.both_servers
def test_who_is_in_the_way_of_a_migrate_makes_nobody_else_wait_for_long(stage: Stage) -> None:
    """A backup, say: workers that had to wait behind the migrate would lose their leases."""
    stage.execute(AS_VERSION_5)
    backup = stage.connect(isolation="read committed")
    backup.execute("select from faultline.lease")
    waits = (
        "select count(*) from pg_locks where relation = 'faultline.lease'::regclass and not granted"
    )
    told: list[str] = []
    with ThreadPoolExecutor(1) as pool, psycopg.connect(stage.url, autocommit=True) as conn:
        migrating = pool.submit(migrate, conn, "faultline", on_wait=lambda: told.append("waits"))
        until(lambda: stage.value(waits) or migrating.done(), "the migrate waits for the backup")
        stage.conn.execute("set statement_timeout = '30s'")
        assert stage.value("select count(*) from {schema}.lease") == 0, "nobody waits behind it"
        until(lambda: told or migrating.done(), "it has given up once")
        backup.rollback()
        assert migrating.result(60) == LAST
    assert told == ["waits"]


def test_a_migrate_that_cannot_have_its_locks_says_who_may_be_in_the_way(stage: Stage) -> None:
    stage.execute(AS_VERSION_5)
    backup = stage.connect(isolation="read committed")
    backup.execute("select from faultline.lease")
    with psycopg.connect(stage.url, autocommit=True) as conn:
        with pytest.raises(MigrationRefused, match="nothing was changed, try again"):
            migrate(conn, "faultline", tries=1)
        backup.rollback()
        assert migrate(conn, "faultline", tries=1) == LAST


@pytest.mark.both_servers
@pytest.mark.parametrize("how", ["migrate", "script"])
def test_the_lock_of_migrates_is_not_waited_for_without_end(stage: Stage, how: str) -> None:
    """Any login of the database can take it; the error names the session that holds it."""
    with stage.login() as url, psycopg.connect(url, application_name="a stranger") as stranger:
        user, pid = stranger.info.user, stranger.info.backend_pid
        stranger.execute("select pg_advisory_lock(hashtextextended('faultline.migrate', 0))")
        with psycopg.connect(stage.url, autocommit=True) as conn:
            conn.execute("set statement_timeout = '60s'")
            named = f"process {pid} of user {user}, application 'a stranger', since 2"
            if how == "migrate":
                with pytest.raises(MigrationRefused, match=named):
                    migrate(conn, "faultline", tries=1)
            else:
                conn.execute("begin")
                with pytest.raises(psycopg.errors.LockNotAvailable, match=named):
                    conn.execute(script("faultline")[0])
