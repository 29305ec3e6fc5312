"""`faultline queues`, `workers`, `epoch`, `rescue`, `reconcile --once`, run as a user runs them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.command import CommandLine
from tests.stage import Stage, until


@pytest.fixture
def faultline(stage: Stage, tmp_path: Path) -> CommandLine:
    return CommandLine(stage.url, tmp_path)


def test_a_list_of_queues_counts_what_stands_where(stage: Stage, faultline: CommandLine) -> None:
    assert faultline("queues", "list", status=3) == ""
    assert "there are no queues" in faultline.said
    stage.running(queue="billing")
    for _ in range(3):
        stage.enqueue(queue="mail")
    stage.enqueue(queue="mail", delay_seconds=60)
    head, billing, mail = faultline("queues", "list").splitlines()
    assert head.split() == ["queue", "queued", "scheduled", "running", "quarantined"]
    assert billing.split() == ["billing", "0", "0", "1", "0"]
    assert mail.split() == ["mail", "3", "1", "0", "0"]
    found = {queue["queue"]: queue for queue in faultline.json("queues", "list")}
    assert found["mail"]["scheduled"] == 1
    assert found["mail"]["paused"] is False


def test_the_backlog_is_what_there_is_to_do(stage: Stage, faultline: CommandLine) -> None:
    assert faultline("queues", "backlog") == "0 waiting; 0 running\n"
    stage.running(queue="billing")
    stage.enqueue(queue="mail")
    assert faultline("queues", "backlog", "billing") == "0 waiting; 1 running\n"
    assert faultline("queues", "backlog", "mail").startswith("1 waiting, the oldest for ")
    found = faultline.json("queues", "backlog")
    assert (found["jobs"], found["running"]) == (1, 1)
    assert found["oldest_seconds"] > 0


def test_a_paused_queue_is_not_claimed_until_it_is_resumed(
    stage: Stage, faultline: CommandLine
) -> None:
    stage.enqueue(queue="mail")
    assert faultline("queues", "pause", "mail") == "paused: mail\n"
    assert stage.claim() == []
    assert "paused" in faultline("queues", "list")
    assert faultline("queues", "resume", "mail") == "resumed: mail\n"
    assert len(stage.claim()) == 1


def test_a_queue_that_does_not_exist_is_one_sentence_and_the_others_stay_as_they_are(
    stage: Stage, faultline: CommandLine
) -> None:
    stage.enqueue(queue="mail")
    faultline("queues", "pause", "mail", "mial", status=1)
    assert "there is no queue 'mial'" in faultline.said
    assert faultline.said.count("\n") == 1
    assert faultline.json("queues", "list")[0]["paused"] is False


def test_workers_are_listed_with_what_they_hold_and_the_silent_ones_are_marked(
    stage: Stage, faultline: CommandLine
) -> None:
    assert faultline.json("workers", status=3) == []
    stage.verbs.beat("busy", ["mail", "billing"]).run(stage.conn)
    stage.verbs.beat("gone", ["mail"]).run(stage.conn)
    stage.running("busy")
    stage.execute(
        "update {schema}.worker set seen_at = seen_at - interval '10 min' where worker = 'gone'"
    )
    head, busy, gone = faultline("workers").splitlines()
    assert head.split() == ["worker", "queues", "jobs", "seen"]
    assert busy.split()[:5] == ["busy", "busy", "mail,", "billing", "1"]
    assert gone.split()[:2] == ["gone", "silent"]
    assert "10 min ago" in gone
    assert [worker["leases"] for worker in faultline.json("workers")] == [1, 0]


def test_a_bumped_epoch_raises_every_further_token(stage: Stage, faultline: CommandLine) -> None:
    assert faultline("epoch", "show").startswith("epoch 0 since ")
    faultline("epoch", "bump", status=2)
    assert "--yes" in faultline.said
    assert faultline("epoch", "bump", "--yes") == "epoch 16: tokens from 17592186044416 on\n"
    assert faultline.json("epoch", "show")["epoch"] == 16
    assert stage.running()[1] == 16 << 40


def test_a_rescue_queues_what_has_lost_its_place(stage: Stage, faultline: CommandLine) -> None:
    job_id = stage.enqueue()
    assert faultline.json("rescue") == {"rescued": 0}
    stage.execute("delete from {schema}.ready")
    assert faultline("rescue") == "rescued 1 job\n"
    assert stage.state(job_id) == "queued"


def test_a_person_is_asked_before_the_epoch_is_bumped(stage: Stage, faultline: CommandLine) -> None:
    status, shown = faultline.in_a_terminal("epoch", "bump", answer="n\n")
    assert status == 1
    assert "cannot be taken back" in shown
    assert faultline.json("epoch", "show")["epoch"] == 0
    assert faultline.in_a_terminal("epoch", "bump", "--yes")[0] == 0
    assert faultline.json("epoch", "show")["epoch"] == 16


def test_reconcile_once_takes_over_what_expired_and_queues_what_is_due(
    stage: Stage, faultline: CommandLine
) -> None:
    expired, _ = stage.running()
    stage.expire(expired)
    due = stage.enqueue(delay_seconds=3600)
    stage.execute("update {schema}.scheduled set run_at = clock_timestamp()")
    said = faultline("reconcile", "--once")
    assert said == "took over 1 expired lease, queued 1 due job\n"
    assert stage.state(expired) == stage.state(due) == "queued"
    later = faultline.json("reconcile", "--once")
    assert (later["reclaimed"], later["promoted"]) == (0, 0)


@pytest.mark.parametrize(("sign", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_reconcile_goes_on_until_it_is_told_to_end(
    stage: Stage, faultline: CommandLine, sign: signal.Signals, status: int
) -> None:
    process = faultline.start("reconcile", "--json")
    try:
        for _ in range(2):
            job_id, _ = stage.running()
            stage.expire(job_id)
            until(lambda job_id=job_id: stage.state(job_id) == "queued", "it is taken over")
        process.send_signal(sign)
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == status
    assert "lease_reclaimed" in said
    assert "Traceback" not in said
