"""How a worker ends: SIGTERM drains, a second one hands back, a limit is reached, a parent dies."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from faultline.worker.worker import ENDING_SECONDS
from tests.stage import Stage, until
from tests.workers import Ground, Process


@pytest.fixture
def ground(stage: Stage) -> Ground:
    return Ground(stage)


@pytest.fixture
def url(stage: Stage) -> Iterator[str]:
    with stage.login("worker", "producer") as url:
        yield url


def running(ground: Ground, task: str, **options: object) -> UUID:
    job_id = ground.stage.enqueue(task, **options)
    ground.until_in(job_id, 1)
    return job_id


def test_sigterm_lets_running_jobs_finish_and_claims_no_more(ground: Ground, url: str) -> None:
    with Process(url) as worker:
        jobs = [running(ground, task) for task in ("held_long", "held_sync")]
        worker.terminate()
        worker.until("worker_draining", running=2)
        waiting = ground.stage.enqueue("add", {"a": 1, "b": 2})
        for job_id in jobs:
            ground.go(job_id, 1)
        assert worker.ended() == 0
        assert worker.told("worker_exit", reason="drained")
    assert [ground.stage.state(job_id) for job_id in jobs] == ["succeeded"] * 2
    assert ground.stage.state(waiting) == "queued"
    assert ground.stage.value("select count(*) from {schema}.workers") == 0, "it has left"
    assert ground.stage.violations() == []


def test_a_second_sigterm_hands_running_jobs_back_at_once(ground: Ground, url: str) -> None:
    with Process(url) as worker:
        jobs = [running(ground, task) for task in ("held_long", "held_sync")]
        worker.terminate()
        worker.until("worker_draining")
        worker.terminate()
        assert worker.ended() == 0
    for job_id in jobs:
        assert ground.stage.outcomes(job_id) == [(1, "released")]
        job = ground.stage.job(job_id)
        assert (job["state"], job["attempts"], job["crashes"]) == ("queued", 0, 0)
    assert ground.stage.violations() == []


def test_when_the_grace_is_over_running_jobs_are_handed_back(ground: Ground, url: str) -> None:
    with Process(url, "--grace-seconds", "0.2") as worker:
        job_id = running(ground, "held_long")
        worker.terminate()
        assert worker.ended() == 0
    assert ground.stage.outcomes(job_id) == [(1, "released")]


def test_jobs_are_handed_back_though_a_handler_blocked_the_loop_for_longer_than_there_is_time(
    ground: Ground, url: str
) -> None:
    """It is not the database that did not answer. Two endings of two kinds are two calls."""
    jobs = [
        ground.stage.enqueue("blocks_when_told", {"snooze": snooze}) for snooze in (False, True)
    ]
    with Process(url) as worker:
        for job_id in jobs:
            worker.until("execution_started", job_id=job_id)
        worker.terminate()
        worker.until("worker_draining")
        worker.terminate()
        until(lambda: any(map(ground.marks, jobs)), "it blocks")
        over_at = time.monotonic() + ENDING_SECONDS
        until(lambda: time.monotonic() > over_at, "its time is over")
        for job_id in jobs:
            ground.go(job_id, 1)
        assert worker.ended() == 0
    outcomes = [ground.stage.outcomes(job_id) for job_id in jobs]
    assert outcomes == [[(1, "released")], [(1, "snoozed")]]


def test_a_worker_with_a_limit_ends_after_so_many_jobs(ground: Ground, url: str) -> None:
    jobs = [ground.stage.enqueue("add", {"a": n, "b": 0}) for n in range(5)]
    with Process(url, "--max-jobs", "3") as worker:
        assert worker.ended() == 0
        assert worker.told("worker_exit", reason="max_jobs")
    states = [ground.stage.state(job_id) for job_id in jobs]
    assert states == ["succeeded"] * 3 + ["queued"] * 2


def test_a_process_of_one_job_that_blocks_is_waited_for_though_the_time_to_write_is_over(
    ground: Ground, url: str
) -> None:
    """Whoever kills what is left would cost the job its last chance; the database is well."""
    job_id, _ = ground.stage.running("X", task="blocks_when_told", max_crashes=2)
    ground.stage.expire(job_id)  # its first crash: it is run alone
    with Process(url) as worker:
        worker.until("execution_started", job_id=job_id)
        worker.terminate()
        worker.until("worker_draining")
        worker.terminate()
        until(lambda: ground.marks(job_id), "it blocks")
        over_at = time.monotonic() + ENDING_SECONDS
        until(lambda: time.monotonic() > over_at, "the time to write is over")
        assert worker.process.poll() is None
        ground.go(job_id, 2)
        assert worker.ended() == 0
    assert ground.stage.outcomes(job_id) == [(1, "expired"), (2, "released")]


def test_a_login_that_may_not_claim_is_told_once_and_by_nobody_else(stage: Stage) -> None:
    with stage.login("producer") as url:
        for processes in ("1", "2"):
            with Process(url, "--processes", processes) as worker:
                assert worker.ended() == 1
                [said] = worker.errors
                assert "GRANT faultline_worker" in said, "one sentence, no traceback"
                assert worker.events == []


# ── several processes ────────────────────────────────────────────────────────────────────────────


def children(worker: Process) -> set[int]:
    return {seen["pid"] for seen in worker.told("worker_started")}


def pid_of(ground: Ground, job_id: UUID, token: int) -> int:
    """The process in which this attempt runs."""

    def found() -> list[str]:
        return [note for at, note in ground.marks(job_id) if at == token and "pid" in note]

    return int(until(found, f"attempt {token} has begun")[0].removeprefix("pid "))


def test_a_dead_childs_jobs_are_taken_over_long_before_their_leases_expire(
    ground: Ground, url: str
) -> None:
    with Process(url, "--processes", "2", "--concurrency", "1") as parent:
        until(lambda: len(children(parent)) == 2, "both children are there")
        jobs = [ground.stage.enqueue("neighbour") for _ in range(2)]  # leases of 30 s
        for job_id in jobs:
            pid_of(ground, job_id, 1)
        os.kill(pid_of(ground, jobs[0], 1), signal.SIGKILL)
        pid_of(ground, jobs[0], 2)
        parent.until("process_died", status=-9, reclaimed=1)
        until(lambda: len(children(parent)) == 3, "a new child takes the dead one's place")
        for job_id in jobs:
            ground.stage.execute("insert into go values (%s, 0)", job_id)
            ground.until_state(job_id, "succeeded")
        [ended, _] = ground.stage.reading.attempts(ground.stage.conn, jobs[0])
        assert ended["outcome"] == "expired"
        assert (ended["at"] - ended["claimed_at"]).total_seconds() < 29, "the lease was 30 s"
        parent.terminate()
        assert parent.ended() == 0
    assert ground.stage.outcomes(jobs[1]) == [(1, "succeeded")], "its sister noticed nothing"
    assert ground.stage.violations() == []


def test_children_whose_parent_was_killed_drain_by_themselves(ground: Ground, url: str) -> None:
    with Process(url, "--processes", "2") as parent:
        until(lambda: len(children(parent)) == 2, "both children are there")
        pids = children(parent)
        parent.kill()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "they have ended")
    assert ground.stage.value("select count(*) from {schema}.workers") == 0


# ── poison ───────────────────────────────────────────────────────────────────────────────────────


def test_a_job_that_kills_its_process_is_quarantined_and_its_neighbours_are_not_punished(
    ground: Ground, url: str
) -> None:
    """They share their process with it, until one crash more would be too many: then each of them
    is run alone."""
    with Process(url, "--processes", "2", "--concurrency", "10") as parent:
        until(lambda: len(children(parent)) == 2, "both children are there")
        neighbours = [ground.stage.enqueue("neighbour", max_crashes=n) for n in (2, 2, 3, 3)]
        for job_id in neighbours:
            pid_of(ground, job_id, 1)
        poison = ground.stage.enqueue("kills_its_process")
        ground.until_state(poison, "quarantined")
        for job_id in neighbours:
            ground.stage.execute("insert into go values (%s, 0)", job_id)
            ground.until_state(job_id, "succeeded")
        parent.terminate()
        assert parent.ended() == 0
    outcomes = [outcome for _, outcome in ground.stage.outcomes(poison)]
    assert outcomes == ["expired"] * 3
    assert ground.stage.job(poison)["quarantine_reason"] == "crashed_too_often"
    pids = [note for _, note in ground.marks(poison)]
    assert len(set(pids)) == 3
    assert parent.told("job_isolated", job_id=poison, crashes=2)
    assert ground.stage.violations() == []


def test_a_job_that_runs_alone_outlives_the_worker_that_claimed_it(
    ground: Ground, url: str
) -> None:
    """Its worker dies of another job: the one that runs alone is neither lost nor punished."""
    job_id, _ = ground.stage.running("X", task="neighbour", max_crashes=2)
    ground.stage.expire(job_id)  # its first crash
    with Process(url) as worker:
        alone = pid_of(ground, job_id, 2)
        worker.until("job_isolated", job_id=job_id)
        worker.kill()
        [name] = {seen["worker"] for seen in worker.told("worker_started")}
        assert ground.stage.verbs.reclaim_dead(name).run(ground.stage.conn) == []
        ground.stage.execute("insert into go values (%s, 0)", job_id)
        ground.until_state(job_id, "succeeded")
        until(lambda: not Path(f"/proc/{alone}").exists(), "its process has ended")
    assert ground.stage.outcomes(job_id) == [(1, "expired"), (2, "succeeded")]
    assert ground.stage.violations() == []


def test_a_thread_that_a_handler_left_behind_does_not_keep_the_process(
    ground: Ground, url: str
) -> None:
    with Process(url) as worker:
        job_id = running(ground, "leaves_a_thread")
        worker.terminate()
        worker.until("worker_draining")
        worker.terminate()
        assert worker.ended() == 0
    assert ground.stage.outcomes(job_id) == [(1, "released")]


def test_a_child_that_ends_without_being_asked_is_buried_whatever_its_status(
    ground: Ground, url: str
) -> None:
    with Process(url, "--processes", "2", "--concurrency", "1") as parent:
        job_id = ground.stage.enqueue("exits_at_once", max_crashes=5)
        parent.until("process_died", status=0, reclaimed=1)
        until(lambda: len(ground.marks(job_id)) >= 2, "it is taken over at once")


def test_a_job_whose_process_cannot_start_is_put_off_and_not_spun_on(
    ground: Ground, url: str, tmp_path: Path
) -> None:
    """The app is gone when the child wants to import it, as in the middle of a deployment."""
    (tmp_path / "deployed.py").write_text("from tests.playground import app\n")
    job_id, _ = ground.stage.running("X", task="neighbour", max_crashes=2)
    with Process(url, app="deployed:app", FOLDER=str(tmp_path)) as worker:
        worker.ready()
        (tmp_path / "deployed.py").unlink()
        ground.stage.expire(job_id)
        until(lambda: (2, "snoozed") in ground.stage.outcomes(job_id), "it is put off")
        job = ground.stage.job(job_id)
        assert (job["crashes"], job["snoozes"]) == (1, 1)
        assert worker.process.poll() is None
