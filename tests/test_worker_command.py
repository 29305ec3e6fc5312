"""`faultline worker`: its options, its exit status and its log. What it does with jobs is tested
in test_worker*.py."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.command import FAULTLINE, CommandLine
from tests.stage import Stage, until

APP = """
from faultline import App

app = App()
not_an_app = 7

@app.task(queue="billing")
def charge(order_id):
    print("charging", order_id)
    return order_id

@app.task(queue="billing")
def quiet():
    pass
"""


@pytest.fixture
def faultline(stage: Stage, tmp_path: Path) -> CommandLine:
    (tmp_path / "app.py").write_text(APP)
    return CommandLine(stage.url, tmp_path / "home", directory=tmp_path)


def test_a_worker_runs_jobs_until_sigterm_and_then_ends_with_status_zero(
    stage: Stage, faultline: CommandLine
) -> None:
    worker = faultline.start("worker", "app:app", "--log", "json", "--log-level", "debug")
    try:
        job_id = stage.enqueue("charge", {"order_id": 7}, queue="billing")
        until(lambda: stage.state(job_id) == "succeeded", "the job is done")
        worker.send_signal(signal.SIGTERM)
        said, _ = worker.communicate(timeout=60)
    finally:
        worker.kill()
    assert worker.returncode == 0
    lines = [line for line in said.splitlines() if not line.startswith("charging")]
    events = [json.loads(line) for line in lines]
    assert all(list(event)[:2] == ["at", "event"] for event in events)
    assert [event["event"] for event in events if event["level"] != "debug"] == [
        "worker_started",
        "job_completed",
        "worker_draining",
        "worker_exit",
    ]
    assert events[0]["queues"] == ["billing", "default"]
    assert "order_id" not in "".join(lines), "no payload in a log"


def test_max_jobs_ends_it_and_the_log_is_text_unless_asked_for(
    stage: Stage, faultline: CommandLine
) -> None:
    job_id = stage.enqueue("charge", {"order_id": 7}, queue="billing")
    said = faultline("worker", "app.py:app", "--max-jobs", "1")
    assert stage.state(job_id) == "succeeded"
    assert f"{job_id} #1  charge  done in " in said


def test_queues_may_be_given_with_commas_and_again_and_again(
    stage: Stage, faultline: CommandLine
) -> None:
    stage.enqueue("charge", {"order_id": 7}, queue="c")
    queues = ("--queues", "a, b", "-q", "c", "-q", "a")
    said = faultline("worker", "app:app", *queues, "--max-jobs", "1", "--log", "json")
    logged = [line for line in said.splitlines() if line.startswith("{")]  # and not the handler
    started = json.loads(logged[0])
    assert started["queues"] == ["a", "b", "c"]


def test_a_log_level_leaves_out_what_is_below_it(stage: Stage, faultline: CommandLine) -> None:
    stage.enqueue("charge", {"order_id": 7}, queue="billing")
    said = faultline("worker", "app:app", "--max-jobs", "1", "--log-level", "warning")
    assert said == "charging 7\n"


def test_two_processes_log_through_one_command(stage: Stage, faultline: CommandLine) -> None:
    worker = faultline.start("worker", "app:app", "--processes", "2", "--log", "json")
    try:
        workers = "select count(*) from {schema}.worker"
        until(lambda: stage.value(workers) >= 2, "both are there")
        worker.send_signal(signal.SIGTERM)
        said, _ = worker.communicate(timeout=60)
    finally:
        worker.kill()
    assert worker.returncode == 0
    events = [json.loads(line)["event"] for line in said.splitlines()]
    assert events.count("worker_started") == 2


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("app", "does not name an app"),
        ("no_such:app", "there is no module 'no_such'"),
        ("app:no_such", "its apps are app"),
        ("app:not_an_app", "not an App"),
        ("broken:app", "ZeroDivisionError"),
        ("unreadable:app", "SyntaxError"),
    ],
)
def test_an_app_that_cannot_be_had_is_one_sentence(
    faultline: CommandLine, tmp_path: Path, reference: str, said: str
) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "unreadable.py").write_text("def (\n")
    faultline("worker", reference, status=1)
    assert said in faultline.said
    assert faultline.said.startswith("faultline: ")
    assert faultline.said.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("--concurrency", "0"),
        ("--processes", "0"),
        ("--max-jobs", "0"),
        ("--grace-seconds", "-1"),
        ("--poll-seconds", "0"),
        ("--queues", "a,,b"),
        ("--queues", ""),
        ("--log", "xml"),
        ("--log-level", "loud"),
    ],
)
def test_an_option_that_makes_no_sense_is_wrong_usage(
    faultline: CommandLine, arguments: tuple[str, ...]
) -> None:
    faultline("worker", "app:app", *arguments, status=2)
    assert "Error: " in faultline.said
    assert arguments[0] in faultline.said


def test_a_worker_without_any_task_refuses_to_start_and_says_what_to_do(
    stage: Stage, faultline: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "empty.py").write_text("from faultline import App\n\napp = App()\n")
    for more in ((), ("--processes", "2")):
        faultline("worker", "empty:app", *more, status=1)
        assert faultline.said.startswith("faultline: the app has no task: import the module")
        assert "--allow-empty" in faultline.said
        assert faultline.said.count("\n") == 1
    assert stage.reading.workers(stage.conn) == []


def test_a_worker_without_any_task_starts_where_that_is_allowed(
    stage: Stage, faultline: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "empty.py").write_text("from faultline import App\n\napp = App()\n")
    job_id = stage.enqueue("charge")
    said = faultline("worker", "empty:app", "--allow-empty", "--max-jobs", "1")
    assert "; no task\n" in said
    assert stage.outcomes(job_id) == [(1, "snoozed")]
    run = "from empty import app; app.run_worker(max_jobs=1, allow_empty={})"
    for allowed, status in ((True, 0), (False, 1)):
        done = subprocess.run(
            [*FAULTLINE[:1], "-c", run.format(allowed)],
            cwd=tmp_path,
            env=faultline.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, "the app has no task" in done.stderr) == (status, not allowed)


def test_a_database_that_is_away_or_empty_at_the_start_is_one_sentence(
    faultline: CommandLine, empty_database: str, tmp_path: Path
) -> None:
    for url in ("postgresql://postgres@127.0.0.1:1/postgres", empty_database):
        there = CommandLine(url, tmp_path / "home", directory=tmp_path)
        there("worker", "app:app", status=1)
        assert there.said.startswith("faultline: ")
        assert there.said.count("\n") == 1


def test_a_worker_behind_a_closed_pipe_goes_on_working(
    stage: Stage, faultline: CommandLine
) -> None:
    worker = subprocess.Popen(
        faultline.command("worker", "app:app"),
        env=faultline.environment,
        cwd=faultline.directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: stage.value("select count(*) from {schema}.worker"), "it is there")
        worker.stdout.close()
        job_id = stage.enqueue("quiet", queue="billing")
        until(lambda: stage.state(job_id) == "succeeded", "the job is done")
        assert worker.poll() is None
    finally:
        worker.terminate()
        worker.wait(60)
