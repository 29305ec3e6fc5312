"""The service as a process: health while the database comes and goes, signals, and its command."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from faultline.launcher import Server
from faultline.migrate import migrate
from tests.command import CommandLine
from tests.conftest import OPTIONS
from tests.serving import Serving
from tests.stage import Stage, until

CHARGE = {"task": "charge", "payload": {"order_id": 7}}


def test_health_follows_a_database_that_is_killed_and_comes_back(tmp_path: Path) -> None:
    with Server.temporary(options=OPTIONS) as server:
        with psycopg.connect(server.url, autocommit=True) as conn:
            migrate(conn, "faultline")
        with Serving(server.url) as serving:
            client = serving.client
            assert client.get("/health").body["status"] == "ok"
            assert client("HEAD", "/health").status == 200
            assert client.post("/jobs", CHARGE).status == 201
            os.kill(server.pid, signal.SIGKILL)
            until(lambda: client.get("/health").status == 503, "the service notices")
            problem = client.get("/health").problem(503, "database_unavailable")
            assert "no connection to PostgreSQL" in problem["detail"]
            assert client.get("/livez").status == 200, "starting it anew would not help"
            assert client("HEAD", "/livez").status == 200
            answer = client.post("/jobs", CHARGE)
            answer.problem(503, "database_unavailable")
            assert answer.headers["retry-after"]
            server.start()
            until(lambda: client.get("/health").status == 200, "the service notices")
            assert client.post("/jobs", CHARGE).status == 201
            assert client.get("/queue/depth").body["queued"] == 2


def test_a_batch_is_accepted_on_a_connection_that_was_opened_to_look(database: str) -> None:
    """The first request of a process asks; what a batch needs has to be known by then."""
    with Serving(database) as serving:
        assert serving.client.get("/queue/depth").status == 200
        assert serving.client.post("/jobs/batch", {"jobs": [CHARGE]}).status == 201


def test_health_says_that_there_is_no_installation_until_there_is(empty_database: str) -> None:
    with Serving(empty_database) as serving:
        problem = serving.client.get("/health").problem(503, "schema_mismatch")
        assert "faultline migrate" in problem["detail"]
        serving.client.post("/jobs", CHARGE).problem(503, "schema_mismatch")
        with psycopg.connect(empty_database, autocommit=True) as conn:
            migrate(conn, "faultline")
        until(lambda: serving.client.get("/health").status == 200, "the service notices")
        assert serving.client.post("/jobs", CHARGE).status == 201


def test_a_service_that_is_started_while_the_database_is_away_waits_for_it() -> None:
    with Serving("postgresql://nobody@127.0.0.1:1/none") as serving:
        serving.client.get("/health").problem(503, "database_unavailable")


def test_sigterm_lets_a_request_finish_and_ends_with_status_zero(stage: Stage) -> None:
    stage.enqueue()
    with Serving(stage.url) as serving:
        client = serving.client
        assert client.get("/queue/depth").status == 200
        # The first enqueue into a new queue waits for whoever makes the same queue.
        other = stage.connect(isolation="read committed")
        stage.verbs.enqueue("charge", {}, queue="new").run(other)
        conn = http.client.HTTPConnection(client.host, client.port, timeout=60)
        body = b'{"task": "charge", "queue": "new"}'
        conn.request("POST", "/jobs", body, {"Content-Type": "application/json"})
        until(
            lambda: stage.value(
                "select count(*) from pg_stat_activity where wait_event_type = 'Lock' "
                "and datname = current_database()"
            ),
            "the request waits for a lock",
        )
        serving.terminate()
        until(lambda: _refused(client.host, client.port), "it listens no more")
        other.commit()
        assert conn.getresponse().status == 201
        conn.close()
        assert serving.ended() == 0


def _refused(host: str, port: int) -> bool:
    import socket

    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return True
    return False


def test_ctrl_c_ends_it_without_a_word_too_many(stage: Stage) -> None:
    with Serving(stage.url) as serving:
        serving.process.send_signal(signal.SIGINT)
        assert serving.ended() == 0
        assert "Traceback" not in serving.written


def test_a_port_that_is_taken_is_one_sentence(database: str, tmp_path: Path) -> None:
    with Serving(database) as serving:
        faultline = CommandLine(database, tmp_path)
        faultline("api", "--port", str(serving.client.port), status=1)
        assert faultline.said.startswith("faultline: cannot listen on 127.0.0.1 port ")
        assert faultline.said.count("\n") == 1


@pytest.mark.parametrize("name", ["FAULTLINE_API_TOKEN", "FAULTLINE_API_READ_TOKEN"])
def test_a_token_that_is_too_short_is_one_sentence(
    database: str, tmp_path: Path, name: str
) -> None:
    faultline = CommandLine(database, tmp_path, **{name: "short"})
    faultline("api", status=1)
    assert "shorter than 16 characters" in faultline.said
    assert faultline.said.count("\n") == 1


def test_without_the_extra_the_command_says_what_to_install(tmp_path: Path) -> None:
    """An environment where FastAPI cannot be imported; the rest of Faultline can."""
    (tmp_path / "fastapi.py").write_text(
        "raise ModuleNotFoundError('No module named fastapi', name='fastapi')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "FAULTLINE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "faultline", "api"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == (
        "faultline: this needs fastapi, which is not installed: "
        "pip install 'faultline-queue[web]'\n"
    )


def test_the_core_does_not_import_what_the_service_needs() -> None:
    code = (
        "import sys, faultline, faultline.cli, faultline.app, faultline.worker, faultline.testing; "
        "sys.exit(' '.join({'fastapi', 'uvicorn', 'starlette'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_the_inspector_only_looks_unless_it_may_change(stage: Stage) -> None:
    job_id = stage.enqueue()
    with Serving(stage.url, "inspector", "serve") as serving:
        assert serving.client.get("/jobs").status == 200
        serving.client.post("/jobs", CHARGE).problem(405, "method_not_allowed")
        serving.client.post(f"/jobs/{job_id}/cancel").problem(404, "not_found")
    with Serving(stage.url, "inspector", "serve", "--allow-changes") as serving:
        serving.client.post("/jobs", CHARGE).problem(405, "method_not_allowed")
        assert serving.client.post(f"/jobs/{job_id}/cancel").body["outcome"] == "cancelled"
