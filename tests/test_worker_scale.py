"""Many long jobs at once, odd clocks, and a pooler in between."""

from __future__ import annotations

import pytest

from faultline.ids import Ids
from tests.clocks import needs_a_wrong_clock, off_by
from tests.pooler import needs_pgbouncer, pgbouncer
from tests.stage import Stage, until
from tests.workers import Ground, Process


@pytest.fixture
def ground(stage: Stage) -> Ground:
    return Ground(stage)


def test_two_thousand_long_jobs_in_one_worker_all_keep_their_leases(ground: Ground) -> None:
    stage, count = ground.stage, 2000
    new_id = Ids()
    ids = [new_id() for _ in range(count)]
    stage.verbs.enqueue_many("rests", ids, [{}] * count, lease_seconds=12).run(stage.conn)
    with stage.login("worker") as url, Process(url, "--concurrency", str(count)) as worker:
        leased = "select count(*) from {schema}.lease where started"
        until(lambda: stage.value(leased) == count, "all of them run")
        renewed = (
            "select count(*) from {schema}.lease where expires_at > claimed_at + '24 s'::interval"
        )
        until(lambda: stage.value(renewed) == count, "each has outlived its first lease")
        stage.execute("insert into go values (null, 0)")
        done = "select count(*) from {schema}.ledger"
        until(lambda: stage.value(done) == count, "all of them end")
        assert not worker.told("lease_lost")
    tokens = "select count(*) from {schema}.attempt where fencing_token <> 1"
    assert stage.value(tokens) == 0
    assert stage.violations() == []


@needs_a_wrong_clock
@pytest.mark.parametrize("offset", ["+1h", "-1h"])
def test_a_worker_whose_clock_is_an_hour_off_works_like_any_other(
    ground: Ground, offset: str
) -> None:
    stage = ground.stage
    with (
        stage.login("worker", "producer") as url,
        Process(url, prefix=" ".join(off_by(offset))) as worker,
    ):
        job_id = stage.enqueue("held", lease_seconds=6)
        ground.until_in(job_id, 1)
        claimed = stage.value("select claimed_at from {schema}.lease where job_id = %s", job_id)
        renewed = "select expires_at > %s + '12 s'::interval from {schema}.lease where job_id = %s"
        until(lambda: stage.value(renewed, claimed, job_id), "it renews by the database's clock")
        difference = stage.value("select clock_difference_seconds from {schema}.workers")
        assert round(difference / 3600) == int(offset[:2]), "the difference is seen"
        ground.go(job_id, 1)
        ground.until_state(job_id, "succeeded")
        child = stage.enqueue("enqueues_another")  # ids made by the odd clock
        ground.until_state(child, "succeeded")
        other = stage.job(child)["result"]
        ground.until_state(other, "succeeded")
        assert not worker.told("lease_lost")
    assert stage.outcomes(job_id) == [(1, "succeeded")]
    assert stage.violations() == []


@needs_pgbouncer
@pytest.mark.parametrize("direct", [False, True], ids=["polling", "direct LISTEN URL"])
def test_a_worker_works_through_pgbouncer_in_transaction_mode(ground: Ground, direct: bool) -> None:
    stage = ground.stage
    with stage.login("worker", "producer") as url, pgbouncer(url) as pooled:
        variables = {"FAULTLINE_LISTEN_URL": url} if direct else {}
        with Process(pooled, "--concurrency", "5", **variables) as worker:
            worker.ready()
            jobs = [stage.enqueue("add", {"a": n, "b": 1}) for n in range(50)]
            slow = stage.enqueue("held", lease_seconds=6)
            ground.until_in(slow, 1)
            for job_id in jobs:
                ground.until_state(job_id, "succeeded")
            asleep = "select count(*) from {schema}.workers where asleep"
            until(lambda: stage.value(asleep) == 1, "it waits")
            late = stage.enqueue("add", {"a": 0, "b": 0})
            ground.until_state(late, "succeeded")
            ground.go(slow, 1)
            ground.until_state(slow, "succeeded")
            worker.terminate()
            assert worker.ended() == 0
        assert stage.outcomes(slow) == [(1, "succeeded")]
    assert stage.violations() == []
