"""Announcements where many workers sleep: one does for a while, since the sleepers look again.

Each NOTIFY wakes every session that listens, so that fifty idle workers would halve what a producer
can enqueue.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from psycopg import Connection

from faultline.migrate import migrate
from faultline.worker.sleeper import FEW, LOOK_SECONDS, LOOKS_IN_QUIET
from tests.ears import Ear, asleep
from tests.stage import Stage

TO_MANY = "among 50 default"  # what is said where 50 sleep


@pytest.fixture
def ear(stage: Stage) -> Ear:
    return Ear(stage)


def many_asleep(stage: Stage, *queues: str, workers: int = 50) -> None:
    """And they know the lane: of the first job in one all are told."""
    for queue in queues or ["default"]:
        stage.execute("insert into {schema}.queue values (%s) on conflict do nothing", queue)
        stage.execute(
            "insert into {schema}.lane (queue, priority) values (%s, 0) on conflict do nothing",
            queue,
        )
    for number in range(workers):
        asleep(stage, *queues, worker=f"W{number}")


def prolong_the_quiet(stage: Stage) -> None:
    """So that a test does not depend on how fast it is."""
    stage.execute(
        "update {schema}.announcement set quiet_until = quiet_until + interval '50 seconds'"
    )


def prolong_what_is_known(conn: Connection[Any], stage: Stage, seconds: int = 50) -> None:
    """The same, of what this session knows by itself."""
    conn.execute(
        "select set_config(%s,"
        " ((date_part('epoch', clock_timestamp()) + %s) * 1000)::bigint::text, false)",
        (f"faultline.{stage.schema}_quiet_until", seconds),
    )


def known(conn: Connection[Any], stage: Stage) -> str | None:
    """The queue for which this session knows that there is no need to announce."""
    name = f"faultline.{stage.schema}_quiet_queue"
    found = conn.execute("select current_setting(%s, true)", (name,)).fetchone()
    assert found is not None
    return found[0] or None


def is_quiet(stage: Stage, ear: Ear) -> bool:
    """Whether an enqueue announces nothing; one that was held up on its way always does."""
    for _ in range(5):
        stage.enqueue()
        if ear.heard() == []:
            return True
    return False


@pytest.mark.both_servers
def test_where_many_sleep_an_announcement_does_for_a_while_and_then_no_longer(
    stage: Stage, ear: Ear
) -> None:
    many_asleep(stage, "default", "mail")
    stage.enqueue()
    prolong_the_quiet(stage)
    assert ear.heard() == [TO_MANY]
    assert is_quiet(stage, ear)
    stage.verbs.enqueue_many("work", [uuid4()], [{}]).run(stage.conn)  # may be many: worth a call
    assert ear.heard() == ["default"]
    stage.enqueue(queue="mail")  # whose sleepers were told nothing
    assert ear.heard() == ["among 50 mail"]
    stage.execute("update {schema}.announcement set quiet_until = clock_timestamp()")
    stage.enqueue()
    assert ear.heard() == [TO_MANY]


def quiet_after(stage: Stage, ago: str) -> list[float]:
    """For how many milliseconds announcements do that come so long after another's time is over."""
    seen: list[float] = []
    for _ in range(5):
        stage.execute(
            "do $$ begin"
            f" delete from {stage.schema}.announcement;"
            f" insert into {stage.schema}.announcement (queue, quiet_until)"
            f" values ('default', clock_timestamp() - interval '{ago}');"
            f" perform {stage.schema}.enqueue('work'); end $$"
        )
        quiet = (
            "select (select max(quiet_until) from {schema}.announcement) - max(created_at)"
            "  from {schema}.job"
        )
        seen.append(stage.value(quiet) / timedelta(milliseconds=1))
    return seen


@pytest.mark.parametrize(
    ("workers", "once", "often"), [(5, 5, 5), (20, 20, 80), (50, 50, 500), (80, 50, 500)]
)
def test_the_more_sleep_the_longer_it_is_quiet_and_longest_where_jobs_follow_on_each_other(
    stage: Stage, workers: int, once: int, often: int
) -> None:
    """And never longer than they look again. One of five, at least, is not held up on its way."""
    stage.enqueue()
    many_asleep(stage, workers=workers)
    assert once <= min(quiet_after(stage, "6 ms")) < once + 3
    assert any(often <= quiet < often + 3 for quiet in quiet_after(stage, "0 ms"))
    assert often <= 1_000 * LOOK_SECONDS * workers * LOOKS_IN_QUIET


def test_a_few_sleepers_hear_of_every_job(stage: Stage, ear: Ear) -> None:
    many_asleep(stage, workers=FEW)
    for _ in range(3):
        stage.enqueue()
    assert ear.heard() == ["default"] * 3
    assert stage.value("select count(*) from {schema}.announcement") == 0
    many_asleep(stage, workers=FEW + 1)
    stage.enqueue()
    assert ear.heard() == ["among 5 default"]


def test_of_the_first_job_in_a_lane_all_are_told_also_in_the_quiet(stage: Stage, ear: Ear) -> None:
    """Who looks by himself looks only into the lanes that he has read of."""
    many_asleep(stage)
    stage.enqueue()
    prolong_the_quiet(stage)
    assert ear.heard() == [TO_MANY]
    stage.enqueue(priority=7)
    stage.enqueue(priority=8, idempotency_key="k")
    assert ear.heard() == ["default", "default"]
    stage.enqueue(priority=9, notify=False)
    assert ear.heard() == []


def test_an_announcement_that_is_not_committed_keeps_nobody_quiet_and_waiting(
    stage: Stage, ear: Ear
) -> None:
    stage.enqueue()  # makes the queue: the first job of one is waited for
    many_asleep(stage)
    open_one = stage.connect(isolation="read committed")
    stage.verbs.enqueue("work").run(open_one)
    stage.enqueue()
    assert ear.heard() == [TO_MANY]
    prolong_the_quiet(stage)
    open_one.rollback()
    assert is_quiet(stage, ear)


def test_an_announcement_from_before_the_clock_was_set_back_keeps_nobody_quiet(
    stage: Stage, ear: Ear
) -> None:
    many_asleep(stage)
    stage.enqueue()
    stage.execute("update {schema}.announcement set quiet_until = quiet_until + interval '1 hour'")
    prolong_what_is_known(stage.conn, stage, 3600)
    stage.enqueue()
    assert ear.heard() == [TO_MANY] * 2
    many_asleep(stage, workers=1)
    ahead = (
        "select count(*) from {schema}.announcement where quiet_until > now() + interval '1 min'"
    )
    assert stage.value(ahead) == 0, "it is forgotten"


@pytest.mark.parametrize("whose", ["its own", "another's"])
def test_a_session_that_knows_of_an_announcement_does_not_look_for_it_again(
    stage: Stage, ear: Ear, whose: str
) -> None:
    many_asleep(stage)
    stage.enqueue()
    prolong_the_quiet(stage)
    assert ear.heard() == [TO_MANY]
    conn = stage.conn if whose == "its own" else stage.connect()
    job = stage.verbs.enqueue("work")
    assert any(job.run(conn) and ear.heard() == [] for _ in range(5)), "it has looked"
    assert known(conn, stage) == "default"
    for _ in range(5):  # one that was held up on its way announces all the same
        prolong_what_is_known(conn, stage)
        stage.execute("delete from {schema}.announcement")
        job.run(conn)
        if not (heard := ear.heard()):
            break
    assert heard == []
    job.run(stage.connect())  # another session has to look, and finds none
    assert ear.heard() == [TO_MANY]
    stage.verbs.enqueue("work", queue="mail").run(conn)
    many_asleep(stage, "mail")
    stage.verbs.enqueue("work", queue="mail").run(conn)  # of which it knows nothing
    assert ear.heard() == ["among 50 mail"]


def test_an_announcement_that_is_taken_back_is_forgotten_by_its_session(
    stage: Stage, ear: Ear
) -> None:
    stage.enqueue()  # makes the queue
    many_asleep(stage)
    conn = stage.connect(isolation="read committed")
    stage.verbs.enqueue("work").run(conn)
    assert known(conn, stage) == "default"
    conn.rollback()
    assert known(conn, stage) is None
    stage.verbs.enqueue("work").run(conn)  # what it knew is empty now, and no number
    conn.commit()
    assert ear.heard() == [TO_MANY]
    assert known(conn, stage) == "default"


def test_an_enqueue_that_had_to_wait_announces_whatever_its_session_knows(
    stage: Stage, ear: Ear
) -> None:
    many_asleep(stage)
    conn, holder = stage.connect(), stage.connect(isolation="read committed")
    while known(conn, stage) is None:
        stage.verbs.enqueue("work").run(conn)
    prolong_what_is_known(conn, stage)
    stage.verbs.enqueue("work", idempotency_key="k").run(holder)
    call = stage.verbs.enqueue("work", idempotency_key="k")
    waiting = stage.background(call, conn).until_blocked()
    ear.heard()
    stage.execute("select pg_sleep(0.05)")  # longer than what is brief
    holder.rollback()
    waiting.answer()
    assert ear.heard() == [TO_MANY]


def test_an_installation_may_have_the_name_of_a_module(stage: Stage) -> None:
    """A loaded module keeps the settings that begin with its name to itself."""
    with Stage(stage.url, "plpgsql") as named:
        migrate(named.conn, "plpgsql")
        named.enqueue()
        many_asleep(named)
        named.enqueue()
        assert known(named.conn, named) == "default"


@pytest.mark.parametrize("how", ["it has written before", "it began long ago"])
def test_a_transaction_that_goes_on_announces_whatever_was_announced_before(
    stage: Stage, ear: Ear, how: str
) -> None:
    """Its job may be there long after the sleepers have looked a second time."""
    stage.execute("create table public.orders (n integer)")
    many_asleep(stage)
    stage.enqueue()
    prolong_the_quiet(stage)
    assert ear.heard() == [TO_MANY]
    conn = stage.connect(isolation="read committed")
    while known(conn, stage) is None:  # it was held up, and announced by itself
        stage.verbs.enqueue("work").run(conn)
        conn.commit()
    prolong_what_is_known(conn, stage)
    conn.commit()
    ear.heard()
    if how == "it has written before":
        conn.execute("insert into public.orders values (1)")
    else:
        conn.execute("select pg_sleep(0.05)")
    stage.verbs.enqueue("work").run(conn)
    conn.commit()
    assert ear.heard() == [TO_MANY]


def test_who_goes_to_sleep_forgets_announcements_of_long_ago(stage: Stage) -> None:
    many_asleep(stage)
    stage.enqueue()
    stage.execute("update {schema}.announcement set quiet_until = now() - interval '2 minutes'")
    stage.execute("reset faultline.{schema}_quiet_queue")
    stage.enqueue()
    asleep(stage)
    assert stage.value("select count(*) from {schema}.announcement") == 1


def test_who_sleeps_on_another_queue_or_is_dead_costs_an_enqueue_no_look(stage: Stage) -> None:
    """To ask what was announced takes as long as half of the rest."""
    looks = "select coalesce(sum(calls), 0) from pg_stat_xact_user_functions where funcname = %s"
    conn = stage.connect(isolation="read committed")
    conn.execute("set track_functions = 'all'")
    many_asleep(stage, "default")

    def calls() -> Any:
        return conn.execute(looks, ("announce",)).fetchone()

    def looked(queue: str) -> bool:
        before = calls()
        stage.verbs.enqueue("work", queue=queue).run(conn)
        after = calls()
        conn.commit()
        return bool(after != before)

    looked("mail")  # whose lane is new
    assert not looked("mail")
    assert looked("default")
    conn.execute(f"reset faultline.{stage.schema}_quiet_queue")
    stage.execute("update {schema}.sleeper set until = clock_timestamp()")
    assert not looked("default")


def test_announcements_that_stand_are_not_repeated_in_the_table(stage: Stage, ear: Ear) -> None:
    stage.execute("create table public.orders (n integer)")
    many_asleep(stage)
    stage.enqueue()
    prolong_the_quiet(stage)
    conn = stage.connect(isolation="read committed")
    for _ in range(3):
        conn.execute("insert into public.orders values (1)")  # so it announces by itself
        stage.verbs.enqueue("work").run(conn)
        conn.commit()
    assert ear.heard() == [TO_MANY] * 4
    assert stage.value("select count(*) from {schema}.announcement") == 1


def test_enqueues_under_serializable_do_not_abort_each_other(stage: Stage, ear: Ear) -> None:
    stage.enqueue()  # makes the queue
    many_asleep(stage)
    one, other = (stage.connect(isolation="serializable") for _ in range(2))
    for conn in (one, other):
        stage.verbs.enqueue("work").run(conn)
    one.commit()
    other.commit()
    assert ear.heard() == [TO_MANY] * 2
