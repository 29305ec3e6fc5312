"""How much work there is, for whoever decides how many workers there should be."""

from __future__ import annotations

import pytest

from faultline.call import translated_errors
from faultline.errors import InvalidArgument
from tests.stage import Stage

pytestmark = pytest.mark.both_servers


def counted(stage: Stage, *queues: str) -> tuple[int, int]:
    found = stage.reading.backlog(stage.conn, queues or None)
    return found["jobs"], found["running"]


def test_it_is_what_could_be_claimed_and_what_runs_of_these_queues(stage: Stage) -> None:
    assert counted(stage) == (0, 0)
    stage.running(queue="mail")
    for priority in (0, 0, 5):
        stage.enqueue(queue="mail", priority=priority)
    stage.enqueue(queue="billing")
    stage.enqueue(queue="billing", delay_seconds=60)
    assert counted(stage) == (4, 1)
    assert counted(stage, "mail") == (3, 1)
    assert counted(stage, "billing", "unheard of") == (1, 0)
    assert counted(stage, "unheard of") == (0, 0)


def test_a_paused_queue_needs_no_workers(stage: Stage) -> None:
    stage.running(queue="mail")
    stage.enqueue(queue="mail")
    stage.verbs.pause("mail", True).run(stage.conn)
    assert counted(stage) == (0, 1), "what runs goes on, and its worker with it"
    assert stage.reading.backlog(stage.conn)["oldest_seconds"] == 0


def test_what_is_due_counts_though_nobody_is_left_to_promote_it(stage: Stage) -> None:
    stage.enqueue(queue="mail", delay_seconds=3600)
    stage.execute("update {schema}.scheduled set run_at = clock_timestamp() - interval '1 minute'")
    assert counted(stage, "mail") == (1, 0)
    assert counted(stage, "billing") == (0, 0)
    assert stage.reading.backlog(stage.conn, ["mail"])["oldest_seconds"] >= 60


def test_the_oldest_is_that_of_the_queues_asked_for(stage: Stage) -> None:
    stage.enqueue(queue="mail")
    old = stage.enqueue(queue="billing")
    stage.execute(
        "update {schema}.job set created_at = created_at - interval '1 hour' where id = %s", old
    )
    assert stage.reading.backlog(stage.conn)["oldest_seconds"] >= 3600
    assert stage.reading.backlog(stage.conn, ["mail"])["oldest_seconds"] < 3600


def test_it_counts_so_far_and_no_further(stage: Stage) -> None:
    for _ in range(3):
        stage.enqueue(queue="mail")
        stage.enqueue(queue="mail", priority=1)
    asked = "select jobs from {schema}.backlog(null, %s)"
    assert [stage.value(asked, most) for most in (1, 5, 6, 7)] == [1, 5, 6, 6]


def test_waiting_and_due_jobs_are_counted_so_far_together(stage: Stage) -> None:
    for _ in range(4):
        stage.enqueue()
        stage.enqueue(delay_seconds=3600)
    stage.execute("update {schema}.scheduled set run_at = clock_timestamp()")
    assert stage.value("select jobs from {schema}.backlog(null, 5)") == 5


def test_another_queue_that_is_full_hides_nothing(stage: Stage) -> None:
    for queue in ("other", "other", "other", "mail"):
        stage.running(queue=queue)
        stage.enqueue(queue=queue, delay_seconds=3600)
        stage.execute("update {schema}.scheduled set run_at = clock_timestamp()")
    asked = "select jobs, running from {schema}.backlog(array['mail'], 2)"
    assert stage.execute(asked) == [(1, 1)]


@pytest.mark.parametrize("most", [0, -1, None])
def test_a_bound_that_is_none_is_refused_in_words(stage: Stage, most: int | None) -> None:
    asked = "select * from {schema}.backlog(at_most => %s)"
    with pytest.raises(InvalidArgument, match="at_most"), translated_errors(stage.schema):
        stage.execute(asked, most)
