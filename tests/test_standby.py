"""A hot standby can be looked at: views, service and commands answer there, and say what they do
not know."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from faultline import App
from faultline.launcher import Server
from faultline.migrate import migrate
from faultline.service import service
from tests.command import CommandLine
from tests.conftest import OPTIONS, debian_binaries
from tests.serving import Client, served
from tests.stage import Stage, until


@pytest.fixture(params=["18", "15"])
def standby(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a standby whose primary has a job, one that runs, and a worker that sleeps."""
    binaries = debian_binaries() if request.param == "15" else None
    if request.param == "15" and binaries is None:
        pytest.skip("PostgreSQL 15 is not installed")
    with Server.temporary(binaries=binaries, options=OPTIONS) as primary:
        with psycopg.connect(primary.url, autocommit=True) as conn:
            migrate(conn, "faultline")
        with primary.standby(options=OPTIONS) as server, Stage(primary.url) as stage:
            stage.verbs.beat("A", ["default"]).run(stage.conn)
            stage.verbs.sleep("A", ["default"], 60).run(stage.conn)
            assert stage.value("select asleep from {schema}.workers") is True
            stage.running("A")
            stage.enqueue()
            until(
                lambda: stage.value(
                    "select count(*) from pg_stat_replication "
                    "where replay_lsn >= pg_current_wal_insert_lsn()"
                ),
                "the standby has replayed everything",
            )
            yield server.url


def test_everything_that_only_looks_answers_on_a_standby(standby: str, tmp_path: Path) -> None:
    with served(service(App(standby))) as client:
        looks_well(client)
        client.post("/jobs", {"task": "charge"}).problem(503, "read_only_database")
    faultline = CommandLine(standby, tmp_path)
    (worker,) = faultline.json("workers")
    assert (worker["worker"], worker["asleep"]) == ("A", None)
    found = {finding["name"]: finding for finding in faultline.json("doctor", status=1)["findings"]}
    assert found["workers"]["what"] == "1 at work"
    assert "is a standby" in found["replication"]["what"]
    assert found["replication"]["do"].startswith("connect to the primary")


def looks_well(client: Client) -> None:
    (worker,) = client.get("/api/workers").body["workers"]
    assert (worker["worker"], worker["leases"], worker["asleep"]) == ("A", 1, None)
    risk = client.get("/api/risk").body
    assert (risk["stale_risk"], risk["active_workers"]) == ("low", 1)
    paths = [path for path in client.get("/openapi.json").body["paths"] if "{" not in path]
    for path in {*paths} - {"/health", "/jobs/batch", "/api/stream"}:
        assert client.get(path).status == 200, path
    for job in client.get("/jobs").body["jobs"]:
        assert client.get(f"/jobs/{job['id']}").body["state"] in ("queued", "running")
        assert client.get(f"/api/jobs/{job['id']}/timeline").status == 200
