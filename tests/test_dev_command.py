"""`faultline dev`, run as a user runs it: with an editor that saves while it runs."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from faultline.cli.dev.reload import snapshot
from faultline.launcher import Server
from tests.command import CommandLine
from tests.serving import Client
from tests.stage import Stage, until

APP = """
from faultline import App

app = App()

@app.task
def answer():
    return {answer}
"""


class Dev:
    """A running `faultline dev`, and all it has said."""

    def __init__(self, faultline: CommandLine, *arguments: str) -> None:
        one = ("--workers", "1", "--port", "0")  # what is said twice is counted twice
        self.process = faultline.start("dev", "app:app", *(arguments or one))
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        self.lines.extend(self.process.stdout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self._thread.join(60)
        self.process.stdout.close()

    def has_said(self, words: str, times: int = 1) -> str:
        """All it has said, once these words are among it so often."""
        until(lambda: "".join(self.lines).count(words) >= times, f"dev says {words!r}")
        return "".join(self.lines)

    def end(self, sign: signal.Signals) -> int:
        self.process.send_signal(sign)
        return self.process.wait(60)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    (project / "app.py").write_text(APP.format(answer=1))
    return project


@pytest.fixture
def faultline(stage: Stage, tmp_path: Path, project: Path) -> CommandLine:
    return CommandLine(stage.url, tmp_path / "home", directory=project)


@pytest.fixture
def alone(tmp_path: Path, project: Path) -> Iterator[CommandLine]:
    """Without a database of its own."""
    tmp_path.chmod(0o755)
    yield CommandLine("", tmp_path / "home", directory=project)
    Server(tmp_path / "home").stop(patience_seconds=5)


def test_one_command_gives_a_database_a_schema_and_a_worker_and_takes_them_away_again(
    alone: CommandLine, tmp_path: Path
) -> None:
    with Dev(alone) as dev:
        said = dev.has_said("serves default")
        begins = ["database", "schema", "dashboard", "try"]
        assert [line.split()[0] for line in said.splitlines()[:4]] == begins
        assert "faultline enqueue" in said
        assert alone("enqueue", "answer", "--wait", "--timeout", "60") == "1\n"
        assert dev.end(signal.SIGINT) == 130
        said = dev.has_said("ends: drained")
        assert "Traceback" not in said
    assert not Server(tmp_path / "home").is_running()
    with Dev(alone) as dev:
        assert "already at version" in dev.has_said("serves default")
        jobs = alone.json("jobs", "list")
        assert [job["state"] for job in jobs] == ["succeeded"], "the data stays"
        assert dev.end(signal.SIGTERM) == 0
    assert not Server(tmp_path / "home").is_running()


def test_a_server_that_ran_before_runs_afterwards(alone: CommandLine, tmp_path: Path) -> None:
    alone("db", "start")
    with Dev(alone) as dev:
        assert "was running already" in dev.has_said("serves default")
        assert dev.end(signal.SIGTERM) == 0
    assert Server(tmp_path / "home").is_running()


def test_a_changed_file_restarts_the_worker_with_the_new_code(
    faultline: CommandLine, project: Path
) -> None:
    with Dev(faultline) as dev:
        dev.has_said("serves default")
        assert faultline("enqueue", "answer", "--wait", "--timeout", "60") == "1\n"
        for number in (2, 3):
            (project / "app.py").write_text(APP.format(answer=number))
            said = dev.has_said("serves default", times=number)
            assert "app.py changed: restarting" in said
            assert faultline("enqueue", "answer", "--wait", "--timeout", "60") == f"{number}\n"


def test_a_syntax_error_is_shown_and_the_next_change_mends_it(
    faultline: CommandLine, project: Path
) -> None:
    with Dev(faultline) as dev:
        dev.has_said("serves default")
        (project / "app.py").write_text("def (\n")
        said = dev.has_said("waiting for a change")
        assert "SyntaxError" in said
        assert "Traceback" not in said
        assert dev.process.poll() is None
        (project / "app.py").write_text(APP.format(answer=2))
        dev.has_said("serves default", times=2)
        assert faultline("enqueue", "answer", "--wait", "--timeout", "60") == "2\n"


def test_an_app_that_is_broken_from_the_start_waits_for_a_change_too(
    faultline: CommandLine, project: Path
) -> None:
    (project / "app.py").write_text("1 / 0\n")
    with Dev(faultline) as dev:
        assert "ZeroDivisionError" in dev.has_said("waiting for a change")
        (project / "app.py").write_text(APP.format(answer=1))
        dev.has_said("serves default")
        assert dev.end(signal.SIGINT) == 130


def test_ending_it_ends_the_worker_too(faultline: CommandLine) -> None:
    with Dev(faultline) as dev:
        dev.has_said("serves default")
        (worker,) = children_of(dev.process.pid)
        assert dev.end(signal.SIGHUP) == 0
        assert not Path(f"/proc/{worker}").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_should_it_be_killed_its_workers_go_too(faultline: CommandLine) -> None:
    """Else they would go on claiming, with code that nobody reloads."""
    with Dev(faultline) as dev:
        dev.has_said("serves default")
        (worker,) = children_of(dev.process.pid)
        assert dev.end(signal.SIGKILL) == -signal.SIGKILL
        until(lambda: not Path(f"/proc/{worker}").exists(), "the worker is gone")


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_stalled_worker_is_taken_over_and_ends_with_the_others(
    stage: Stage, faultline: CommandLine, project: Path
) -> None:
    """From the dashboard's own button; and nobody waits for ever for one that is stopped."""
    slow = "import time\n\n@app.task\ndef slow():\n    time.sleep(3)\n"
    (project / "app.py").write_text(APP.format(answer=1) + slow)
    with Dev(faultline, "--workers", "2", "--port", "0") as dev:
        said = dev.has_said("serves default", times=2)
        address = re.search(r"dashboard http://127.0.0.1:(\d+)/dashboard", said)
        assert address is not None
        job_id = stage.enqueue("slow", lease_seconds=1)
        until(lambda: stage.state(job_id) == "running", "it runs")
        worker = stage.job(job_id)["lease_owner"]
        (pid,) = [pid for pid in children_of(dev.process.pid) if f":{pid}:" in worker]
        dashboard = Client("127.0.0.1", int(address[1]))
        form = {"Content_Type": "application/x-www-form-urlencoded"}
        pressed = dashboard(
            "POST", "/dashboard/workers", raw=f"pid={pid}&act=stall".encode(), **form
        )
        assert "is stopped" in pressed.text
        until(lambda: stage.state(job_id) == "succeeded", "the other one has done it")
        assert stage.job(job_id)["fencing_token"] == 2
        assert dev.end(signal.SIGINT) == 130
        assert not Path(f"/proc/{pid}").exists()


def test_a_port_that_is_taken_costs_the_dashboard_and_nothing_else(faultline: CommandLine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Dev(faultline, "--workers", "1", "--port", str(port)) as dev:
            said = dev.has_said("serves default")
            assert f"dashboard none: cannot listen on 127.0.0.1 port {port}" in said


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def test_a_second_signal_does_not_wait_for_a_job_that_does_not_end(
    stage: Stage, faultline: CommandLine, project: Path
) -> None:
    slow = "import time\n\n@app.task\ndef slow():\n    time.sleep(60)\n"
    (project / "app.py").write_text(APP.format(answer=1) + slow)
    with Dev(faultline) as dev:
        job_id = stage.enqueue("slow", lease_seconds=60)
        until(lambda: stage.state(job_id) == "running", "it runs")
        dev.process.send_signal(signal.SIGINT)
        dev.has_said("takes no more")
        assert dev.end(signal.SIGINT) == 130


def test_a_database_that_cannot_be_had_is_one_sentence_and_no_worker(
    project: Path, tmp_path: Path
) -> None:
    nobody = "postgresql://postgres@127.0.0.1:1/postgres"
    away = CommandLine(nobody, tmp_path / "home", directory=project)
    away("dev", "app:app", status=1)
    assert away.said.startswith("faultline: ")
    assert away.said.count("\n") == 1


def test_only_the_users_own_python_files_are_watched(project: Path) -> None:
    for name in (".venv/x.py", "env/pyvenv.cfg", "env/x.py", "__pycache__/x.py", ".git/x.py"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).touch()
    (project / "package").mkdir()
    (project / "package" / "tasks.py").touch()
    (project / "notes.txt").touch()
    watched = {path.relative_to(project).as_posix() for path in snapshot(project)}
    assert watched == {"app.py", "package/tasks.py"}
    before = snapshot(project)
    os.utime(project / "app.py", (1, 1))
    assert snapshot(project) != before


def test_a_terminal_shows_it_all(alone: CommandLine) -> None:
    """Ctrl-C as a person types it: the terminal sends it to the whole foreground group."""
    script = [
        "script",
        "-qec",
        " ".join(alone.command("dev", "app:app", "--workers", "1", "--port", "0")),
        "/dev/null",
    ]
    process = subprocess.Popen(
        script,
        env={**alone.environment, "TERM": "xterm-256color", "SHELL": "/bin/sh"},
        cwd=alone.directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "serves default" in line:
            process.stdin.write("\x03")
            process.stdin.flush()
    assert process.wait(60) == 130, lines
    assert sum("takes no more" in line for line in lines) == 1
    process.stdin.close()
    process.stdout.close()
