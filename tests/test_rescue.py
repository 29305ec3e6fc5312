"""Rescue gives lost pointers back and touches nothing else; compaction changes no row of ready."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import Connection

from faultline.errors import LockedOut, WrongIsolation
from faultline.events import Event
from faultline.worker.pace import Pace
from faultline.worker.reconciler import Reconciler
from tests.conftest import debian_binaries
from tests.stage import BLOCKED, DEADLINE_SECONDS, Stage, until

pytestmark = pytest.mark.both_servers


def retrying(stage: Stage) -> UUID:
    job_id, token = stage.running()
    stage.verbs.fail([(job_id, token)], delays=[3600]).run(stage.conn)
    return job_id


def ended(stage: Stage, verb: str, **options: Any) -> UUID:
    job_id, token = stage.running(**options)
    assert getattr(stage.verbs, verb)([(job_id, token)]).run(stage.conn) == []
    return job_id


def quarantined(stage: Stage) -> UUID:
    job_id, _ = stage.running(max_crashes=1)
    stage.expire(job_id)
    stage.verbs.reclaim().run(stage.conn)
    return job_id


# ── rescue ───────────────────────────────────────────────────────────────────────────────────────

# The pointer's table → a job that stands there, and the token it had reached.
LOST: dict[str, tuple[Callable[[Stage], UUID], int]] = {
    "ready": (lambda stage: stage.enqueue(), 0),
    "scheduled": (retrying, 1),
    "lease": (lambda stage: stage.running()[0], 0),
    "quarantine": (quarantined, 1),
}


@pytest.mark.parametrize("place", LOST)
def test_a_job_that_lost_its_pointer_comes_back_under_a_token_nobody_can_have_had(
    stage: Stage, place: str
) -> None:
    make, token = LOST[place]
    job_id = make(stage)
    stage.execute(f"delete from {{schema}}.{place}")
    assert stage.violations() == [("7_nothing_is_lost", job_id)]
    assert stage.verbs.rescue().run(stage.connect(role="operator")) == 1
    assert (stage.state(job_id), stage.job(job_id)["fencing_token"]) == ("queued", token)
    epoch = stage.reading.current_epoch(stage.conn)["epoch"]
    assert epoch == 16
    assert stage.violations() == []
    (lease,) = stage.claim("B")
    assert (lease.job_id, lease.token) == (job_id, epoch << 40)
    assert stage.verbs.complete([(job_id, 1)]).run(stage.conn)[0].reason == "token_mismatch"
    assert stage.verbs.complete([(job_id, lease.token)]).run(stage.conn) == []
    assert stage.violations() == []


def test_all_that_was_lost_is_rescued_at_once_oldest_first(stage: Stage) -> None:
    ids = [stage.enqueue() for _ in range(5)]
    stage.execute("delete from {schema}.ready where job_id <> %s", ids[2])
    assert stage.verbs.rescue().run(stage.conn) == 4
    claimed = [lease.job_id for lease in stage.claim(max_jobs=10)]
    assert claimed == [ids.pop(2), *sorted(ids)]
    assert stage.verbs.rescue().run(stage.conn) == 0
    assert stage.reading.current_epoch(stage.conn)["epoch"] == 16


def test_a_job_that_has_a_pointer_or_has_ended_is_left_alone_by_a_rescue(stage: Stage) -> None:
    for verb in ("complete", "cancel_attempt"):
        ended(stage, verb)
    ended(stage, "fail", max_attempts=1)
    for make, _ in LOST.values():
        make(stage)
    stage.enqueue()
    tables = ("job", "ready", "scheduled", "lease", "quarantine", "attempt", "epoch")

    def everything() -> list[Any]:
        return [stage.execute(f"select * from {{schema}}.{table} order by 1") for table in tables]

    before = everything()
    assert all(before)
    assert stage.verbs.rescue().run(stage.conn) == 0
    assert everything() == before


def test_a_job_whose_pointer_is_on_the_move_is_waited_for_and_not_queued_twice(
    stage: Stage,
) -> None:
    stage.enqueue()
    worker = stage.connect(isolation="read committed")
    (lease,) = stage.claim("A", conn=worker)
    rescue = stage.background(stage.verbs.rescue(), stage.connect()).until_blocked()
    worker.commit()
    assert rescue.answer() == 0
    assert stage.state(lease.job_id) == "running"
    assert stage.violations() == []


@pytest.mark.parametrize("verb", ["rescue", "compact", "drop_partitions"])
def test_a_frozen_snapshot_cannot_decide_which_pointers_are_missing(
    stage: Stage, verb: str
) -> None:
    conn = stage.connect(isolation="repeatable read")
    arguments = (365,) if verb == "drop_partitions" else ()
    with pytest.raises(WrongIsolation):
        getattr(stage.verbs, verb)(*arguments).run(conn)


# ── compact ──────────────────────────────────────────────────────────────────────────────────────


def fill_ready(stage: Stage) -> list[Any]:
    """Lanes, tokens, counts and places of their own; with gaps between them."""
    for n in range(10):
        stage.enqueue(queue=("a", "b")[n % 2], priority=n % 3, lease_seconds=n + 1)
    leases = stage.claim("A", 6)
    done, back = leases[:2], leases[2:]
    stage.verbs.complete([(x.job_id, x.token) for x in done]).run(stage.conn)
    stage.verbs.release([(x.job_id, x.token) for x in back[:2]]).run(stage.conn)
    stage.expire(*(x.job_id for x in back[2:]))
    stage.verbs.reclaim().run(stage.conn)
    return rows_of_ready(stage)


def rows_of_ready(stage: Stage) -> list[Any]:
    return stage.execute("select * from {schema}.ready order by lane, seq")


def test_compaction_keeps_every_row_with_its_place_token_and_counts(stage: Stage) -> None:
    before = fill_ready(stage)
    assert len(before) == 8
    assert stage.verbs.compact().run(stage.connect(role="operator")) is True
    assert rows_of_ready(stage) == before
    late = stage.enqueue(queue="a")
    place = stage.value("select seq from {schema}.ready where job_id = %s", late)
    assert place > max(row[1] for row in before)
    assert len(stage.claim("B", 100)) == 9
    assert stage.violations() == []


def test_compaction_throws_the_dead_entries_away_even_while_a_snapshot_is_pinned(
    stage: Stage,
) -> None:
    pinned = stage.connect(isolation="repeatable read")
    pinned.execute("select 1 from faultline.epoch")
    stage.verbs.enqueue_many("work", [None] * 500, [{}] * 500).run(stage.conn)
    stage.claim("A", 499)
    size = "select pg_relation_size('{schema}.ready')"
    before = stage.value(size)
    assert stage.verbs.compact().run(stage.conn) is True
    assert stage.value(size) < before
    assert len(rows_of_ready(stage)) == 1


@pytest.mark.parametrize("how", ["read", "enqueue"])
def test_compaction_gives_up_rather_than_make_the_queue_wait(stage: Stage, how: str) -> None:
    before = fill_ready(stage)
    other = stage.connect(isolation="read committed")
    if how == "read":
        other.execute("select count(*) from faultline.ready")
    else:
        stage.verbs.enqueue("work").run(other)
    stage.conn.execute("set statement_timeout = '5s'")
    with pytest.raises(LockedOut):
        stage.verbs.compact().run(stage.conn)
    other.rollback()
    assert rows_of_ready(stage) == before


def begin_dump(stage: Stage, name: str = "nightly copy") -> Connection[Any]:
    """What a dump does before it locks the tables: its snapshot, and a look at the catalog."""
    dump = stage.connect(isolation="repeatable read")
    dump.execute("select set_config('application_name', %s, false)", (name,))
    dump.execute("select count(*) from pg_class")
    return dump


@pytest.mark.parametrize("name", ["pg_dump", "nightly copy"])
def test_compaction_stays_away_from_a_dump_whatever_its_name(stage: Stage, name: str) -> None:
    before = fill_ready(stage)
    operator = stage.connect(role="operator")
    dump = begin_dump(stage, name)
    assert stage.verbs.compact().run(operator) is False
    dump.execute("lock table faultline.ready in access share mode")
    assert dump.execute("select count(*) from faultline.ready").fetchone() == (len(before),)
    dump.commit()
    until(lambda: stage.verbs.compact().run(operator), "compaction goes on after the dump")


def test_pg_dump_under_another_name_is_recognised_before_it_locks_ready(
    stage: Stage, tmp_path: Path
) -> None:
    """It locks the tables in the order in which they were made; it waits for the first."""
    binaries = debian_binaries()
    if binaries is None or stage.conn.info.server_version // 10_000 != 15:
        pytest.skip("needs the pg_dump of PostgreSQL 15")
    before = fill_ready(stage)
    holder = stage.connect(isolation="read committed")
    holder.execute("lock table faultline.migration in access exclusive mode")
    environment = {**os.environ, "PGAPPNAME": "nightly"}
    command = [binaries / "pg_dump", "--file", tmp_path / "dump.sql", stage.url]
    with subprocess.Popen(command, env=environment) as dump:
        try:
            until(lambda: stage.value(f"select count(*) from {BLOCKED}"), "pg_dump waits")
            assert stage.verbs.compact().run(stage.conn) is False
        finally:
            holder.rollback()
        assert dump.wait(DEADLINE_SECONDS) == 0
    pointers = (tmp_path / "dump.sql").read_text().partition("COPY faultline.ready ")[2]
    assert len(pointers.partition("\n\\.")[0].splitlines()) == 1 + len(before)


def test_a_stranger_with_the_name_of_a_dump_does_not_stop_compaction(stage: Stage) -> None:
    with stage.login() as url, psycopg.connect(url, application_name="pg_dump") as stranger:
        stranger.execute("set transaction isolation level repeatable read")
        stranger.execute("select count(*) from pg_class")
        assert stage.verbs.compact().run(stage.conn) is True
        stranger.rollback()


def test_a_snapshot_that_is_merely_kept_open_does_not_stop_compaction(stage: Stage) -> None:
    report = stage.connect(isolation="repeatable read")
    report.execute("select count(*) from faultline.job")
    assert stage.verbs.compact().run(stage.conn) is True


def test_a_dump_of_another_database_does_not_stop_compaction_here(
    stage: Stage, server_url: str
) -> None:
    with psycopg.connect(server_url, application_name="pg_dump") as dump:
        dump.execute("set transaction isolation level repeatable read")
        dump.execute("select count(*) from pg_class")
        assert stage.verbs.compact().run(stage.conn) is True


@pytest.mark.parametrize("max_jobs", [1, 10])
def test_a_claim_that_waited_for_a_rescue_gives_no_token_twice(stage: Stage, max_jobs: int) -> None:
    job_id, lost = stage.running("A")
    stage.execute("delete from {schema}.lease")  # the pointer, and with it its token, is lost
    rescuer = stage.connect(isolation="read committed")
    assert stage.verbs.rescue().run(rescuer) == 1
    lanes = [lane.lane for lane in stage.verbs.lanes(["default"]).run(stage.conn)]
    claim = stage.verbs.claim("B", lanes, max_jobs=max_jobs)
    waiting = stage.background(claim, stage.connect()).until_blocked()
    rescuer.commit()
    (lease,) = waiting.answer()
    assert lease.token >= 16 << 40 > lost
    assert [x.token for x in stage.verbs.complete([(job_id, lost)]).run(stage.conn)] == [lost]
    assert stage.verbs.complete([(job_id, lease.token)]).run(stage.conn) == []


def test_after_a_restart_one_open_transaction_stops_nobody(stage: Stage) -> None:
    attempt = stage.running("A")
    stage.execute("update {schema}.epoch set postmaster_started_at = 'epoch'")  # as after a restart
    first = stage.connect(isolation="read committed")
    stage.verbs.renew([attempt]).run(first)
    stage.verbs.cancel([attempt[0]]).run(stage.connect(isolation="read committed"))
    stage.conn.execute("set lock_timeout = '2s'")
    assert stage.verbs.reclaim().run(stage.conn) == []
    assert stage.claim("B") == []
    assert stage.reading.current_epoch(stage.conn)["epoch"] == 0


def test_so_large_a_queue_is_not_compacted_with_everybody_waiting(stage: Stage) -> None:
    stage.execute(
        "insert into {schema}.ready (lane, job_id, lease_seconds) "
        "select 1, {schema}.new_id(), 30 from generate_series(1, 10001)"
    )
    assert stage.verbs.compact().run(stage.conn) is False


# ── compact, by itself ───────────────────────────────────────────────────────────────────────────


def bloat(stage: Stage, dead: int = 50_000, live: int = 3) -> None:
    """So many dead rows in ready, that a snapshot keeps, and the statistics know of it."""
    pin = stage.connect(isolation="repeatable read")
    pin.execute("select 1 from faultline.epoch")
    stage.execute(
        "insert into {schema}.ready (lane, job_id, lease_seconds) "
        "select 1000, {schema}.new_id(), 30 from generate_series(1, %s)",
        dead + live,
    )
    stage.execute(
        "delete from {schema}.ready where seq < (select min(seq) + %s from {schema}.ready)", dead
    )
    stage.execute("select pg_stat_force_next_flush()")
    counted = "select pg_stat_get_dead_tuples('{schema}.ready'::regclass)"
    until(lambda: stage.value(counted) >= dead, "the statistics say so")


def heard_by(stage: Stage, rounds: int = 1) -> list[Event]:
    """What a reconciler says in its first rounds."""
    events: list[Event] = []

    async def play() -> None:
        reconciler = Reconciler("R", stage.url, stage.verbs, events.append)
        for _ in range(rounds):
            await reconciler.round()
        await reconciler.close()

    asyncio.run(play())
    return events


def size_of_ready(stage: Stage) -> int:
    return stage.value("select pg_relation_size('{schema}.ready')")


def test_a_reconciler_compacts_by_itself_what_a_pinned_snapshot_keeps_vacuum_from(
    stage: Stage,
) -> None:
    bloat(stage)
    before = rows_of_ready(stage)
    assert [event.event for event in heard_by(stage, rounds=2)] == ["ready_compacted"]
    assert rows_of_ready(stage) == before
    assert size_of_ready(stage) == 8192
    assert heard_by(stage) == []


def test_a_reconciler_that_finds_ready_held_leaves_it_and_goes_on(stage: Stage) -> None:
    bloat(stage)
    reader = stage.connect(isolation="read committed")
    reader.execute("select count(*) from faultline.ready")
    expired, _ = stage.running()
    stage.expire(expired)
    before = size_of_ready(stage)
    assert [event.event for event in heard_by(stage)] == ["lease_reclaimed"]
    assert size_of_ready(stage) >= before


@pytest.mark.parametrize(("dead", "live"), [(49_990, 3), (51_000, 10_001)])
def test_few_dead_rows_or_many_live_ones_are_left_as_they_are_and_nobody_waits(
    stage: Stage, dead: int, live: int
) -> None:
    bloat(stage, dead, live)
    before = size_of_ready(stage)
    reader = stage.connect(isolation="read committed")
    reader.execute("select count(*) from faultline.ready")
    assert stage.verbs.compact_if_bloated().run(stage.connect(role="worker")) is False
    reader.commit()
    assert stage.verbs.compact_if_bloated().run(stage.connect(role="worker")) is False
    assert size_of_ready(stage) == before


def test_of_many_workers_only_one_or_so_tries_to_compact(stage: Stage) -> None:
    bloat(stage)
    stage.crowd(100_000)
    assert [stage.verbs.compact_if_bloated().run(stage.conn) for _ in range(5)] == [False] * 5
    stage.execute("update {schema}.worker set seen_at = seen_at - interval '2 minutes'")
    assert stage.verbs.compact_if_bloated().run(stage.conn) is True


def test_what_was_tried_in_vain_is_tried_more_and_more_seldom() -> None:
    pace = Pace(10, 100)
    now, pauses = 0.0, []
    for _ in range(6):
        assert pace.is_due(now)
        pace.was_in_vain()
        pauses.append(next(n for n in range(1000) if pace.is_due(now + n)))
        now += pauses[-1] + 1000
    assert pauses[:4] == sorted(pauses[:4])
    assert 9 <= pauses[0] <= 11 < 18 <= pauses[1] <= 22
    assert 90 <= pauses[-1] <= 110
    for _ in range(10):
        pace.went_well()
    assert pace.is_due(now)
    assert not pace.is_due(now + 8)
    assert pace.is_due(now + 11)
