"""Jobs of a task that a worker does not know: declined, and made due by a worker that knows it."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from faultline.errors import InvalidArgument
from faultline.protocol import MOST_RECOVERED
from tests.stage import Stage

pytestmark = pytest.mark.both_servers


def decline(stage: Stage, job_id: UUID, worker: str = "A") -> float:
    """The worker declines the job, which is due; seconds until it is due again."""
    stage.verbs.retry([job_id]).run(stage.conn)
    stage.claim(worker, 1000)
    token = stage.value("select fencing_token from {schema}.lease where job_id = %s", job_id)
    assert stage.verbs.decline([(job_id, token)]).run(stage.conn) == []
    return float(
        stage.value(
            "select extract(epoch from s.run_at - a.at) from {schema}.scheduled s "
            "join {schema}.attempt a on a.job_id = s.job_id and a.fencing_token = s.fencing_token "
            "where s.job_id = %s",
            job_id,
        )
    )


def test_pause_grows_to_an_hour(stage: Stage) -> None:
    job_id = stage.enqueue("unknown")
    pauses = [decline(stage, job_id) for _ in range(14)]
    assert pauses == [*(2.0**n for n in range(12)), 3600, 3600]
    assert stage.job(job_id)["attempts"] == 0


def test_pause_is_a_minute_where_a_living_worker_knows_the_task(stage: Stage) -> None:
    job_id = stage.enqueue("unknown")
    for _ in range(8):
        decline(stage, job_id)
    stage.verbs.know_tasks("B", [], ["unknown"]).run(stage.conn)
    assert decline(stage, job_id) == 60
    stage.execute("update {schema}.worker set seen_at = seen_at - interval '2 minutes'")
    assert decline(stage, job_id) == 512


def test_attempt_keeps_the_reason(stage: Stage) -> None:
    job_id = stage.enqueue("unknown")
    decline(stage, job_id)
    ((outcome, error),) = stage.execute("select outcome, error from {schema}.attempts")
    assert outcome == "snoozed"
    assert error == {
        "type": "UnknownTask",
        "message": "worker A has no handler for this task",
    }


def test_worker_that_knows_the_task_makes_its_jobs_due_in_its_queues(stage: Stage) -> None:
    mine, elsewhere, other = (
        stage.enqueue("known"),
        stage.enqueue("known", queue="elsewhere"),
        stage.enqueue("unknown"),
    )
    later = stage.enqueue("known", delay_seconds=3600)
    for job_id in (mine, elsewhere, other):
        decline(stage, job_id)
    assert stage.verbs.know_tasks("B", ["default"], ["known", "more"]).run(stage.conn) == 1
    assert stage.state(mine) == "queued"
    assert {stage.state(job_id) for job_id in (elsewhere, other, later)} == {"scheduled"}
    assert stage.value("select tasks from {schema}.worker where worker = 'B'") == ["known", "more"]
    assert stage.verbs.know_tasks("B", ["default"], ["known"]).run(stage.conn) == 0
    assert stage.violations() == []


def test_call_makes_at_most_1000_jobs_due(stage: Stage) -> None:
    ids = [uuid4() for _ in range(MOST_RECOVERED + 1)]
    stage.verbs.enqueue_many("known", ids, [{} for _ in ids]).run(stage.conn)
    leases = stage.claim("A", MOST_RECOVERED + 1)
    stage.verbs.decline(leases).run(stage.conn)
    call = stage.verbs.know_tasks("B", ["default"], ["known"])
    assert [call.run(stage.conn) for _ in range(3)] == [MOST_RECOVERED, 1, 0]


def test_declined_job_that_is_retried_or_cancelled_awaits_nothing(stage: Stage) -> None:
    retried, cancelled = stage.enqueue("known"), stage.enqueue("known")
    for job_id in (retried, cancelled):
        decline(stage, job_id)
    stage.verbs.retry([retried]).run(stage.conn)
    stage.verbs.cancel([cancelled]).run(stage.conn)
    assert stage.verbs.know_tasks("B", ["default"], ["known"]).run(stage.conn) == 0
    assert stage.violations() == []


def test_row_that_is_locked_is_left_to_its_holder(stage: Stage) -> None:
    held, free = stage.enqueue("known"), stage.enqueue("known")
    for job_id in (held, free):
        decline(stage, job_id)
    holder = stage.connect(isolation="read committed")
    holder.execute("select from faultline.scheduled where job_id = %s for update", (held,))
    assert stage.verbs.know_tasks("B", ["default"], ["known"]).run(stage.conn) == 1
    assert stage.state(free) == "queued"


def test_bad_arguments_are_refused(stage: Stage) -> None:
    with pytest.raises(InvalidArgument, match="1 to 255"):
        stage.verbs.know_tasks("", [], []).run(stage.conn)
    with pytest.raises(InvalidArgument, match="none of them NULL"):
        stage.verbs.know_tasks("B", [], [None]).run(stage.conn)
