"""`faultline enqueue`, run as a user runs it; a thread plays the worker where one is needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from faultline.jobs import Lease
from tests.command import CommandLine
from tests.stage import Stage, until


@pytest.fixture
def faultline(stage: Stage, tmp_path: Path) -> CommandLine:
    return CommandLine(stage.url, tmp_path)


def work_once(stage: Stage, settle: Callable[[Lease], Any]) -> threading.Thread:
    """Somebody claims the next job and settles it like this."""
    conn = stage.connect()

    def work() -> None:
        (lease,) = until(lambda: stage.claim(conn=conn), "there is a job")
        settle(lease).run(conn)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_it_prints_the_id_of_a_job_that_has_all_it_was_given(
    stage: Stage, faultline: CommandLine
) -> None:
    given = ("--queue", "billing", "--priority", "7", "--run-at", "2100-01-01T00:00:00+02:00")
    said = faultline("enqueue", "charge", '{"order_id": 7}', *given)
    job = stage.job(UUID(said.strip()))
    assert (job["task"], job["queue"], job["priority"]) == ("charge", "billing", 7)
    assert job["payload"] == {"order_id": 7}
    assert job["state"] == "scheduled"
    assert job["next_run_at"].isoformat().startswith("2099-12-31T22:00:00")


def test_without_a_payload_it_is_empty_and_with_a_dash_it_comes_from_standard_input(
    stage: Stage, faultline: CommandLine
) -> None:
    assert stage.job(UUID(faultline("enqueue", "charge").strip()))["payload"] == {}
    said = faultline("enqueue", "charge", "-", given='{"order_id": 8}\n')
    assert stage.job(UUID(said.strip()))["payload"] == {"order_id": 8}


def test_the_same_key_gives_the_same_job_and_another_payload_is_refused(
    stage: Stage, faultline: CommandLine
) -> None:
    key = ("--idempotency-key", "order-7")
    first = faultline.json("enqueue", "charge", '{"order_id": 7}', *key)
    assert faultline.json("enqueue", "charge", '{"order_id": 7}', *key) == first
    assert stage.value("select count(*) from {schema}.job") == 1
    faultline("enqueue", "charge", '{"order_id": 8}', *key, status=1)
    assert "order-7" in faultline.said
    assert faultline.said.count("\n") == 1


def test_a_delay_schedules_the_job(stage: Stage, faultline: CommandLine) -> None:
    said = faultline("enqueue", "charge", "--delay-seconds", "60")
    assert stage.state(UUID(said.strip())) == "scheduled"


def test_wait_prints_the_result(stage: Stage, faultline: CommandLine) -> None:
    worker = work_once(stage, lambda x: stage.verbs.complete([(x.job_id, x.token)], [{"ok": 1}]))
    assert faultline("enqueue", "charge", "--wait") == '{"ok": 1}\n'
    assert UUID(faultline.said.strip())
    worker.join()
    worker = work_once(stage, lambda x: stage.verbs.complete([(x.job_id, x.token)], [None]))
    facts = faultline.json("enqueue", "charge", "--wait", "--timeout", "30")
    assert (facts["state"], facts["result"]) == ("succeeded", None)
    worker.join()


def test_wait_for_a_job_that_fails_is_one_sentence_and_status_one(
    stage: Stage, faultline: CommandLine
) -> None:
    error = {"type": "ValueError", "message": "no such card", "traceback": "…"}

    def give_up(lease: Lease) -> Any:
        return stage.verbs.fail([(lease.job_id, lease.token)], [error], dead=[True])

    worker = work_once(stage, give_up)
    assert faultline("enqueue", "charge", "--wait", status=1) == ""
    assert faultline.said.endswith(" is failed: ValueError: no such card\n")
    worker.join()
    worker = work_once(stage, give_up)
    assert faultline.json("enqueue", "charge", "--wait", status=1)["error"] == error
    worker.join()


def test_wait_gives_up_in_time_and_leaves_the_job_alone(
    stage: Stage, faultline: CommandLine
) -> None:
    facts = faultline.json("enqueue", "charge", "--wait", "--timeout", "0.1", status=3)
    assert facts["state"] == "queued"
    assert stage.state(UUID(facts["id"])) == "queued"
    faultline("enqueue", "charge", "--wait", "--timeout", "0", status=3)
    assert "is still queued after" in faultline.said


def test_a_producers_role_is_enough_to_enqueue_and_to_wait(stage: Stage, tmp_path: Path) -> None:
    with stage.login("producer") as url:
        shop = CommandLine(url, tmp_path)
        assert shop.json("enqueue", "charge", "--wait", "--timeout", "0", status=3)["id"]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("charge", "{order_id: 7}"), 2, "it is not JSON"),
        (("charge", "7"), 2, "it must be a JSON object"),
        (("charge", "{}", "--timeout", "3"), 2, "--timeout is for --wait"),
        (("charge", "{}", "--run-at", "tomorrow"), 2, "'tomorrow' is not a moment"),
        (("charge", "{}", "--run-at", "2030-01-01T00:00"), 2, "has no time zone"),
        (("charge", "{}", "--delay-seconds", "-1"), 2, "--delay-seconds"),
        (("charge", "{}", "--priority", "high"), 2, "--priority"),
        ((), 2, "TASK"),
        (("charge", '{"a": "\\u0000"}'), 1, "\\u0000"),
        (("", "{}"), 1, "task name"),
        (("charge", "{}", "--queue", ""), 1, "queue name"),
    ],
)
def test_bad_input_is_said_in_words_and_nothing_is_enqueued(
    stage: Stage, faultline: CommandLine, arguments: tuple[str, ...], status: int, said: str
) -> None:
    faultline("enqueue", *arguments, status=status)
    assert said in faultline.said
    assert stage.value("select count(*) from {schema}.job") == 0
