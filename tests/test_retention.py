"""What ended long ago is forgotten by itself; what still matters to anybody is not.

A job is made old by giving it, and its attempts, an id and a time of an old month.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from faultline.errors import InvalidArgument, LockedOut
from faultline.events import Event
from faultline.jobs import Retained
from faultline.worker.retention import Retention
from tests.command import CommandLine
from tests.stage import DEADLINE_SECONDS, Stage, until
from tests.test_partitions import OLD, age, clock, exists, finished, months, quarantined, released

pytestmark = pytest.mark.both_servers


def apply(stage: Stage) -> tuple[bool, list[Event]]:
    """What a reconciler's look comes to, and says."""
    events: list[Event] = []
    retention = Retention("R", stage.url, stage.verbs, events.append)
    return asyncio.run(asyncio.wait_for(retention.apply(), DEADLINE_SECONDS)), events


def test_what_ended_long_ago_is_forgotten_month_by_month_and_reported(stage: Stage) -> None:
    older = age(stage, finished(stage), OLD - timedelta(days=60))
    old, young = age(stage, finished(stage)), finished(stage)
    went_well, events = apply(stage)
    assert went_well
    assert [event.fields()["months"] for event in events] == [("2019_11",), ("2020_01",)]
    assert [exists(stage, job_id) for job_id in (older, old, young)] == [False, False, True]
    assert apply(stage) == (True, [])
    assert stage.violations() == []


def test_a_worker_may_apply_the_retention_and_not_choose_it(stage: Stage) -> None:
    age(stage, finished(stage))
    worker = stage.connect(role="worker")
    assert stage.verbs.apply_retention().run(worker) == Retained(["2020_01"], True)
    assert stage.verbs.apply_retention().run(worker) == Retained([], False)


def test_an_installation_can_keep_everything(stage: Stage) -> None:
    kept = age(stage, finished(stage))
    stage.verbs.set_retention(None).run(stage.connect(role="operator"))
    assert apply(stage) == (True, [])
    assert exists(stage, kept)


def test_the_retention_is_counted_from_the_end_of_the_month_of_the_enqueue(stage: Stage) -> None:
    """Of 30 days: dropped on the 31st day after its month, so kept for 30 to 61 days."""
    first = clock(stage).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    end_of_last_month = first - timedelta(minutes=1)
    job_id = age(stage, finished(stage), end_of_last_month)
    days = (clock(stage) - first).days
    stage.verbs.set_retention(days + 2).run(stage.conn)
    apply(stage)
    assert exists(stage, job_id)
    if days >= 2:
        stage.verbs.set_retention(days).run(stage.conn)
        apply(stage)
        assert not exists(stage, job_id)


@pytest.mark.parametrize("how", ["failed", "succeeded", "cancelled"])
def test_an_old_job_that_ended_lately_is_kept_with_its_key_and_can_be_requeued(
    stage: Stage, how: str
) -> None:
    gone = age(stage, finished(stage))
    late = age(stage, stage.enqueue(max_attempts=1, idempotency_key="k"))
    if how == "cancelled":
        stage.verbs.cancel([late]).run(stage.conn)
    else:
        (lease,) = stage.claim("A")
        verb = stage.verbs.fail if how == "failed" else stage.verbs.complete
        verb([(late, lease.token)]).run(stage.conn)
    apply(stage)
    assert (exists(stage, gone), stage.state(late)) == (False, how)
    assert stage.enqueue(max_attempts=1, idempotency_key="k") == late
    if how == "failed":
        assert stage.verbs.requeue([late]).run(stage.conn) == [late]
    assert stage.violations() == []


def test_a_month_of_stragglers_is_written_anew_once_and_not_every_hour(stage: Stage) -> None:
    age(stage, finished(stage))
    kept = [age(stage, make(stage)) for make in (released, quarantined)]
    assert len(apply(stage)[1]) == 1
    file = stage.value("select pg_relation_filenode('{schema}.job_2020_01')")
    assert apply(stage) == (True, [])
    assert stage.value("select pg_relation_filenode('{schema}.job_2020_01')") == file
    assert all(exists(stage, job_id) for job_id in kept)


def test_a_month_with_very_many_stragglers_is_not_copied_with_everybody_waiting(
    stage: Stage,
) -> None:
    gone = age(stage, finished(stage))
    stage.execute(
        "insert into {schema}.scheduled (job_id, run_at, lane, lease_seconds) select "
        "overlay(%s::text placing lpad(to_hex(n), 12, '0') from 25)::uuid, 'infinity', 1, 30 "
        "from generate_series(1, 10001) n",
        str(gone),
    )
    assert apply(stage) == (True, [])
    assert exists(stage, gone)
    stage.execute("delete from {schema}.scheduled")
    assert len(apply(stage)[1]) == 1


def test_who_reads_an_old_month_keeps_it_and_is_no_outage(stage: Stage) -> None:
    old = age(stage, finished(stage))
    reader = stage.connect(isolation="read committed")
    reader.execute("select count(*) from faultline.jobs")
    assert apply(stage) == (False, [])
    stage.conn.execute("set statement_timeout = '5s'")
    with pytest.raises(LockedOut):
        stage.verbs.apply_retention().run(stage.conn)
    reader.commit()
    assert len(apply(stage)[1]) == 1
    assert not exists(stage, old)


def test_a_job_of_an_old_month_does_not_end_between_the_look_and_the_drop(stage: Stage) -> None:
    """A reader of `job` holds the drop up after it was looked up who ended lately."""
    age(stage, finished(stage))
    job_id, token = stage.running()
    old = age(stage, job_id)
    stage.execute("alter function {schema}.apply_retention() set lock_timeout = '20s'")
    reader = stage.connect(isolation="read committed")
    reader.execute("lock table only faultline.job in access share mode")
    dropping = stage.background(stage.verbs.apply_retention(), stage.connect()).until_blocked()
    with pytest.raises(LockedOut):
        stage.verbs.complete([(old, token)]).run(stage.conn)
    reader.commit()
    assert dropping.answer().months == ["2020_01"]
    assert stage.verbs.complete([(old, token)]).run(stage.conn) == []
    assert stage.state(old) == "succeeded"
    assert stage.violations() == []


def test_nobody_waits_while_it_is_looked_up_who_ended_lately(stage: Stage) -> None:
    """The look at the month, which may take long, is stopped by a row that somebody holds."""
    age(stage, finished(stage, idempotency_key="k"))
    job_id, token = stage.running()
    stage.execute("alter function {schema}.apply_retention() set lock_timeout = '20s'")
    holder = stage.connect(isolation="read committed")
    holder.execute("lock table faultline.job_2020_01 in row exclusive mode")
    looking = stage.background(stage.verbs.apply_retention(), stage.connect()).until_blocked()
    stage.conn.execute("set lock_timeout = '2s'")
    assert stage.verbs.complete([(job_id, token)]).run(stage.conn) == []
    assert stage.state(stage.enqueue()) == "queued"
    holder.commit()
    assert looking.answer().months == ["2020_01"]


def test_keys_go_before_their_jobs_a_batch_at_a_time_and_steps_after_them(stage: Stage) -> None:
    old = age(stage, finished(stage))
    stage.execute(
        "insert into {schema}.idempotency (task, key, job_id, payload_digest, created_at) "
        "select 'work', n::text, %s, '', clock_timestamp() from generate_series(1, 10001) n",
        old,
    )
    stage.execute("insert into {schema}.step (job_id, step, fencing_token, at) "
                  "values (%s, 'paid', 1, clock_timestamp())", old)  # fmt: skip
    keys = "select count(*) from {schema}.idempotency"
    steps = "select count(*) from {schema}.step"
    seen = []
    while True:
        done = stage.verbs.apply_retention().run(stage.conn)
        seen.append((done.months, stage.value(keys), stage.value(steps), exists(stage, old)))
        if not done.more:
            break
    assert seen == [([], 1, 1, True), (["2020_01"], 0, 1, False), ([], 0, 0, False)]


@pytest.mark.parametrize("days", [-1, 0, 1, 36_501])
def test_a_retention_that_cannot_be_meant_is_rejected(stage: Stage, days: int) -> None:
    with pytest.raises(InvalidArgument, match="from 2 to 36500"):
        stage.verbs.set_retention(days).run(stage.conn)
    assert stage.reading.settings(stage.conn)["retention_days"] == 30


def test_the_command_shows_and_sets_the_retention(stage: Stage, tmp_path) -> None:
    faultline = CommandLine(stage.url, tmp_path)
    assert faultline("retention", "show") == "what has ended is kept for 30 days\n"
    assert faultline("retention", "set", "90") == "what has ended is kept for 90 days\n"
    assert faultline("retention", "set", "off") == "what has ended is kept for ever\n"
    assert faultline("retention", "show", "--json").strip() == '{"retention_days": null}'
    faultline("retention", "set", "soon", status=2)
    faultline("retention", "set", "1", status=1)


def test_months_are_vacuumed_and_frozen_as_rows_that_never_change(stage: Stage) -> None:
    stage.verbs.create_partitions(6).run(stage.conn)
    options = stage.execute(
        "select distinct reloptions from pg_class where oid in (select inhrelid from pg_inherits "
        "where inhparent in ('{schema}.job'::regclass, '{schema}.attempt'::regclass))"
    )
    assert [sorted(row[0]) for row in options] == [
        [
            "autovacuum_freeze_min_age=0",
            "autovacuum_vacuum_insert_scale_factor=0",
            "autovacuum_vacuum_insert_threshold=500000",
        ]
    ]


def test_a_running_reconciler_applies_the_retention_by_itself(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    from faultline.worker import retention
    from faultline.worker.reconciler import Reconciler

    monkeypatch.setattr(retention, "FIRST_SECONDS", 0.01)
    old = age(stage, finished(stage))
    heard: list[Event] = []

    async def play() -> None:
        running = asyncio.ensure_future(Reconciler("R", stage.url, stage.verbs, heard.append).run())
        await asyncio.to_thread(until, lambda: not exists(stage, old), "the month is dropped")
        await asyncio.to_thread(until, lambda: heard, "and it is said")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(play())
    assert [event.event for event in heard] == ["months_forgotten"]
    assert "2020_01" not in months(stage, "job")
