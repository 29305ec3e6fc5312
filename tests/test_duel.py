"""The duel: real workers, one is stopped inside its handler, another takes over, the first wakes.

Worker A is `faultline worker`, stopped with SIGSTOP while its handler is inside; B takes the job
over when the lease has expired, and finishes. Then A goes on where it was.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stage import Stage, until
from tests.workers import Ground, Process

KINDS = ["duel_async", "duel_sync", "duel_blocking", "duel_raises", "duel_returns"]


@pytest.fixture
def ground(stage: Stage) -> Ground:
    return Ground(stage)


@pytest.fixture
def url(stage: Stage) -> Iterator[str]:
    """The workers' own log-in: a role that can only EXECUTE."""
    with stage.login("worker", "producer") as url:
        yield url


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_stopped_inside_its_handler_cannot_end_the_job_that_another_finished(
    kind: str, ground: Ground, url: str
) -> None:
    stage = ground.stage
    job_id = stage.enqueue(kind, lease_seconds=4)
    ground.go(job_id, 2)  # B will not be held
    with Process(url) as a:
        ground.until_in(job_id, 1)
        a.stall()
        ground.go(job_id, 1)  # A goes on as soon as it can
        with Process(url) as b:
            ground.until_state(job_id, "succeeded")
            b.until("job_completed", job_id=job_id, token=2)
            b.until("lease_reclaimed", job_id=job_id, token=1)
            a.wake()
            until(lambda: stage.refusals(job_id), "the refusal is kept as evidence")
            b.terminate()
            assert b.ended() == 0
        # A lives on, and takes the next job.
        following = stage.enqueue("add", {"a": 1, "b": 2})
        a.until("job_completed", job_id=following)
        told = ("lease_lost", "stale_write_blocked")
        until(lambda: any(a.told(event, job_id=job_id) for event in told), "A knows")
        assert not a.told("job_completed", job_id=job_id)
        a.terminate()
        assert a.ended() == 0
    assert stage.outcomes(job_id) == [(1, "expired"), (2, "succeeded")]
    assert stage.job(job_id)["result"] == "token 2"
    assert ground.effects(job_id) == [2]
    assert {(token, current) for _, token, current, _ in stage.refusals(job_id)} == {(1, 2)}
    assert stage.violations() == []


def test_a_stalled_handler_that_writes_late_is_refused_and_the_refusal_recorded(
    ground: Ground, url: str
) -> None:
    """The sync handler does not look at ctx.cancelled: it is the database that stops its INSERT."""
    stage = ground.stage
    job_id = stage.enqueue("duel_sync", lease_seconds=4)
    ground.go(job_id, 2)
    with Process(url) as a:
        ground.until_in(job_id, 1)
        a.stall()
        with Process(url):
            ground.until_state(job_id, "succeeded")
        a.wake()
        a.until("lease_lost", job_id=job_id)
        ground.go(job_id, 1)  # told already, and writes all the same
        until(
            lambda: "assert_fence" in {operation for operation, *_ in stage.refusals(job_id)},
            "the handler's own write is in the evidence",
        )
        a.until("stale_write_blocked", job_id=job_id, stale_token=1, current_token=2)
    assert ground.effects(job_id) == [2]
    assert stage.violations() == []
