"""A process that a handler forks is no second worker, and has none of the worker's connections."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.stage import Stage, until
from tests.workers import Ground, Process

APP = "tests.forking:app"
NEIGHBOURS = 20


@pytest.fixture
def ground(stage: Stage) -> Ground:
    return Ground(stage)


def result(stage: Stage, job_id: UUID) -> object:
    """Of the job, once it has succeeded."""
    until(lambda: stage.state(job_id) == "succeeded", "the job has succeeded")
    return stage.job(job_id)["result"]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("task", ["child", "achild"])
def test_a_child_of_multiprocessing_has_no_socket_of_the_worker_and_ends_well(
    ground: Ground, task: str, method: str
) -> None:
    job_id = ground.stage.enqueue(task, {"method": method})
    with Process(ground.stage.url, app=APP):
        assert result(ground.stage, job_id) == [0, 0]


@pytest.mark.parametrize(("task", "status"), [("terminated", -15), ("handled", 7)])
def test_a_signal_for_a_child_is_not_its_workers(ground: Ground, task: str, status: int) -> None:
    job_id = ground.stage.enqueue(task, {})
    with Process(ground.stage.url, app=APP) as worker:
        assert result(ground.stage, job_id) == status
        later = ground.stage.enqueue("neighbour", {"number": 1})
        assert result(ground.stage, later) == 1
        assert worker.told("worker_draining") == []


@pytest.mark.parametrize(
    ("task", "kind"), [("returns", "returns"), ("areturns", "returns"), ("areturns", "waits")]
)
def test_a_child_that_comes_back_ends_and_runs_no_job(ground: Ground, task: str, kind: str) -> None:
    stage = ground.stage
    forking = [stage.enqueue(task, {"kind": kind}) for _ in range(3)]
    others = [stage.enqueue("neighbour", {"number": n}) for n in range(NEIGHBOURS)]
    with Process(ground.stage.url, app=APP) as worker:
        assert [result(stage, job_id) for job_id in forking] == [1] * 3
        assert [result(stage, job_id) for job_id in others] == list(range(NEIGHBOURS))
        assert {stage.job(job_id)["fencing_token"] for job_id in [*forking, *others]} == {1}
        assert stage.value("select count(*) from effect") == NEIGHBOURS + 3
        assert stage.value("select count(*) from {schema}.refusal") == 0
        worker.terminate()
        assert worker.ended() == 0
        assert any("a process that a handler forked came back" in line for line in worker.errors)
