"""A job that crashes again waits before it is due again, so that it cannot keep workers busy."""

from __future__ import annotations

from uuid import UUID, uuid4

import psycopg
import pytest

from faultline.errors import InvalidArgument
from tests.stage import Stage

pytestmark = pytest.mark.both_servers


def crash(stage: Stage, job_id: UUID) -> str:
    """A worker claims the job, which is due, and dies with it; where the job then stands."""
    stage.execute("update {schema}.scheduled set run_at = now() where job_id = %s", job_id)
    stage.verbs.promote().run(stage.conn)
    assert [lease.job_id for lease in stage.claim()] == [job_id]
    stage.expire(job_id)
    (reclaimed,) = stage.verbs.reclaim().run(stage.conn)
    return reclaimed.state


def pause(stage: Stage, job_id: UUID) -> float:
    """Seconds from the last crash to when the job is due."""
    return float(
        stage.value(
            "select extract(epoch from s.run_at - a.at) from {schema}.scheduled s "
            "join {schema}.attempt a on a.job_id = s.job_id and a.fencing_token = s.fencing_token "
            "where s.job_id = %s",
            job_id,
        )
    )


def test_pause_grows_from_the_second_crash_up_to_five_minutes(stage: Stage) -> None:
    job_id = stage.enqueue(max_crashes=100)
    assert crash(stage, job_id) == "queued"
    pauses = []
    for _ in range(11):
        assert crash(stage, job_id) == "scheduled"
        pauses.append(pause(stage, job_id))
    shortest = [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    for least, found in zip(shortest, pauses, strict=True):
        assert least <= found <= min(300, 1.25 * least)
    assert stage.job(job_id)["state"] == "scheduled"
    assert stage.violations() == []


def test_jobs_that_crash_together_come_back_one_after_the_other(stage: Stage) -> None:
    for _ in range(20):
        stage.enqueue(max_crashes=100)
    for _ in range(2):
        stage.expire(*(lease.job_id for lease in stage.claim(max_jobs=20)))
        stage.verbs.reclaim().run(stage.conn)
    assert stage.value("select count(distinct run_at) from {schema}.scheduled") > 1


def test_lease_lost_before_the_start_is_no_crash_and_needs_no_pause(stage: Stage) -> None:
    job_id = stage.enqueue(max_crashes=100)
    for _ in range(3):
        crash(stage, job_id)
    stage.execute("update {schema}.scheduled set run_at = now()")
    stage.verbs.promote().run(stage.conn)
    (lease,) = stage.claim(started=False)
    stage.expire(lease.job_id)
    (reclaimed,) = stage.verbs.reclaim().run(stage.conn)
    assert (reclaimed.state, reclaimed.crashes) == ("queued", 3)


def test_job_asked_to_stop_ends_instead_of_pausing(stage: Stage) -> None:
    job_id = stage.enqueue(max_crashes=100)
    crash(stage, job_id)
    stage.claim()
    stage.verbs.cancel([job_id], "enough").run(stage.conn)
    stage.expire(job_id)
    (reclaimed,) = stage.verbs.reclaim().run(stage.conn)
    assert reclaimed.state == stage.state(job_id) == "cancelled"


def refused_on_the_short_way(stage: Stage, option: str, value: float) -> bool:
    """Whether enqueue refuses it of a job with an id, which takes the short way."""
    with pytest.raises(psycopg.Error) as raised:
        stage.execute(
            "select {schema}.enqueue('work', id => {schema}.new_id(), " + option + " => %s)", value
        )
    return raised.value.sqlstate == "LF003"


@pytest.mark.parametrize(
    ("option", "most"), [("max_crashes", 100), ("max_attempts", 1000)], ids=lambda value: str(value)
)
def test_options_have_a_cap(stage: Stage, option: str, most: int) -> None:
    stage.enqueue(**{option: most})
    with pytest.raises(InvalidArgument, match=option):
        stage.enqueue(**{option: most + 1})
    assert refused_on_the_short_way(stage, option, most + 1)
    with pytest.raises(InvalidArgument, match=option):
        stage.verbs.enqueue_many("work", [uuid4()], [1], **{option: most + 1}).run(stage.conn)


def test_lease_has_a_floor_of_one_second_unless_the_setting_is_lower(stage: Stage) -> None:
    stage.execute("update {schema}.setting set lease_seconds_floor = 1")
    stage.enqueue(lease_seconds=1)
    with pytest.raises(InvalidArgument, match=r"lease_seconds is 0.999, it must be at least 1"):
        stage.enqueue(lease_seconds=0.999)
    assert refused_on_the_short_way(stage, "lease_seconds", 0.999)
    stage.execute("update {schema}.setting set lease_seconds_floor = 0.5")
    stage.enqueue(lease_seconds=0.5)


@pytest.mark.parametrize("verb", ["claim", "claim_one"])
def test_stored_max_crashes_above_the_cap_counts_as_the_cap(stage: Stage, verb: str) -> None:
    job_id = stage.enqueue(max_crashes=100)
    stage.execute("update {schema}.job set max_crashes = 2000000000 where id = %s", job_id)
    stage.execute("update {schema}.ready set crashes = 99 where job_id = %s", job_id)
    (lease,) = stage.claim(max_jobs=2 if verb == "claim" else 1)
    assert lease.last_chance
    stage.expire(job_id)
    (reclaimed,) = stage.verbs.reclaim().run(stage.conn)
    assert reclaimed.state == "quarantined"


def test_stored_max_attempts_above_the_cap_counts_as_the_cap(stage: Stage) -> None:
    job_id = stage.enqueue(max_attempts=1000)
    stage.execute("update {schema}.job set max_attempts = 2000000000 where id = %s", job_id)
    stage.execute("update {schema}.ready set attempts = 999 where job_id = %s", job_id)
    (lease,) = stage.claim()
    stage.verbs.fail([(lease.job_id, lease.token)]).run(stage.conn)
    assert stage.state(job_id) == "failed"


def test_long_reason_of_a_cancel_stops_no_recovery(stage: Stage) -> None:
    """`jsonb` cannot hold a string of 256 MB: its ending could never be written."""
    asked, neighbour = stage.enqueue(), stage.enqueue()
    leases = stage.claim(max_jobs=2)
    stage.execute("select {schema}.cancel(array[%s]::uuid[], repeat('x', 300000000))", asked)
    assert stage.value("select length(reason) from {schema}.cancel_request") == 1000
    # One that was written before there was a limit.
    stage.execute("update {schema}.cancel_request set reason = repeat('x', 300000000)")
    renewed = {row.job_id: row for row in stage.verbs.renew(leases).run(stage.conn)}
    assert renewed[asked].cancel_reason == "x" * 1000
    stage.expire(asked, neighbour)
    states = {row.job_id: row.state for row in stage.verbs.reclaim().run(stage.conn)}
    assert states == {asked: "cancelled", neighbour: "queued"}
    assert stage.violations() == []
