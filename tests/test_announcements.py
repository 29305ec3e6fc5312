"""Announcements where many workers sleep: one does for a while, since the sleepers look again.

Each NOTIFY wakes every session that listens, so that fifty idle workers would halve what a producer
can enqueue.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from psycopg import Connection

from faultline.migrate import migrate
from faultline.worker.ears import LOOK_SECONDS, QUIET_SECONDS, SecondLook
from tests.ears import Ear, asleep
from tests.stage import DEADLINE_SECONDS, Stage


@pytest.fixture
def ear(stage: Stage) -> Ear:
    return Ear(stage)


def many_asleep(stage: Stage, *queues: str, workers: int = 50) -> None:
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
        "select set_config(%s, (date_part('epoch', clock_timestamp()) + %s)::text, false)",
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
    assert ear.heard() == ["default"]
    assert is_quiet(stage, ear)
    stage.verbs.enqueue_many("work", [uuid4()], [{}]).run(stage.conn)  # may be many: worth a call
    assert ear.heard() == ["default"]
    stage.enqueue(queue="mail")  # whose sleepers were told nothing
    assert ear.heard() == ["mail"]
    stage.execute("update {schema}.announcement set quiet_until = clock_timestamp()")
    stage.enqueue()
    assert ear.heard() == ["default"]


def test_the_more_sleep_the_longer_it_is_quiet_but_never_longer_than_they_look_again(
    stage: Stage,
) -> None:
    quiet = "select max(quiet_until) - clock_timestamp() from {schema}.announcement"
    many_asleep(stage, workers=60)
    stage.enqueue()
    assert stage.value(quiet) <= timedelta(seconds=QUIET_SECONDS)


def test_who_was_told_looks_twice_in_the_quiet_and_once_after_it() -> None:
    """Twice, so that of those who sleep somebody looks every few milliseconds."""

    async def looks() -> list[float]:
        loop, seen = asyncio.get_running_loop(), list[float]()
        over = loop.create_future()

        def look() -> None:
            seen.append(loop.time() - began)
            if len(seen) == 3:
                over.set_result(None)

        began = loop.time()
        SecondLook(look).after_a_word()
        await asyncio.wait_for(over, DEADLINE_SECONDS)
        return seen

    for _ in range(5):
        _, again, last = asyncio.run(looks())
        assert again >= LOOK_SECONDS
        assert last > QUIET_SECONDS, "also of a job whose commit takes a while"


def test_a_few_sleepers_hear_of_every_job(stage: Stage, ear: Ear) -> None:
    many_asleep(stage, workers=4)
    for _ in range(3):
        stage.enqueue()
    assert ear.heard() == ["default"] * 3
    assert stage.value("select count(*) from {schema}.announcement") == 0


def test_an_announcement_that_is_not_committed_keeps_nobody_quiet_and_waiting(
    stage: Stage, ear: Ear
) -> None:
    stage.enqueue()  # makes the queue: the first job of one is waited for
    many_asleep(stage)
    open_one = stage.connect(isolation="read committed")
    stage.verbs.enqueue("work").run(open_one)
    stage.enqueue()
    assert ear.heard() == ["default"]
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
    assert ear.heard() == ["default"] * 2
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
    assert ear.heard() == ["default"]
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
    assert ear.heard() == ["default"]
    stage.verbs.enqueue("work", queue="mail").run(conn)
    many_asleep(stage, "mail")
    stage.verbs.enqueue("work", queue="mail").run(conn)  # of which it knows nothing
    assert ear.heard() == ["mail"]


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
    assert ear.heard() == ["default"]
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
    assert ear.heard() == ["default"]


def test_an_installation_may_have_the_name_of_a_module(stage: Stage) -> None:
    """A loaded module keeps the settings that begin with its name to itself."""
    with Stage(stage.url, "plpgsql") as named:
        migrate(named.conn, "plpgsql")
        named.enqueue()
        many_asleep(named)
        named.enqueue()
        assert known(named.conn, named) == "default"


def test_a_session_that_has_floats_rounded_knows_the_right_moment(stage: Stage) -> None:
    many_asleep(stage)
    stage.execute("set extra_float_digits = -9")
    stage.enqueue()
    name = f"faultline.{stage.schema}_quiet_until"
    ahead = "select current_setting(%s)::numeric - extract(epoch from clock_timestamp())"
    assert abs(stage.value(ahead, name)) < 30
    assert stage.value("select current_setting(%s)", name).partition(".")[2] != ""


@pytest.mark.parametrize("how", ["it has written before", "it began long ago"])
def test_a_transaction_that_goes_on_announces_whatever_was_announced_before(
    stage: Stage, ear: Ear, how: str
) -> None:
    """Its job may be there long after the sleepers have looked a second time."""
    stage.execute("create table public.orders (n integer)")
    many_asleep(stage)
    stage.enqueue()
    prolong_the_quiet(stage)
    assert ear.heard() == ["default"]
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
    assert ear.heard() == ["default"]


def test_who_goes_to_sleep_forgets_announcements_of_long_ago(stage: Stage) -> None:
    many_asleep(stage)
    stage.enqueue()
    stage.execute("update {schema}.announcement set quiet_until = now() - interval '2 minutes'")
    stage.execute("reset faultline.{schema}_quiet_queue")
    stage.enqueue()
    asleep(stage)
    assert stage.value("select count(*) from {schema}.announcement") == 1


def test_announcements_that_stand_are_not_repeated_in_the_table(stage: Stage, ear: Ear) -> None:
    many_asleep(stage)
    stage.enqueue()
    prolong_the_quiet(stage)
    for _ in range(3):
        stage.verbs.enqueue_many("work", [uuid4()], [{}]).run(stage.conn)
    assert ear.heard() == ["default"] * 4
    assert stage.value("select count(*) from {schema}.announcement") == 1


def test_enqueues_under_serializable_do_not_abort_each_other(stage: Stage, ear: Ear) -> None:
    stage.enqueue()  # makes the queue
    many_asleep(stage)
    one, other = (stage.connect(isolation="serializable") for _ in range(2))
    for conn in (one, other):
        stage.verbs.enqueue("work").run(conn)
    one.commit()
    other.commit()
    assert ear.heard() == ["default"] * 2
