"""`faultline doctor` on jobs that wait in vain: unknown tasks, undeliverable jobs, priorities."""

from __future__ import annotations

from pathlib import Path

from tests.command import CommandLine
from tests.stage import Stage
from tests.test_doctor_command import findings


def declined(stage: Stage, task: str) -> None:
    """A job that a worker without a handler for its task has put off."""
    stage.verbs.decline([stage.running("ignorant", task=task)]).run(stage.conn)


def test_jobs_of_a_task_that_no_worker_has_are_named_with_the_nearest_name(stage: Stage) -> None:
    declined(stage, "charge_card")
    declined(stage, "charge_card")
    declined(stage, "send_mail")
    found = findings(stage.url)["unknown_tasks"]
    assert found.level == "warn"
    assert found.what.endswith("charge_card (2 jobs); send_mail (1 job)")
    stage.verbs.know_tasks("other", ["elsewhere"], ["charge_cards"]).run(stage.conn)
    found = findings(stage.url)["unknown_tasks"]
    assert "charge_card (2 jobs, did you mean charge_cards?); send_mail (1 job)" in found.what
    assert "faultline jobs cancel --state scheduled --task NAME" in found.do
    # On another queue, so that the jobs stay where they are.
    stage.verbs.know_tasks("other", ["elsewhere"], ["charge_card", "send_mail"]).run(stage.conn)
    assert findings(stage.url)["unknown_tasks"].level == "ok"
    stage.execute("update {schema}.worker set seen_at = clock_timestamp() - interval '2 minutes'")
    assert findings(stage.url)["unknown_tasks"].level == "warn", "a dead worker knows nothing"


def test_the_check_of_unknown_tasks_is_in_the_json_under_its_name(
    stage: Stage, tmp_path: Path
) -> None:
    declined(stage, "send_mail")
    facts = CommandLine(stage.url, tmp_path).json("doctor", "--quick", status=1)
    (found,) = [f for f in facts["findings"] if f["name"] == "unknown_tasks"]
    assert found["level"] == "warn"
    assert "send_mail" in found["what"]


def test_the_view_of_unknown_tasks_counts_only_so_far(stage: Stage) -> None:
    declined(stage, "send_mail")
    (row,) = stage.reading.unknown_tasks(stage.conn)
    assert (row["task"], row["jobs"], row["is_known"]) == ("send_mail", 1, False)
    assert row["next_run_at"] == stage.value("select run_at from {schema}.scheduled")
    stage.execute(
        "insert into {schema}.scheduled (job_id, run_at, lane, fencing_token, attempts, crashes, "
        "snoozes, lease_seconds, awaits) select gen_random_uuid(), run_at, lane, 1, 0, 0, 1, 30, "
        "awaits from {schema}.scheduled, generate_series(1, 10000)"
    )
    (row,) = stage.reading.unknown_tasks(stage.conn)
    assert row["jobs"] == 10_000
    assert "(10,000 jobs or more)" in findings(stage.url)["unknown_tasks"].what


def test_jobs_that_no_claim_can_deliver_are_named(stage: Stage) -> None:
    job_id = stage.undeliverable()
    found = findings(stage.url)["undeliverable"]
    assert found.level == "warn"
    assert str(job_id) in found.what
    assert "faultline jobs cancel" in found.do
    assert "store the data elsewhere" in found.do
    stage.execute(
        "insert into {schema}.quarantine select gen_random_uuid(), fencing_token, at, lane, "
        "attempts, crashes, snoozes, lease_seconds, reason, evidence "
        "from {schema}.quarantine, generate_series(1, 5)"
    )
    found = findings(stage.url)["undeliverable"]
    assert found.what.count("-") == 5 * 4, "five ids"
    assert found.what.endswith(", …")
    stage.verbs.cancel([job_id]).run(stage.conn)


def test_a_queue_with_jobs_of_too_many_priorities_is_noticed(stage: Stage) -> None:
    stage.execute(
        "select {schema}.enqueue('work', '{}', priority => n, queue => 'wide') "
        "from generate_series(1, 101) n"
    )
    stage.enqueue()
    found = findings(stage.url)["lanes"]
    assert found.level == "warn"
    assert "101 priorities wait in wide" in found.what
    assert "1,000 is the most" in found.do
    stage.verbs.cancel([lease.job_id for lease in stage.claim(max_jobs=1)]).run(stage.conn)
    assert findings(stage.url)["lanes"].level == "ok"
