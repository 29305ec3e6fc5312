"""While a snapshot has vacuum in vain, autovacuum comes seldom to the busy tables; else as ever.

Method: dead rows are made in lease by inserting and deleting; a REPEATABLE READ transaction keeps
them, or none does; the vacuum is the test's own. Autovacuum is kept from coming in between.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from faultline.events import Event
from faultline.worker.pace import Pace
from faultline.worker.reconciler import Reconciler
from tests.stage import Stage

pytestmark = pytest.mark.both_servers

MANY = 200_000  # dead rows that vacuum had to leave
TABLES = ["lease", "ready", "scheduled"]
LEASES = """
insert into {schema}.lease (job_id, fencing_token, seq, expires_at, claimed_at, lane, attempts,
                            crashes, snoozes, lease_seconds, started, worker)
select {schema}.new_id(), 1, g, 'infinity', now(), 1, 0, 0, 0, 30, true, 'A'
  from generate_series(1, %s) g"""
THRESHOLDS = """
select relname::text, array(select o.option_name || '=' || o.option_value
                              from pg_options_to_table(reloptions) o
                             where option_name ~ 'vacuum_(insert_)?threshold' order by 1)
  from pg_class where relnamespace = '{schema}'::regnamespace
                  and relname in ('lease', 'ready', 'scheduled')"""
USUAL = {table: ["autovacuum_vacuum_threshold=20000"] for table in TABLES}
SPARE = "select {schema}.spare_vacuum()"


@pytest.fixture(autouse=True)
def _nobody_else_vacuums(stage: Stage) -> None:
    for table in TABLES:
        stage.execute("alter table {schema}." + table + " set (autovacuum_enabled = off)")


def come(stage: Stage, leases: int) -> None:
    stage.execute(LEASES, leases)
    counted(stage)


def come_and_go(stage: Stage, leases: int) -> None:
    stage.execute(LEASES, leases)
    go(stage)


def go(stage: Stage) -> None:
    """All leases."""
    stage.execute("delete from {schema}.lease")
    counted(stage)


def counted(stage: Stage) -> None:
    """The server's statistics know of it."""
    stage.execute("select pg_stat_force_next_flush()")


def pin(stage: Stage) -> Any:
    conn = stage.connect(isolation="repeatable read")
    conn.execute("select 1 from faultline.epoch")
    return conn


def vacuum(stage: Stage) -> None:
    stage.execute("vacuum {schema}.lease")


def thresholds(stage: Stage) -> dict[str, list[str]]:
    """When autovacuum comes to each of the tables."""
    return dict(stage.execute(THRESHOLDS))


def after(dead_rows: int) -> list[str]:
    """When so many are dead, and not before because of what was inserted."""
    return [
        f"autovacuum_vacuum_insert_threshold={dead_rows}",
        f"autovacuum_vacuum_threshold={dead_rows}",
    ]


def in_vain(stage: Stage, left: int = MANY) -> None:
    """So many dead rows, and a vacuum that had to leave them."""
    pin(stage)
    come_and_go(stage, left)
    vacuum(stage)


def heard_by(stage: Stage) -> list[Event]:
    """What a reconciler says in its first round."""
    events: list[Event] = []

    async def play() -> None:
        reconciler = Reconciler("R", stage.url, stage.verbs, events.append)
        await reconciler.round()
        await reconciler.close()

    asyncio.run(play())
    return events


def test_vacuum_that_is_in_vain_comes_again_when_what_it_left_has_doubled(stage: Stage) -> None:
    in_vain(stage)
    worker = stage.connect(role="worker")
    assert stage.verbs.spare_vacuum().run(worker) == MANY
    assert thresholds(stage) == dict.fromkeys(TABLES, after(2 * MANY))
    come_and_go(stage, MANY)
    assert stage.verbs.spare_vacuum().run(worker) is None
    vacuum(stage)
    assert stage.verbs.spare_vacuum().run(worker) == 2 * MANY
    assert thresholds(stage) == dict.fromkeys(TABLES, after(4 * MANY))


def test_vacuum_that_is_in_vain_comes_again_after_a_while(stage: Stage) -> None:
    in_vain(stage)
    assert stage.value("select {schema}.vacuum_left(50)") == MANY
    assert stage.value("select {schema}.vacuum_left(0)") is None


def test_after_the_first_vacuum_without_that_snapshot_it_comes_as_ever(stage: Stage) -> None:
    conn = pin(stage)
    come_and_go(stage, MANY)
    vacuum(stage)
    stage.value(SPARE)
    conn.rollback()
    vacuum(stage)
    assert stage.value(SPARE) is None
    assert thresholds(stage) == USUAL


def test_few_rows_that_vacuum_had_to_leave_change_nothing(stage: Stage) -> None:
    in_vain(stage, MANY - 1)
    assert stage.value(SPARE) is None
    assert thresholds(stage) == USUAL


def test_what_has_died_since_the_last_vacuum_was_not_left_by_it(stage: Stage) -> None:
    come(stage, 1_000)
    vacuum(stage)
    come_and_go(stage, MANY)
    assert stage.value("select pg_stat_get_dead_tuples('{schema}.lease'::regclass)") >= MANY
    assert stage.value(SPARE) is None
    assert thresholds(stage) == USUAL


def test_a_table_that_is_being_vacuumed_is_left_out_and_nobody_waits(stage: Stage) -> None:
    in_vain(stage)
    other = stage.connect(isolation="read committed")
    other.execute("lock table faultline.lease in share update exclusive mode")
    assert stage.value(SPARE) == MANY
    assert thresholds(stage)["lease"] == USUAL["lease"]
    assert thresholds(stage)["ready"] == after(2 * MANY)
    other.rollback()
    assert stage.value(SPARE) == MANY
    assert thresholds(stage) == dict.fromkeys(TABLES, after(2 * MANY))


def test_a_reconciler_spares_vacuum_by_itself_and_says_so(stage: Stage) -> None:
    in_vain(stage)
    (event,) = heard_by(stage)
    assert (event.event, event.dead_rows) == ("vacuum_spared", MANY)  # type: ignore[attr-defined]
    assert thresholds(stage) == dict.fromkeys(TABLES, after(2 * MANY))
    assert heard_by(stage) == []


def test_a_reconciler_that_finds_a_busy_table_held_goes_on(stage: Stage) -> None:
    in_vain(stage)
    other = stage.connect(isolation="read committed")
    other.execute("lock table faultline.lease in share mode")
    assert heard_by(stage) == []
    other.rollback()
    assert [event.event for event in heard_by(stage)] == ["vacuum_spared"]


def test_a_threshold_that_somebody_wrote_as_a_float_is_understood(stage: Stage) -> None:
    stage.execute("alter table {schema}.lease set (autovacuum_vacuum_threshold = 1e4)")
    assert stage.value(SPARE) is None
    assert thresholds(stage)["lease"] == ["autovacuum_vacuum_threshold=1e4"]


def test_the_servers_own_limit_does_not_bring_vacuum_sooner(stage: Stage) -> None:
    limits = stage.execute(
        "select array_to_string(reloptions, ' ') ~ 'max_threshold=-1' from pg_class "
        "where oid = any ('{{schema}.lease,{schema}.ready,{schema}.scheduled}'::regclass[])"
    )
    has_one = stage.value("select current_setting('server_version_num')::integer >= 180000")
    assert limits == [(has_one,)] * 3


def test_a_reconciler_goes_on_where_no_table_may_be_altered(stage: Stage) -> None:
    """An event trigger is the database's: nothing else runs in this one meanwhile."""
    in_vain(stage)
    stage.execute(
        "create function public.refuses() returns event_trigger language plpgsql as "
        "$$ begin raise exception 'nobody alters tables here'; end $$"
    )
    stage.execute(
        "create event trigger refuses on ddl_command_end when tag in ('ALTER TABLE') "
        "execute function public.refuses()"
    )
    try:
        assert heard_by(stage) == []
    finally:
        stage.execute("drop event trigger refuses; drop function public.refuses()")
    assert [event.event for event in heard_by(stage)] == ["vacuum_spared"]


def test_a_worker_at_work_asks_often_and_an_idle_one_seldom(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(Pace, "went_well", lambda _: said.append("often"))
    monkeypatch.setattr(Pace, "was_in_vain", lambda _: said.append("seldom"))
    heard_by(stage)
    stage.running()
    heard_by(stage)
    assert said == ["often", "seldom", "often", "often"]  # the first of two is compaction
