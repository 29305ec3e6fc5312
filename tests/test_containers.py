"""Dockerfile, compose.yml and what is beside them, by the judgement of real tools; and the logins
that compose.yml makes, on a real server. `make image-check` and `make compose-check` run them."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
import yaml

from faultline.cli.api import api
from faultline.cli.inspector import serve
from faultline.launcher import Server
from faultline.migrate import migrate
from faultline.worker import WorkerOptions
from faultline.worker.parent import ENDING_SECONDS
from tests.prometheus import needs_promtool
from tests.test_chart import DEPLOYMENTS

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
COMPOSE = yaml.safe_load((ROOT / "compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: one for name, one in SERVICES.items() if one["image"] == "faultline"}
NAMES = ("api", "inspector", "reconciler", "worker")


def module(path: str) -> Any:
    """A program of deploy/, which is no package."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


# ── by real tools ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("file", ["Dockerfile", "deploy/example/Dockerfile"])
def test_hadolint_finds_nothing(file: str) -> None:
    done = subprocess.run([BIN / "hadolint", ROOT / file], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def schema_says(file: Path) -> subprocess.CompletedProcess[str]:
    options = ["--builtin-schema", "vendor.compose-spec"]
    return subprocess.run(
        [BIN / "check-jsonschema", *options, file], capture_output=True, text=True, check=False
    )


def test_compose_yml_is_what_the_specification_allows(tmp_path: Path) -> None:
    done = schema_says(ROOT / "compose.yml")
    assert done.returncode == 0, done.stdout
    wrong = tmp_path / "compose.yml"
    wrong.write_text((ROOT / "compose.yml").read_text().replace("read_only:", "readonly:"))
    assert schema_says(wrong).returncode != 0


@pytest.mark.skipif(shutil.which("podman") is None, reason="there is no podman (Debian: podman)")
def test_a_compose_implementation_reads_compose_yml_and_takes_what_env_says() -> None:
    done = subprocess.run(
        [BIN / "podman-compose", "--file", ROOT / "compose.yml", "config"],
        env={**os.environ, "WORKER_PASSWORD": "chosen"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    read = yaml.safe_load(done.stdout)["services"]
    assert read.keys() == SERVICES.keys()
    assert read["worker"]["environment"]["PGPASSWORD"] == "chosen"
    assert read["api"]["environment"]["PGPASSWORD"] == "not-a-secret"


@needs_promtool
def test_promtool_finds_nothing_wrong_with_what_prometheus_is_told(tmp_path: Path) -> None:
    told = (ROOT / "deploy/compose/prometheus.yml").read_text()
    (tmp_path / "token").write_text("secret")
    (tmp_path / "prometheus.yml").write_text(told.replace("/tmp/read-token", "token"))
    shutil.copy(ROOT / "deploy/prometheus/faultline.rules.yml", tmp_path)
    check = ["promtool", "check", "config", "prometheus.yml"]
    done = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ── what compose.yml says ────────────────────────────────────────────────────────────────────────


def test_no_port_is_open_to_other_machines() -> None:
    ports = [port for one in SERVICES.values() for port in one.get("ports", ())]
    assert len(ports) == 4
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_every_container_of_ours_has_a_root_that_is_read_only_and_no_capability() -> None:
    assert OURS.keys() == {"migrate", "prepare", *NAMES}
    for one in OURS.values():
        assert one["read_only"]
        assert one["cap_drop"] == ["ALL"]
        assert one["security_opt"] == ["no-new-privileges:true"]


def test_each_image_is_built_by_exactly_one_service_and_ours_is_never_pulled() -> None:
    """Two builds of one tag, side by side, fail on a machine that does not have it yet."""
    built = [one["image"] for one in SERVICES.values() if "build" in one]
    assert built == ["faultline"]
    assert "build" in SERVICES["migrate"], "which is what everything else waits for"
    assert {one["pull_policy"] for one in OURS.values()} == {"never"}


def test_every_component_waits_for_the_migration_and_logs_in_as_itself() -> None:
    assert SERVICES["migrate"]["depends_on"]["postgres"]["condition"] == "service_healthy"
    done = {"condition": "service_completed_successfully"}
    assert SERVICES["prepare"]["depends_on"] == {"migrate": done}
    for name in NAMES:
        assert SERVICES[name]["depends_on"] == {"prepare": done}
        given = SERVICES[name]["environment"]
        assert given["FAULTLINE_DATABASE_URL"] == f"postgresql://{name}@postgres/faultline"
        assert given["PGPASSWORD"] == f"${{{name.upper()}_PASSWORD-not-a-secret}}"
    assert module("deploy/compose/prepare.py").LOGINS.keys() == set(NAMES)


def test_every_password_and_token_can_be_chosen_and_the_default_says_that_it_is_none() -> None:
    text = (ROOT / "compose.yml").read_text()
    chosen = dict(re.findall(r"\$\{(\w+)-([^}]*)\}", text))
    assert all(default.startswith("not-a-secret") for default in chosen.values())
    example = (ROOT / "deploy/compose/env.example").read_text()
    assert set(re.findall(r"^(\w+)=$", example, re.MULTILINE)) == chosen.keys()
    assert not re.search(r"\$\{\w+(:-[^}]*)?\}", text), "an empty one is not the default"
    checked = SERVICES["prepare"]["environment"].keys() | {"POSTGRES_PASSWORD"}
    assert chosen.keys() <= checked, "PostgreSQL's image refuses an empty one by itself"
    assert SERVICES["grafana"]["depends_on"] == SERVICES["api"]["depends_on"]


@pytest.mark.parametrize("name", ["API_PASSWORD", "FAULTLINE_API_TOKEN", "GRAFANA_PASSWORD"])
def test_a_line_of_env_that_was_not_filled_in_is_refused(name: str) -> None:
    chosen = {f"{login.upper()}_PASSWORD": "chosen" for login in NAMES}
    done = subprocess.run(
        [sys.executable, "deploy/compose/prepare.py"],
        env={"PATH": os.defpath, **chosen, name: ""},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    said = f"empty: {name}; fill them in in .env, or leave them out of it\n"
    assert (done.returncode, done.stderr) == (1, said)


def test_whatever_is_mounted_exists_and_is_read_only() -> None:
    for one in SERVICES.values():
        for source, _, *mode in (v.split(":") for v in one.get("volumes", ())):
            if source.startswith("."):
                assert (ROOT / source).exists()
                assert mode == ["ro"]
            else:
                assert source in COMPOSE["volumes"]


def test_a_container_is_given_more_time_than_its_program_takes_to_drain() -> None:
    def seconds(service: str) -> float:
        return float(SERVICES[service]["stop_grace_period"].removesuffix("s"))

    needed = WorkerOptions().grace_seconds + ENDING_SECONDS + 5
    assert seconds("worker") >= needed
    for name in ("api", "inspector"):
        assert seconds(name) >= inspect.signature(api).parameters["grace_seconds"].default + 5


def test_grafana_is_given_its_dashboards_where_it_looks_for_them() -> None:
    mounts = dict(v.split(":")[:2] for v in SERVICES["grafana"]["volumes"])
    provided = yaml.safe_load((ROOT / "deploy/grafana/provisioning.yml").read_text())
    assert mounts["./deploy/grafana"] == provided["providers"][0]["options"]["path"]
    assert list((ROOT / "deploy/grafana").glob("*.json"))
    source = yaml.safe_load((ROOT / "deploy/grafana/datasource.yml").read_text())["datasources"][0]
    assert urlsplit(source["url"]).netloc == "prometheus:9090"


# ── the health check ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("python faultline api --host 0.0.0.0", "http://127.0.0.1:8000/health"),
        ("faultline api shop:app --port 80", "http://127.0.0.1:80/health"),
        ("faultline inspector serve --host=:: --port=81", "http://127.0.0.1:81/health"),
        ("faultline inspector serve --host fd00::1", "http://[fd00::1]:8001/health"),
        ("faultline worker shop:app --metrics-port 9464", "http://127.0.0.1:9464/readyz"),
        ("docker-init -- faultline reconcile --metrics-port=1", "http://127.0.0.1:1/readyz"),
        ("faultline worker shop:app", None),
        ("faultline migrate", None),
    ],
)
def test_the_health_check_asks_whatever_runs(words: str, asked: str | None) -> None:
    assert module("deploy/image/health.py").address(words.split()) == asked


def test_the_health_check_knows_the_ports_that_are_taken_when_none_is_named() -> None:
    ports = {
        "api": str(inspect.signature(api).parameters["port"].default),
        "inspector": str(inspect.signature(serve).parameters["port"].default),
    }
    assert ports == module("deploy/image/health.py").PORTS


# ── the logins ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def server() -> Iterator[Server]:
    """One of this test's own: logins belong to a whole server."""
    with Server.temporary(options={"fsync": "off"}) as server:
        with psycopg.connect(server.url, autocommit=True) as conn:
            migrate(conn, "faultline")
        yield server


def prepare(server: Server, password: str) -> None:
    subprocess.run(
        [sys.executable, "deploy/compose/prepare.py", "deploy/example/tables.sql"],
        env={
            **os.environ,
            "FAULTLINE_DATABASE_URL": server.url,
            **{f"{name.upper()}_PASSWORD": f"{password}-{name}" for name in NAMES},
        },
        cwd=ROOT,
        check=True,
    )


def login(server: Server, name: str, password: str) -> psycopg.Connection[Any]:
    parts = urlsplit(server.url)
    place = f"{name}:{password}-{name}@{parts.hostname}:{parts.port}"
    return psycopg.connect(urlunsplit(parts._replace(netloc=place)), autocommit=True)


def test_each_login_may_do_its_part_and_no_more_and_has_the_password_given_last(
    server: Server,
) -> None:
    may = {  # of each login, what it may do
        "select faultline.enqueue('charge')": {"api", "reconciler", "worker"},
        "select faultline.leave('w')": {"reconciler", "worker"},
        "select * from faultline.jobs": {"api", "inspector"},
        "select * from faultline.reconcile()": {"api", "reconciler", "worker"},
        "select faultline.pause('default', false)": {"api"},
        "insert into charge (order_id) values (7)": {"worker"},
        "select * from faultline.job": set(),
        "delete from faultline.lease": set(),
        "create table public.mine ()": set(),
    }
    prepare(server, "first")
    prepare(server, "second")
    with pytest.raises(psycopg.OperationalError, match="password"):
        login(server, "worker", "first")
    found: dict[str, set[str]] = {statement: set() for statement in may}
    for name in NAMES:
        with login(server, name, "second") as conn:
            for statement in may:
                try:
                    conn.execute(statement)  # type: ignore[call-overload]
                    found[statement].add(name)
                except psycopg.errors.InsufficientPrivilege:
                    pass
    assert found == may


def test_each_login_is_in_the_roles_that_the_chart_wants_for_it() -> None:
    wanted = {file.removesuffix(".yaml"): {*roles} for file, roles, _ in DEPLOYMENTS}
    logins = module("deploy/compose/prepare.py").LOGINS
    given = {
        name.replace("worker", "workers"): {
            group.removeprefix("faultline_") for group in groups if group.startswith("faultline_")
        }
        for name, groups in logins.items()
    }
    assert given == wanted


def test_a_group_that_a_login_should_not_have_is_taken_from_it(server: Server) -> None:
    prepare(server, "some")
    with psycopg.connect(server.url, autocommit=True) as conn:
        conn.execute("grant faultline_operator to inspector")
        prepare(server, "some")
        groups = conn.execute(
            "select json_agg(roleid::regrole::text order by 1) from pg_auth_members"
            " where member = 'inspector'::regrole"
        ).fetchone()
    assert groups == (["faultline_reader", "pg_read_all_stats"],), json.dumps(groups)
