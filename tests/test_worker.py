"""A real worker and how jobs end in it: the handler returns, raises, is stopped, never returns."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest

from faultline.protocol import MOST_RECOVERED
from tests.stage import Stage, until
from tests.workers import Ground, Process


@pytest.fixture
def ground(stage: Stage) -> Ground:
    return Ground(stage)


@pytest.fixture
def worker(ground: Ground) -> Iterator[Process]:
    """A worker with a log-in that can only EXECUTE."""
    with ground.stage.login("worker", "producer") as url, Process(url) as worker:
        yield worker.ready()
        assert worker.process.poll() is None, f"the worker lives: {worker.errors}"
        assert ground.stage.violations() == []


def error_of(ground: Ground, job_id: UUID) -> dict[str, str]:
    error = ground.stage.job(job_id)["error"]
    assert isinstance(error, dict)
    return error


@pytest.mark.parametrize("task", ["add", "add_sync"])
def test_the_result_of_a_handler_is_kept(ground: Ground, worker: Process, task: str) -> None:
    job_id = ground.stage.enqueue(task, {"a": 1, "b": 2})
    ground.until_state(job_id, "succeeded")
    assert ground.stage.job(job_id)["result"] == 3
    worker.until("job_completed", job_id=job_id)  # what came before has been read as well
    names = [seen["event"] for seen in worker.events if seen.get("job_id") == str(job_id)]
    assert names[:2] == ["lease_acquired", "execution_started"]


def test_a_job_enqueued_while_the_worker_sleeps_is_announced_to_it(
    ground: Ground, worker: Process
) -> None:
    asleep = "select count(*) from {schema}.workers where asleep"
    until(lambda: ground.stage.value(asleep) == 1, "the worker asks to be notified")
    first = ground.stage.enqueue("add", {"a": 1, "b": 2})
    ground.until_state(first, "succeeded")
    new = ground.stage.enqueue("add", {"a": 1, "b": 2}, priority=7)  # a lane it has never seen
    ground.until_state(new, "succeeded")


def test_a_failing_job_is_tried_again_and_then_dead_with_its_error(
    ground: Ground, worker: Process
) -> None:
    job_id = ground.stage.enqueue(
        "fails", {"message": "no money"}, max_attempts=2, backoff_seconds=0
    )
    ground.until_state(job_id, "failed")
    assert ground.stage.outcomes(job_id) == [(1, "failed"), (2, "failed")]
    error = error_of(ground, job_id)
    assert (error["type"], error["message"]) == ("ValueError", "no money")
    assert "playground.py" in error["traceback"]
    worker.until("job_failed", job_id=job_id, token=1, error="ValueError", final=False)
    worker.until("job_failed", job_id=job_id, token=2, error="ValueError", final=True)


def test_retry_snooze_and_cancel_mean_what_they_say(ground: Ground, worker: Process) -> None:
    retried = ground.stage.enqueue("asks_to_retry", max_attempts=3)
    snoozed = ground.stage.enqueue("snoozes", max_attempts=1)
    cancelled = ground.stage.enqueue("cancels_itself")
    ground.until_state(retried, "succeeded")
    ground.until_state(snoozed, "succeeded")
    ground.until_state(cancelled, "cancelled")
    assert ground.stage.job(retried)["result"] == 3
    assert ground.stage.outcomes(snoozed)[:2] == [(1, "snoozed"), (2, "snoozed")]
    assert ground.stage.job(snoozed)["result"] == 1, "a snooze uses up no attempt"
    assert error_of(ground, cancelled)["reason"] == "not wanted any more"


def test_a_result_that_is_not_json_fails_the_job_for_good_and_says_so(
    ground: Ground, worker: Process
) -> None:
    job_id = ground.stage.enqueue("not_json")
    ground.until_state(job_id, "failed")
    assert ground.stage.outcomes(job_id) == [(1, "failed")], "doing it again would not help"
    assert "not JSON" in error_of(ground, job_id)["message"]


def test_a_payload_that_does_not_fit_the_handler_fails_with_a_sentence(
    ground: Ground, worker: Process
) -> None:
    job_id = ground.stage.enqueue("add", {"a": 1, "b": "4111-1111"}, max_attempts=1)
    ground.until_state(job_id, "failed")
    assert "4111-1111" in error_of(ground, job_id)["message"]
    worker.until("job_failed", job_id=job_id)
    assert "4111-1111" not in str(worker.events), "no payload is logged"


def test_a_handler_that_calls_exit_fails_its_job_and_not_the_worker(
    ground: Ground, worker: Process
) -> None:
    job_id = ground.stage.enqueue("exits", max_attempts=1)
    ground.until_state(job_id, "failed")
    assert error_of(ground, job_id)["type"] == "SystemExit"


def test_an_unknown_task_is_put_off_for_a_worker_that_knows_it(
    ground: Ground, worker: Process
) -> None:
    job_id = ground.stage.enqueue("written_tomorrow")
    worker.until("unknown_task", job_id=job_id, task="written_tomorrow", jobs=1)
    worker.until("job_declined", job_id=job_id, task="written_tomorrow", level="debug")
    job = ground.stage.job(job_id)
    assert job["state"] in ("scheduled", "queued", "running"), "it comes back until it is known"
    assert (job["attempts"], job["crashes"]) == (0, 0), "it costs the job nothing"
    assert job["snoozes"] >= 1
    (first, *_) = ground.stage.reading.attempts(ground.stage.conn, job_id)
    assert (first["outcome"], first["error"]["type"]) == ("snoozed", "UnknownTask")
    assert first["worker"] in first["error"]["message"]


def test_an_unknown_task_has_one_line_a_minute_however_many_jobs(
    ground: Ground, worker: Process
) -> None:
    jobs = [ground.stage.enqueue("renamed") for _ in range(50)]
    other = ground.stage.enqueue("misspelt")
    for job_id in (*jobs, other):
        worker.until("job_declined", job_id=job_id)
    assert worker.told("unknown_task", task="misspelt", jobs=1)
    renamed = worker.told("unknown_task", task="renamed")
    assert 1 <= len(renamed) < len(jobs), "50 lines would take 50 minutes"
    loud = [seen for seen in worker.events if seen["level"] != "debug" and "job_id" in seen]
    assert {seen["event"] for seen in loud} == {"unknown_task"}


def test_a_worker_that_knows_a_task_wakes_its_declined_jobs(ground: Ground) -> None:
    stage = ground.stage
    stage.verbs.know_tasks("ignorant", ["default"], ["other"]).run(stage.conn)
    woken = [stage.running("ignorant", task="add", payload={"a": 1, "b": n}) for n in range(3)]
    stays = stage.running("ignorant", task="written_tomorrow")
    stage.verbs.decline([*woken, stays]).run(stage.conn)
    stage.execute("update {schema}.scheduled set run_at = clock_timestamp() + interval '1 hour'")
    with stage.login("worker") as url, Process(url) as worker:
        (started,) = (worker.until("worker_started"),)
        for job_id, _ in woken:
            ground.until_state(job_id, "succeeded")
        assert stage.state(stays[0]) == "scheduled", "nobody knows its task"
        (known,) = [
            row["tasks"]
            for row in stage.reading.workers(stage.conn)
            if row["worker"] == started["worker"]
        ]
        assert known == started["tasks"] == sorted(known)
        assert {"add", "fails"} <= set(known)


def test_more_declined_jobs_than_one_call_takes_are_all_woken(ground: Ground) -> None:
    stage = ground.stage
    ids = [uuid4() for _ in range(2 * MOST_RECOVERED + 100)]
    stage.verbs.enqueue_many("add", ids, [{"a": 1, "b": 2}] * len(ids)).run(stage.conn)
    while leases := stage.claim("ignorant", 1000):
        stage.verbs.decline([(lease.job_id, lease.token) for lease in leases]).run(stage.conn)
    stage.execute("update {schema}.scheduled set run_at = clock_timestamp() + interval '1 hour'")
    with stage.login("worker") as url, Process(url):
        until(
            lambda: stage.value("select count(*) from {schema}.ledger") == len(ids),
            "each of them has succeeded",
        )


@pytest.mark.parametrize("task", ["too_slow", "never_returns"])
def test_a_handler_past_its_timeout_fails_and_its_slot_is_used_again(
    ground: Ground, task: str
) -> None:
    with ground.stage.login("worker") as url, Process(url, "--concurrency", "2") as worker:
        job_id = ground.stage.enqueue(task, max_attempts=1)
        ground.until_state(job_id, "failed")
        assert error_of(ground, job_id)["type"] == "TimeoutError"
        worker.until("execution_timed_out", job_id=job_id)
        for _ in range(2):  # both slots
            following = ground.stage.enqueue("add", {"a": 1, "b": 2})
            worker.until("job_completed", job_id=following)
        assert bool(worker.told("handler_abandoned")) == (task == "never_returns")


def test_a_process_whose_loop_is_stuck_past_a_timeout_is_given_up(ground: Ground) -> None:
    with ground.stage.login("worker") as url, Process(url) as worker:
        other = ground.stage.enqueue("held_sync", lease_seconds=30)
        ground.until_in(other, 1)
        job_id = ground.stage.enqueue("never_returns_and_blocks", max_attempts=1)
        assert worker.ended() == 75
        assert worker.told("worker_exit", reason="stuck")
    assert ground.stage.state(job_id) == "failed"
    assert ground.stage.outcomes(other) == [(1, "released")], "its neighbour is handed back"


def test_cancelling_a_running_job_stops_its_handler_at_once(
    ground: Ground, worker: Process
) -> None:
    for task in ("held_long", "stops_when_told"):
        job_id = ground.stage.enqueue(task)
        ground.until_in(job_id, 1)
        [answer] = ground.stage.verbs.cancel([job_id], "changed my mind").run(ground.stage.conn)
        assert answer.verdict == "requested"
        ground.until_state(job_id, "cancelled")  # long before the first renewal, after 10 s
        assert "changed my mind" in error_of(ground, job_id)["reason"]


def test_progress_can_be_seen_while_the_job_runs(ground: Ground, worker: Process) -> None:
    job_id = ground.stage.enqueue("reports")
    until(lambda: ground.stage.job(job_id)["progress"] == {"done": 3}, "the progress is seen")
    ground.go(job_id, 1)
    ground.until_state(job_id, "succeeded")
    assert ground.stage.job(job_id)["progress"] is None


def test_a_handler_that_blocks_the_loop_for_several_leases_keeps_its_lease(
    ground: Ground, worker: Process
) -> None:
    job_id = ground.stage.enqueue("blocks_the_loop", {"seconds": 7}, lease_seconds=3)
    ground.until_state(job_id, "succeeded")
    assert ground.stage.job(job_id)["result"] == "token 1"
    assert ground.stage.outcomes(job_id) == [(1, "succeeded")]


def test_without_a_parent_a_dead_workers_job_is_taken_over_when_its_lease_expires(
    ground: Ground,
) -> None:
    """Its successor polls every 5 minutes, and looks when a lease that it knows of expires."""
    with ground.stage.login("worker") as url, Process(url) as a:
        job_id = ground.stage.enqueue("held", lease_seconds=4)
        ground.until_in(job_id, 1)
        with Process(url, "--poll-seconds", "300") as b:
            b.ready()
            a.kill()
            ground.go(job_id, 2)
            ground.until_state(job_id, "succeeded")
    [expired, _] = ground.stage.reading.attempts(ground.stage.conn, job_id)
    assert expired["at"] >= expired["lease_expired_at"]


def test_a_queue_that_nobody_knows_is_a_warning_and_served_all_the_same(ground: Ground) -> None:
    queues = ("--queues", "default,bililng")
    with ground.stage.login("worker") as url, Process(url, *queues) as worker:
        worker.until("unknown_queue", queue="bililng", level="warning")
        job_id = ground.stage.enqueue("add", {"a": 1, "b": 2}, queue="bililng")
        ground.until_state(job_id, "succeeded")
        assert [seen["queue"] for seen in worker.told("unknown_queue")] == ["bililng"]


def test_a_worker_without_permission_says_which_role_it_needs(ground: Ground) -> None:
    with ground.stage.login("reader") as url, Process(url) as worker:
        assert worker.ended() == 1
        [sentence] = worker.errors
        assert sentence.startswith("faultline: ")
        assert "faultline_worker" in sentence


def test_a_log_that_nobody_reads_does_not_stop_the_worker(ground: Ground) -> None:
    """Its pipe is full after 64 KiB; leases are kept and jobs are done all the same."""
    with ground.stage.login("worker") as url, Process(url) as worker:
        worker.ready()
        job_id = ground.stage.enqueue("held", lease_seconds=6)
        ground.until_in(job_id, 1)
        with worker.unread():
            many = [ground.stage.enqueue("add", {"a": n, "b": 0}) for n in range(400)]
            for each in many:
                ground.until_state(each, "succeeded")
            expiry = "select expires_at from {schema}.lease where job_id = %s"
            before = ground.stage.value(expiry, job_id)
            until(lambda: ground.stage.value(expiry, job_id) > before, "the lease is renewed")
        ground.go(job_id, 1)
        worker.until("job_completed", job_id=job_id, token=1)


def test_a_job_put_off_for_a_moment_does_not_wait_for_the_next_poll(ground: Ground) -> None:
    with ground.stage.login("worker") as url, Process(url, "--poll-seconds", "60") as worker:
        worker.ready()
        jobs = [
            ground.stage.enqueue("asks_to_retry", max_attempts=3),
            ground.stage.enqueue("snoozes", max_attempts=1),
            ground.stage.enqueue("fails", {"message": "no"}, max_attempts=2, backoff_seconds=0.2),
        ]
        for job_id, state in zip(jobs, ["succeeded", "succeeded", "failed"], strict=True):
            ground.until_state(job_id, state)


def test_a_payload_that_python_cannot_read_fails_alone(ground: Ground, worker: Process) -> None:
    """Too many digits, too deep: JSON for PostgreSQL, enqueued by SQL, claimed with others."""
    stage, deep = ground.stage, "[" * 3000 + "]" * 3000
    with stage.conn.transaction():
        first = stage.enqueue("add", {"a": 1, "b": 2}, max_crashes=1)
        bad = [
            stage.value("select {schema}.enqueue('add', %s::jsonb)", payload)
            for payload in ('{"a": 1}', f'{{"a": {deep}}}')
        ]
        # An enqueue refuses so many digits: the job is from a release that did not.
        stage.execute("update {schema}.job set payload = '{\"a\": 1e5000}' where id = %s", bad[0])
        odd = {"x": 'a, ] " [ b'}
        last = stage.enqueue("add", {"a": 3, "b": 4}, max_crashes=1, headers=odd)
    for job_id in bad:
        until(
            lambda job_id=job_id: stage.outcomes(job_id) == [(1, "failed")],
            "it has failed, for good",
        )
    ground.until_state(first, "succeeded")
    ground.until_state(last, "succeeded")


def test_a_handler_that_returns_after_its_timeout_has_failed(
    ground: Ground, worker: Process
) -> None:
    job_id = ground.stage.enqueue("returns_too_late", max_attempts=1)
    ground.until_state(job_id, "failed")
    assert error_of(ground, job_id)["type"] == "TimeoutError"


def test_a_notification_that_means_nothing_does_not_stop_recovery(
    ground: Ground, worker: Process
) -> None:
    ground.stage.enqueue("add", {"a": 1, "b": 2}, queue="cancel me")
    ground.stage.execute("select pg_notify('faultline', 'cancel it')")
    for number in range(3):  # promoted by the reconciler, which heard the above
        job_id = ground.stage.enqueue("add", {"a": number, "b": 0}, delay_seconds=0.1)
        ground.until_state(job_id, "succeeded")


def test_a_right_that_is_taken_away_for_a_while_costs_no_job_its_success(
    ground: Ground, worker: Process
) -> None:
    stage = ground.stage
    job_id = stage.enqueue("held_long")
    ground.until_in(job_id, 1)
    rights = "execute on function {schema}.complete, {schema}.swap {} faultline_worker"
    rights = rights.replace("{schema}", "faultline")
    stage.execute("revoke " + rights.format("from"))
    ground.go(job_id, 1)
    worker.until("database_lost")
    stage.execute("grant " + rights.format("to"))
    ground.until_state(job_id, "succeeded")
    assert stage.outcomes(job_id) == [(1, "succeeded")]
