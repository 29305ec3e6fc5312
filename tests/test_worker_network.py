"""Answers that are lost after the commit, and connections that go silent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from faultline.drills.proxy import Fate, Moment, Proxy
from tests.stage import Stage, until
from tests.workers import Ground, Process


@pytest.fixture
def ground(stage: Stage) -> Ground:
    return Ground(stage)


@pytest.fixture
def proxy(stage: Stage) -> Iterator[Proxy]:
    with stage.login("worker", "producer") as url, Proxy(url) as proxy:
        yield proxy


def test_a_success_whose_answer_was_lost_is_looked_up_and_not_sent_again(
    ground: Ground, proxy: Proxy
) -> None:
    stage = ground.stage
    with Process(proxy.url, "--concurrency", "1") as worker:
        worker.ready()
        job_id = stage.enqueue("held_long")
        ground.until_in(job_id, 1)
        proxy.lose_the_answer_to("swap", "complete")
        ground.go(job_id, 1)
        assert proxy.lost.wait(60)
        worker.until("database_lost")
        worker.until("job_completed", job_id=job_id, token=1)
        following = stage.enqueue("add", {"a": 1, "b": 2})
        ground.until_state(following, "succeeded")
    assert stage.outcomes(job_id) == [(1, "succeeded")]
    assert stage.refusals(job_id) == [], "no false evidence"
    assert stage.violations() == []


def test_a_failure_whose_answer_was_lost_is_counted_once(ground: Ground, proxy: Proxy) -> None:
    stage = ground.stage
    with Process(proxy.url) as worker:
        worker.ready()
        proxy.lose_the_answer_to("fail")
        job_id = stage.enqueue("fails", {"message": "no"}, max_attempts=2, backoff_seconds=60)
        assert proxy.lost.wait(60)
        worker.until("job_failed", job_id=job_id)
    assert stage.outcomes(job_id) == [(1, "failed")]
    assert (stage.job(job_id)["state"], stage.job(job_id)["attempts"]) == ("scheduled", 1)
    assert stage.refusals(job_id) == []


def test_jobs_leased_by_a_claim_whose_answer_was_lost_are_handed_back_at_once(
    ground: Ground, proxy: Proxy
) -> None:
    """Long before their leases, of 30 s, expire; and nobody counts a crash."""
    stage = ground.stage
    with Process(proxy.url) as worker:
        worker.ready()
        proxy.lose_the_answer_with("31337")
        job_id = stage.enqueue("add", {"a": 31337, "b": 0})
        assert proxy.lost.wait(60)
        ground.until_state(job_id, "succeeded")
    assert stage.outcomes(job_id) == [(1, "released"), (2, "succeeded")]
    assert stage.job(job_id)["crashes"] == 0
    assert stage.violations() == []


def test_a_worker_that_drains_hands_back_what_a_lost_claim_has_leased(
    ground: Ground, proxy: Proxy
) -> None:
    stage = ground.stage
    other = stage.connect()

    def hold(moment: Moment) -> Fate | None:
        """The claim that gets the job: one of before, by which it looked again, got nothing."""
        if "claim" not in moment.text or proxy.held:
            return None
        ready = other.execute(f"select from {stage.schema}.ready")
        return Fate.HOLD_ANSWER if ready.rowcount else None

    with Process(proxy.url) as worker:
        worker.ready()
        proxy.when(hold)
        job_id = stage.enqueue("add", {"a": 1, "b": 0})
        until(lambda: proxy.held, "the answer to a claim is held")
        worker.terminate()
        worker.until("worker_draining")
        for held in proxy.held:
            held.end(cut=True)
        assert worker.ended() == 0
    assert stage.state(job_id) == "queued"
    assert stage.violations() == []


def test_a_connection_that_goes_silent_does_not_cost_a_running_job_its_lease(
    ground: Ground, proxy: Proxy
) -> None:
    """The renewal is cut off after a quarter of the lease, and sent again on a new connection."""
    stage = ground.stage
    with Process(proxy.url) as worker:
        job_id = stage.enqueue("held", lease_seconds=9)
        ground.until_in(job_id, 1)
        worker.ready()
        expiry = "select expires_at from {schema}.lease where job_id = %s"
        claimed = stage.value(expiry, job_id)
        until(lambda: stage.value(expiry, job_id) > claimed, "its connections are all in use")
        proxy.go_silent()
        before = stage.value(expiry, job_id)
        until(lambda: stage.value(expiry, job_id) > before, "the lease is renewed again")
        mark = stage.value(expiry, job_id)
        until(lambda: stage.value(expiry, job_id) > mark, "and again")
        ground.stage.execute("insert into go values (%s, 1)", job_id)
        worker.kill()  # its handler's own connection is silent too
    assert stage.outcomes(job_id) == []
