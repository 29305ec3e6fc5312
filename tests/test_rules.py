"""Rules and dashboards: every name in them exists, every alert is tested and has its runbook, and
every query returns data from a real Prometheus that scrapes a real installation under load."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from faultline.telemetry.catalogue import METRICS
from tests.ports import free_port
from tests.prometheus import RULES, Prometheus, needs_prometheus, needs_promtool
from tests.serving import Serving
from tests.stage import DEADLINE_SECONDS, Stage, until
from tests.workers import Ground, Process

ROOT = Path(__file__).parent.parent
BOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
RUNBOOKS = ROOT / "docs" / "how-to" / "runbooks.md"
VARIABLE = re.compile(r"\$\w+")
NAME = re.compile(r"\bfaultline_\w+")


def rules(kind: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


def queries() -> list[str]:
    """Of every panel of every dashboard, with its variables filled in."""
    found = []
    for board in BOARDS:
        for panel in json.loads(board.read_text())["panels"]:
            found += [target["expr"] for target in panel.get("targets", ())]
    filled = {"$__rate_interval": "30s", "$queue": ".*", "$namespace": ".*"}
    return [VARIABLE.sub(lambda name: filled[name[0]], query) for query in found]


def base(name: str) -> str:
    """The metric that a series belongs to."""
    for ending in ("_bucket", "_sum", "_count"):
        if name not in METRICS and name.endswith(ending):
            return name.removesuffix(ending)
    return name


def test_every_metric_in_a_rule_or_a_dashboard_exists() -> None:
    texts = [*(rule["expr"] for rule in [*rules("record"), *rules("alert")]), *queries()]
    used = {base(name) for text in texts for name in NAME.findall(text)}
    assert used - METRICS.keys() == set()
    recorded = {rule["record"] for rule in rules("record")}
    assert {n for text in texts for n in re.findall(r"\bfaultline:[\w:]+", text)} <= recorded


def test_every_metric_is_on_a_dashboard() -> None:
    shown = {base(name) for query in queries() for name in NAME.findall(query)}
    told = {"faultline_build_info", "faultline_schema_version", "faultline_queue_depth_capped"}
    told |= {"faultline_queue_paused", "faultline_stale_risk"}  # the score says more
    assert METRICS.keys() - shown == told


def test_every_alert_has_a_severity_and_a_runbook() -> None:
    headings = {
        heading.lower() for heading in re.findall(r"^## (\w+)$", RUNBOOKS.read_text(), re.M)
    }
    source = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
    alerts = {rule["alert"] for rule in rules("alert")}
    assert headings == {name.lower() for name in alerts}
    for rule in rules("alert"):
        assert rule["labels"]["severity"] in ("warning", "critical")
        anchor = rule["alert"].lower()
        page = f"{source}/blob/main/{RUNBOOKS.relative_to(ROOT).as_posix()}"
        assert rule["annotations"]["runbook_url"] == f"{page}#{anchor}", "see docs/releasing.md"
        assert rule["annotations"]["summary"]


def test_every_alert_is_tested_both_firing_and_not_firing() -> None:
    cases = yaml.safe_load(RULES.with_name("faultline.tests.yml").read_text())["tests"]
    seen: dict[str, set[bool]] = {}
    for case in cases:
        for check in case.get("alert_rule_test", ()):
            seen.setdefault(check["alertname"], set()).add(bool(check["exp_alerts"]))
    assert seen == {rule["alert"]: {True, False} for rule in rules("alert")}


def test_no_rule_lets_one_installation_hide_another() -> None:
    """Whatever is aggregated or matched is so by namespace."""
    together = re.compile(r"\b(?:sum|max|min|avg|count|group|by|on)\b(?! *by) *\((?!namespace\b)")
    for rule in [*rules("record"), *rules("alert")]:
        assert not together.findall(rule["expr"]), rule


def test_every_query_of_a_dashboard_is_of_the_chosen_namespaces() -> None:
    for board in BOARDS:
        content = json.loads(board.read_text())
        names = [variable["name"] for variable in content["templating"]["list"]]
        assert names == ["datasource", "namespace", "queue"]
        for panel in content["panels"]:
            for target in panel.get("targets", ()):
                selectors = re.findall(r"\bfaultline_\w+(\{[^}]*\})?", target["expr"])
                assert selectors
                assert all('namespace=~"$namespace"' in chosen for chosen in selectors), target


@needs_promtool
@pytest.mark.parametrize(
    "command",
    [
        ["check", "rules", "faultline.rules.yml"],
        ["test", "rules", "faultline.tests.yml"],
        ["test", "rules", "namespaces.tests.yml"],
        ["check", "config", "prometheus.yml"],
    ],
    ids=" ".join,
)
def test_promtool_finds_nothing_wrong(command: list[str]) -> None:
    done = subprocess.run(
        ["promtool", *command], cwd=RULES.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboards_are_what_their_description_makes() -> None:
    script = ROOT / "deploy" / "grafana" / "boards.py"
    done = subprocess.run([sys.executable, str(script), "--check"], check=False)
    assert done.returncode == 0, "run python deploy/grafana/boards.py"


def test_the_dashboards_can_be_provisioned() -> None:
    uids = set()
    for board in BOARDS:
        content = json.loads(board.read_text())
        uids.add(content["uid"])
        assert content["schemaVersion"] >= 36
        assert content["templating"]["list"][0]["type"] == "datasource"
        assert "id" not in content, "Grafana gives the number"
        panels = [panel for panel in content["panels"] if panel["type"] != "row"]
        assert len({panel["id"] for panel in content["panels"]}) == len(content["panels"])
        for panel in panels:
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["targets"]
            place = panel["gridPos"]
            assert place["x"] + place["w"] <= 24
    assert len(uids) == len(BOARDS) == 2


@needs_prometheus
def test_every_query_of_a_dashboard_and_every_recording_rule_returns_data(
    stage: Stage, tmp_path: Path
) -> None:
    """Two workers of two processes and one that stalls, a reconciler and an API, under load: with
    failures, delays, a poison job, an expired lease and a stale write."""
    ground = Ground(stage)
    ports = {name: free_port() for name in ("workers", "stalled", "reconciler")}

    def metrics(name: str) -> list[str]:
        return ["--metrics-port", str(ports[name])]

    with (
        stage.login("worker", "producer", "operator", "reader") as url,
        Serving(url) as api,
        Prometheus(tmp_path, {**ports, "api": api.client.port}) as prometheus,
        Process(url, *metrics("stalled"), "--queues", "slow") as stalled,
    ):
        slow = stage.enqueue("held_sync", queue="slow", lease_seconds=2)
        ground.until_in(slow, 1)
        zero = 'sum(faultline_stale_writes_rejected_total{job="stalled"})'
        until(lambda: prometheus.values(zero) == [0], "it is scraped before it stalls")
        stalled.stall()
        with (
            Process(
                url, *metrics("workers"), "--queues", "default,slow", "--processes", "2"
            ) as workers,
            _reconciler(url, metrics("reconciler")),
        ):
            counted = 'faultline_jobs_quarantined_total{job="workers"}'
            until(lambda: prometheus.values(counted) == [0], "they are scraped before it dies")
            ground.until_in(slow, 2)
            ground.go(slow, 2)
            ground.go(slow, 1)
            stalled.wake()
            stage.enqueue("kills_its_process")
            left = {*queries(), *(rule["record"] for rule in rules("record"))}

            def all_answered() -> bool:
                _load(api)
                left.difference_update({query for query in left if prometheus.values(query)})
                return not left

            try:
                until(all_answered, "every query returns data")
            except AssertionError as error:
                error.add_note(f"nothing came for: {sorted(left)}")
                raise
            wanted = {"FaultlineStaleWritesRefused", "FaultlineJobsQuarantined"}
            until(lambda: wanted <= prometheus.firing(), "the alerts for what happened fire")
            names = prometheus.ask("label/__name__/values")
            exposed = {base(name) for name in names if name.startswith("faultline_")}
            assert exposed == METRICS.keys(), "all that is documented, and nothing else"
            groups = prometheus.ask("rules")["groups"]
            assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}
            assert workers.process.poll() is None


def _load(api: Serving) -> None:
    """A little of everything."""
    ok = {"task": "add", "payload": {"a": 1, "b": 2}}
    jobs = [
        *(ok, ok, {**ok, "delay_seconds": 0.1}),
        {"task": "fails", "payload": {"message": "no"}, "max_attempts": 2, "backoff_seconds": 0},
        *({"task": "snoozes"}, {"task": "cancels_itself"}),
        {"task": "enqueues_another"},
    ]
    answer = api.client.post("/jobs/batch", {"jobs": jobs})
    assert answer.status == 201, api.written


@contextmanager
def _reconciler(url: str, arguments: list[str]) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "faultline", "reconcile", *arguments],
        env={**os.environ, "FAULTLINE_DATABASE_URL": url},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(DEADLINE_SECONDS)
