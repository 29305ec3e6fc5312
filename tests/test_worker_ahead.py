"""A worker reads ahead where jobs are short, and gives back what it cannot get to.

Method: real workers with one or two places. Their jobs are short until one is held; what was read
ahead behind it is seen in `lease`, and given back.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from faultline.ids import Ids
from faultline.worker.ahead import MOST, Ahead, patience
from tests.stage import Stage, until
from tests.workers import Ground, Process

LEASED = "select count(*) from {schema}.lease"
DONE = "select count(*) from {schema}.ledger"


@pytest.fixture
def ground(stage: Stage) -> Ground:
    return Ground(stage)


def many(stage: Stage, task: str, count: int, payload: dict[str, int]) -> list[UUID]:
    new_id = Ids()
    ids = [new_id() for _ in range(count)]
    stage.verbs.enqueue_many(task, ids, [payload] * count, lease_seconds=60).run(stage.conn)
    return ids


def warm_up(stage: Stage) -> None:
    """Short jobs, from which the worker learns that they are."""
    before = stage.value(DONE)
    many(stage, "add", 100, {"a": 1, "b": 2})
    until(lambda: stage.value(DONE) == before + 100, "the short ones are done")


def test_what_waits_behind_a_long_job_is_given_back_and_done_elsewhere(ground: Ground) -> None:
    stage = ground.stage
    with stage.login("worker", "producer") as url, Process(url, "--concurrency", "1") as worker:
        warm_up(stage)
        with stage.conn.transaction():
            held = stage.enqueue("held", lease_seconds=60)
            many(stage, "add", 50, {"a": 1, "b": 2})
        ground.until_in(held, 1)
        until(lambda: worker.told("job_released", reason="no place"), "some had been read ahead")
        until(lambda: stage.value(LEASED) == 1, "all but the long one are given back")
        with Process(url):
            until(lambda: stage.value(DONE) == 150, "another worker does them")
        ground.go(held, 1)
        ground.until_state(held, "succeeded")
    assert stage.value("select max(crashes) from {schema}.jobs") == 0
    assert stage.violations() == []


def test_of_jobs_that_have_crashed_no_more_are_taken_than_can_begin(ground: Ground) -> None:
    stage = ground.stage
    with stage.login("worker", "producer") as url, Process(url, "--concurrency", "2") as worker:
        warm_up(stage)
        with stage.conn.transaction():  # so that nobody else sees them before
            lost = many(stage, "held", 20, {})
            assert len(stage.claim("dead", 20)) == 20
        stage.expire(*lost)
        stage.verbs.reclaim().run(stage.conn)
        until(lambda: stage.value("select count(*) from mark where note = 'in'") == 2, "two run")
        until(lambda: stage.value(LEASED) == 2, "and no more are leased")
        stage.execute("insert into go select id, generate_series(1, 20) from {schema}.jobs")
        until(lambda: stage.value(DONE) == 120, "all of them end")
        assert not worker.told("lease_lost")
    assert stage.violations() == []


def test_the_shorter_the_jobs_the_further_ahead() -> None:
    ahead = Ahead(20)
    assert ahead.jobs == 0, "nothing is known yet"
    for seconds, jobs in ((1.0, 0), (0.1, 0), (0.01, 100), (0.000_01, MOST)):
        fresh = Ahead(20)
        fresh.took("a task", seconds)
        assert fresh.jobs == jobs
        assert fresh.is_short("a task") == (jobs == MOST)
    busy = Ahead(100)
    busy.took("a task", 0.002, in_turn=True)
    assert busy.jobs == 25, "one after the other, however many places there are"
    alone = Ahead(1)
    alone.took("a task", 0.002)
    assert alone.is_short("a task"), "with one place nothing is lost by sharing it"
    assert patience(60) == 1.0
    assert patience(2) == 0.5


def test_few_are_claimed_when_most_are_used_up_and_many_earlier() -> None:
    """A claim of three costs as much as one of thirty; one of hundreds is made while there are
    enough left for the time that it takes."""
    alone = Ahead(1)
    alone.took("charge", 0.001)
    assert alone.worth_a_claim == pytest.approx(alone.jobs * 2 / 3)
    many = Ahead(20)
    many.took("noop", 0.00001, in_turn=True)
    assert many.worth_a_claim == pytest.approx(MOST / 3)
