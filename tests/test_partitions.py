"""Months come and go and no job is lost: partitions, odd clocks, retention, rescue and compaction.

A job is made old by giving it an id of an old month, in every table in which it stands.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import pytest

from faultline.errors import InvalidArgument, LockedOut
from tests.stage import Stage

pytestmark = pytest.mark.both_servers
OLD = datetime(2020, 1, 17, 12, tzinfo=UTC)


def id_at(moment: datetime) -> UUID:
    """A UUIDv7 of that moment."""
    return UUID(int=int(moment.timestamp() * 1000) << 80 | 7 << 76 | uuid4().int & (1 << 76) - 1)


def months(stage: Stage, parent: str) -> set[str]:
    rows = stage.execute(
        "select inhrelid::regclass::text from pg_inherits where inhparent = %s::regclass",
        f"{stage.schema}.{parent}",
    )
    return {row[0].removeprefix(f"{stage.schema}.{parent}_") for row in rows}


def make_month(stage: Stage, month: str) -> None:
    """Partitions of a month long past, as create_partitions made them when it was due."""
    for parent in ("job", "attempt"):
        name = f"{stage.schema}.{parent}_{month}"
        stage.execute(
            f"create table {name} (like {stage.schema}.{parent} including all);"
            f"alter table {name} owner to {stage.schema}_owner;"
            f"do $$ declare m timestamp := to_date('{month}', 'YYYY_MM'); begin execute format("
            f"'alter table {stage.schema}.{parent} attach partition {name} "
            "for values from (%L) to (%L)', "
            f"{stage.schema}.id_at(m at time zone 'UTC'), "
            f"{stage.schema}.id_at((m + interval '1 month') at time zone 'UTC')); end $$"
        )


def age(stage: Stage, job_id: UUID, moment: datetime = OLD) -> UUID:
    """The job, wherever it stands, was enqueued at that moment, and so did its attempts end."""
    month = f"{moment:%Y_%m}"
    if month not in months(stage, "job"):
        make_month(stage, month)
    old = id_at(moment)
    stage.execute("update {schema}.job set id = %s where id = %s", old, job_id)
    for table in ("ready", "scheduled", "lease", "quarantine", "attempt", "idempotency"):
        stage.execute(f"update {{schema}}.{table} set job_id = %s where job_id = %s", old, job_id)
    stage.execute("update {schema}.attempt set at = %s where job_id = %s", moment, old)
    return old


def exists(stage: Stage, job_id: UUID) -> bool:
    return stage.reading.job(stage.conn, job_id) is not None


# ── create_partitions ────────────────────────────────────────────────────────────────────────────


def test_the_coming_months_have_partitions_before_they_are_needed(stage: Stage) -> None:
    today = stage.value("select (clock_timestamp() at time zone 'UTC')::date")
    number = today.year * 12 + today.month - 1
    coming = {f"{n // 12:04}_{n % 12 + 1:02}" for n in range(number, number + 4)}
    assert coming <= months(stage, "job")
    assert months(stage, "attempt") == months(stage, "job")
    stage.execute("select {schema}.create_partitions(14)")
    coming = {f"{n // 12:04}_{n % 12 + 1:02}" for n in range(number, number + 15)}
    assert coming <= months(stage, "job")
    assert months(stage, "attempt") == months(stage, "job")


def test_partitions_leave_no_gap_between_months_and_no_default_behind(stage: Stage) -> None:
    stage.verbs.create_partitions(26).run(stage.conn)
    for parent in ("job", "attempt"):
        bounds = sorted(
            row[0].replace("FOR VALUES FROM (", "").replace(")", "").split(" TO (")
            for row in stage.execute(
                "select pg_get_expr(c.relpartbound, c.oid) from pg_inherits i "
                "join pg_class c on c.oid = i.inhrelid where inhparent = %s::regclass",
                f"{stage.schema}.{parent}",
            )
        )
        assert ["DEFAULT"] not in bounds
        assert len(bounds) >= 27
        assert all(a[1] == b[0] for a, b in pairwise(bounds))


def test_creating_partitions_twice_makes_nothing_the_second_time(stage: Stage) -> None:
    made = stage.verbs.create_partitions(6).run(stage.conn)
    assert made == 2 * 3
    assert stage.verbs.create_partitions(6).run(stage.conn) == 0


@pytest.mark.parametrize("ahead", [None, -1, 0, 61, 2**31 - 1])
def test_a_worker_cannot_drown_the_database_in_partitions_or_make_too_few(
    stage: Stage, ahead: int | None
) -> None:
    before = months(stage, "job")
    with pytest.raises(InvalidArgument, match="from 1 to 60"):
        stage.verbs.create_partitions(ahead).run(stage.connect(role="worker"))
    assert months(stage, "job") == before


def test_two_that_create_partitions_at_once_do_not_trip_over_each_other(stage: Stage) -> None:
    first = stage.connect(isolation="read committed")
    assert stage.verbs.create_partitions(6).run(first) == 6
    second = stage.background(stage.verbs.create_partitions(6), stage.connect()).until_blocked()
    first.commit()
    assert second.answer() == 0


def test_creating_partitions_neither_waits_for_open_transactions_nor_holds_anybody_up(
    stage: Stage,
) -> None:
    job_id, token = stage.running()
    reader = stage.connect(isolation="read committed")
    writer = stage.connect(isolation="read committed")
    maker = stage.connect(isolation="read committed")
    for conn in (reader, writer, maker):
        conn.execute("set lock_timeout = '1s'")
        conn.commit()
    assert stage.reading.job(reader, job_id)
    stage.verbs.complete([(job_id, token)]).run(writer)
    stage.verbs.enqueue("work").run(writer)
    assert stage.verbs.create_partitions(6).run(maker) == 6
    assert stage.reading.job(reader, job_id)
    late, late_token = stage.running()
    stage.verbs.complete([(late, late_token)]).run(writer)
    for conn in (writer, maker, reader):
        conn.commit()
    assert stage.violations() == []


# ── odd clocks ───────────────────────────────────────────────────────────────────────────────────

ODD: dict[str, Callable[[datetime], UUID]] = {
    "two hours ahead": lambda now: id_at(now + timedelta(hours=2)),
    "two days behind": lambda now: id_at(now - timedelta(days=2)),
    "a version 4 uuid": lambda _: UUID("c9a8f2a4-5e6d-4c3b-8a1f-0d2e4b6c8a01"),
    "the year 1970": lambda _: id_at(datetime(1970, 1, 1, tzinfo=UTC)),
    "nil": lambda _: UUID(int=0),
    "all ff": lambda _: UUID(int=2**128 - 1),
}
EVEN: dict[str, Callable[[datetime], UUID]] = {
    "now": id_at,
    "59 minutes ahead": lambda now: id_at(now + timedelta(minutes=59)),
    "23 hours behind": lambda now: id_at(now - timedelta(hours=23)),
}


def clock(stage: Stage) -> datetime:
    return stage.value("select clock_timestamp()")


def is_of_now(stage: Stage, job_id: UUID) -> bool:
    made = stage.value("select {schema}.id_time(%s)", job_id)
    return abs(made - clock(stage)) < timedelta(minutes=5)


@pytest.mark.parametrize("odd", ODD)
def test_an_id_from_an_odd_clock_is_reissued_and_the_job_accepted_all_the_same(
    stage: Stage, odd: str
) -> None:
    sent = ODD[odd](clock(stage))
    job_id = stage.enqueue(job_id=sent)
    assert job_id != sent
    assert is_of_now(stage, job_id)
    assert (job_id.version, job_id.variant) == (7, "specified in RFC 4122")
    assert [lease.job_id for lease in stage.claim()] == [job_id]
    assert stage.verbs.complete([(job_id, 1)]).run(stage.conn) == []


@pytest.mark.parametrize("even", EVEN)
def test_an_id_within_the_limits_is_kept_so_that_a_retried_enqueue_is_harmless(
    stage: Stage, even: str
) -> None:
    sent = EVEN[even](clock(stage))
    assert stage.enqueue(job_id=sent) == sent
    assert stage.enqueue(job_id=sent) == sent
    assert stage.verbs.enqueue_many("work", [sent], [{}]).run(stage.conn) == [sent]
    assert [lease.job_id for lease in stage.claim(max_jobs=10)] == [sent]


def test_a_batch_with_odd_ids_keeps_the_good_ones_and_gives_each_payload_its_own_job(
    stage: Stage,
) -> None:
    now = clock(stage)
    sent = [make(now) for make in (*ODD.values(), *EVEN.values(), *ODD.values())]
    payloads = [{"n": n} for n in range(len(sent))]
    ids = stage.verbs.enqueue_many("work", sent, payloads).run(stage.conn)
    assert len(set(ids)) == len(sent)
    assert [stage.job(job_id)["payload"] for job_id in ids] == payloads
    good = slice(len(ODD), len(ODD) + len(EVEN))
    assert ids[good] == sent[good]
    assert all(is_of_now(stage, job_id) for job_id in (*ids[: len(ODD)], *ids[-len(ODD) :]))
    assert not set(ids) & {make(now) for make in (ODD["nil"], ODD["all ff"])}
    assert stage.violations() == []


# ── drop_partitions ──────────────────────────────────────────────────────────────────────────────


def finished(stage: Stage, **options: Any) -> UUID:
    job_id, token = stage.running(**options)
    stage.verbs.complete([(job_id, token)]).run(stage.conn)
    return job_id


def quarantined(stage: Stage) -> UUID:
    job_id, _ = stage.running(max_crashes=1)
    stage.expire(job_id)
    stage.verbs.reclaim().run(stage.conn)
    return job_id


def released(stage: Stage) -> UUID:
    job_id, token = stage.running()
    stage.verbs.release([(job_id, token)]).run(stage.conn)
    return job_id


def test_a_month_without_a_pointer_goes_with_its_jobs_attempts_and_keys(stage: Stage) -> None:
    young = finished(stage)
    old = age(stage, finished(stage, idempotency_key="k"))
    operator = stage.connect(role="operator")
    assert stage.verbs.drop_partitions(365).run(operator) == ["2020_01"]
    assert "2020_01" not in months(stage, "job") | months(stage, "attempt")
    assert stage.value("select to_regclass('faultline.job_2020_01') is null")
    assert not exists(stage, old)
    assert stage.outcomes(old) == []
    assert stage.state(young) == "succeeded"
    assert stage.state(stage.enqueue(idempotency_key="k")) == "queued"
    assert stage.violations() == []


POINTERS: dict[str, tuple[Callable[[Stage], UUID], str]] = {
    "ready": (released, "queued"),
    "scheduled": (lambda stage: stage.enqueue(delay_seconds=1e8), "scheduled"),
    "lease": (lambda stage: stage.running()[0], "running"),
    "quarantine": (quarantined, "quarantined"),
}


@pytest.mark.parametrize("place", POINTERS)
def test_an_old_job_that_still_has_a_pointer_outlives_its_month(stage: Stage, place: str) -> None:
    make, state = POINTERS[place]
    gone = [age(stage, finished(stage)) for _ in range(3)]
    kept = age(stage, make(stage))
    before = stage.job(kept), stage.outcomes(kept)
    assert stage.verbs.drop_partitions(365).run(stage.conn) == ["2020_01"]
    assert [exists(stage, job_id) for job_id in gone] == [False] * 3
    assert (stage.job(kept), stage.outcomes(kept)) == before
    assert stage.state(kept) == state
    assert stage.value("select count(*) from {schema}.attempt_2020_01") == len(before[1])
    assert stage.value("select to_regclass('faultline.kept') is null")
    assert stage.violations() == []


def test_an_old_job_that_was_kept_can_still_run_to_its_end_and_is_forgotten_long_after(
    stage: Stage,
) -> None:
    kept = age(stage, released(stage))
    assert stage.verbs.drop_partitions(365).run(stage.conn) == []
    (lease,) = stage.claim("B")
    assert (lease.job_id, lease.token) == (kept, 2)
    assert stage.verbs.complete([(kept, 2)]).run(stage.conn) == []
    assert stage.violations() == []
    assert stage.verbs.drop_partitions(365).run(stage.conn) == []
    stage.execute("update {schema}.attempt set at = at - interval '366 days'")
    assert stage.verbs.drop_partitions(365).run(stage.conn) == ["2020_01"]
    assert "2020_01" not in months(stage, "job")


def test_the_key_of_an_old_job_that_was_kept_still_names_it(stage: Stage) -> None:
    kept = age(stage, stage.enqueue(idempotency_key="k"))
    stage.verbs.drop_partitions(365).run(stage.conn)
    assert stage.enqueue(idempotency_key="k") == kept


def test_refusals_and_silent_workers_are_forgotten_at_the_same_age(stage: Stage) -> None:
    stale = stage.running("A")
    stage.take_over(stale[0], "B")
    for _ in range(2):
        stage.verbs.complete([stale]).run(stage.conn)
    stage.verbs.beat("gone", ["default"]).run(stage.conn)
    stage.verbs.beat("here", ["default"]).run(stage.conn)
    ages_ago = "clock_timestamp() - interval '40 days'"
    stage.execute(
        f"update {{schema}}.refusal set at = {ages_ago} "
        "where id = (select min(id) from {schema}.refusal)"
    )
    stage.execute(f"update {{schema}}.worker set seen_at = {ages_ago} where worker = 'gone'")
    stage.verbs.drop_partitions(30).run(stage.conn)
    assert len(stage.refusals(stale[0])) == 1
    assert [row["worker"] for row in stage.reading.workers(stage.conn)] == ["here"]


def test_only_months_that_ended_so_long_ago_are_dropped(stage: Stage) -> None:
    ages = (datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 2, 29, 23, 59, tzinfo=UTC))
    january, february = (age(stage, finished(stage), moment) for moment in ages)
    days = (clock(stage) - datetime(2020, 2, 15, tzinfo=UTC)).days
    assert stage.verbs.drop_partitions(days).run(stage.conn) == ["2020_01"]
    assert (exists(stage, january), exists(stage, february)) == (False, True)
    assert stage.verbs.drop_partitions(2).run(stage.conn) == ["2020_02"]
    assert not exists(stage, february)


def test_the_session_time_zone_does_not_move_the_edges_of_a_month(stage: Stage) -> None:
    """In Asunción the first hour of October 2017 did not exist."""
    kept = age(stage, stage.enqueue(), datetime(2017, 10, 1, 0, 30, tzinfo=UTC))
    stage.execute("set time zone 'America/Asuncion'")
    stage.verbs.drop_partitions(365).run(stage.conn)
    assert exists(stage, kept)
    assert stage.violations() == []


@pytest.mark.parametrize("days", [-1, 0, 1])
def test_months_into_which_ids_are_still_handed_out_cannot_be_dropped(
    stage: Stage, days: int
) -> None:
    with pytest.raises(InvalidArgument, match="at least 2 days"):
        stage.verbs.drop_partitions(days).run(stage.conn)


def test_dropping_gives_up_rather_than_wait_for_somebody_who_reads_the_month(
    stage: Stage,
) -> None:
    old = age(stage, finished(stage))
    reader = stage.connect(isolation="read committed")
    reader.execute("select count(*) from faultline.job_2020_01")
    with pytest.raises(LockedOut):
        stage.verbs.drop_partitions(365).run(stage.conn)
    assert exists(stage, old)
    reader.commit()
    assert stage.verbs.drop_partitions(365).run(stage.conn) == ["2020_01"]


def test_dropping_takes_its_locks_in_everybodys_order_and_so_never_deadlocks(stage: Stage) -> None:
    """Parents first: whoever has touched job already can still go on into the month."""
    age(stage, finished(stage))
    stage.execute("alter function {schema}.drop_partitions set lock_timeout = '20s'")
    producer = stage.connect(isolation="read committed")
    job_id = stage.verbs.enqueue("work").run(producer)
    drop = stage.background(stage.verbs.drop_partitions(365), stage.connect()).until_blocked()
    assert stage.verbs.status(job_id).run(producer).state == "queued"
    producer.commit()
    drop.answer()
    assert "2020_01" not in months(stage, "job")


def test_an_old_job_that_is_being_requeued_meanwhile_is_not_dropped(stage: Stage) -> None:
    job_id, token = stage.running(max_attempts=1)
    stage.verbs.fail([(job_id, token)]).run(stage.conn)
    old = age(stage, job_id)
    operator = stage.connect(isolation="read committed")
    assert stage.verbs.requeue([old]).run(operator) == [old]
    with pytest.raises(LockedOut):
        stage.verbs.drop_partitions(365).run(stage.conn)
    operator.commit()
    stage.verbs.drop_partitions(365).run(stage.conn)
    assert stage.state(old) == "queued"
    assert stage.violations() == []


def test_a_month_dropped_by_hand_does_not_stop_the_claims_and_rescues_of_other_jobs(
    stage: Stage,
) -> None:
    leased = age(stage, stage.running()[0])
    crashed = stage.running()[0]
    waiting = age(stage, stage.enqueue())
    stage.expire(leased, crashed)
    stage.execute("drop table {schema}.job_2020_01, {schema}.attempt_2020_01")
    assert {x.job_id for x in stage.verbs.reclaim().run(stage.conn)} == {leased, crashed}
    young = stage.enqueue()
    claimed = {lease.job_id for lease in stage.claim("B", 10)}
    assert claimed == {crashed, young}
    parked = {row[0] for row in stage.execute("select job_id from {schema}.quarantine")}
    assert parked == {leased, waiting}
