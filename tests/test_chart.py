"""The Helm chart and the plain manifests: what they run is really started; and Helm itself, where
it is installed (`make chart-check`), installs the chart into a stand-in cluster."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from typing import Any

import psycopg
import pytest
import yaml

from faultline import __version__
from faultline.worker.parent import ENDING_SECONDS
from proofs.chart import judging, manifests
from proofs.chart.__main__ import lets_the_migration_through
from proofs.chart.helm import library
from proofs.chart.rendering import CHART, SETS, Refused, Rendered, rendered, values_of
from proofs.chart.values import page, values
from tests.ports import answers, free_port
from tests.stage import DEADLINE_SECONDS, Stage, until
from tests.test_probes import probe
from tests.workers import PATH

Object = dict[str, Any]
needs_helm = pytest.mark.skipif(
    library() is None or find_spec("kubernetes_validate") is None,
    reason="Helm is not installed: make chart-check does that",
)


def read(name: str) -> list[Object]:
    return list(yaml.safe_load_all((manifests.FOLDER / name).read_text()))


def migration() -> Object:
    [job] = [item for item in read("migrate.yaml") if item["kind"] == "Job"]
    return job


# ── what is written down about it ────────────────────────────────────────────────────────────────


def test_the_manifests_and_the_table_of_values_are_those_of_the_chart() -> None:
    remedy = "run make manifests"
    for name in (*manifests.FILES, "kustomization.yaml"):
        head, _, _ = (manifests.FOLDER / name).read_text().partition("\n")
        assert f"state {manifests.state()}," in head, f"{name}: {remedy}"
    assert (CHART / "README.md").read_text() == page(), remedy


def test_every_value_is_explained_and_the_schema_has_just_these() -> None:
    assert [value.path for value in values() if not value.meaning] == []
    schema = json.loads((CHART / "values.schema.json").read_text())
    known = set(_paths(schema, schema))
    assert {value.path for value in values()} <= known
    leaves = {path for path in known if not any(p.startswith(f"{path}.") for p in known)}
    described = {value.path for value in values()}
    missing = {
        leaf for leaf in leaves if not any(leaf == d or leaf.startswith(f"{d}.") for d in described)
    }
    assert missing == {"global"}, "which is Helm's own"


def _paths(node: Object, schema: Object, above: str = "") -> Iterator[str]:
    if (name := node.get("$ref")) is not None:
        node = schema["$defs"][name.rpartition("/")[2]]
    if "properties" in node:
        assert node["additionalProperties"] is False, above
    for key, below in node.get("properties", {}).items():
        yield f"{above}{key}"
        yield from _paths(below, schema, f"{above}{key}.")


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == __version__


def test_image_and_chart_are_those_that_a_release_pushes() -> None:
    project = tomllib.loads((manifests.ROOT / "pyproject.toml").read_text())["project"]
    repository = project["urls"]["Source"].removeprefix("https://github.com/")
    image = yaml.safe_load((CHART / "values.yaml").read_text())["image"]["repository"]
    assert image == f"ghcr.io/{repository}"
    release = (manifests.ROOT / ".github/workflows/release.yml").read_text()
    assert "tags: ghcr.io/${{ github.repository }}:${{ needs.build.outputs.version }}" in release
    pages = manifests.ROOT / "docs/how-to"
    assert f"`{image}:VERSION`" in (pages / "containers.md").read_text()
    owner = image.rpartition("/")[0]
    assert f"`oci://{owner}/charts/faultline`" in (pages / "kubernetes.md").read_text()
    assert '"oci://ghcr.io/$GITHUB_REPOSITORY_OWNER/charts"' in release
    [container] = migration()["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"{image}:{__version__}"


def test_rules_and_dashboards_of_the_chart_are_no_copies() -> None:
    for path in (CHART / "files").iterdir():
        assert path.is_symlink(), path
        assert path.resolve().is_file(), path


# ── what it runs ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def run(stage: Stage, tmp_path: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], int]]]:
    """Start a container's command here: its arguments, its variables, and a port that is free."""
    started: list[subprocess.Popen[str]] = []

    def begin(container: Object, **given: str) -> tuple[subprocess.Popen[str], int]:
        port = free_port()
        known = {str(p["containerPort"]): str(port) for p in container.get("ports", [])}
        arguments = [known.get(argument, argument) for argument in container["args"]]
        arguments = ["tests.playground:app" if a == "app:app" else a for a in arguments]
        log = (tmp_path / f"{len(started)}.log").open("w")
        process = subprocess.Popen(
            [sys.executable, "-m", "faultline", *arguments],
            env={"PATH": os.defpath, "PYTHONPATH": PATH, **_variables(container, given)},
            stdout=log,
            stderr=log,
            text=True,
        )
        log.close()
        started.append(process)
        return process, port

    yield begin
    for process in started:
        process.kill()
        process.wait(DEADLINE_SECONDS)


def _variables(container: Object, given: dict[str, str]) -> dict[str, str]:
    """As the manifest has them; what comes from a Secret is given, and nothing else may be."""
    found = {}
    for entry in container["env"]:
        found[entry["name"]] = entry["value"] if "value" in entry else given.pop(entry["name"])
    assert not given, "variables that the manifest does not have"
    return found


DEPLOYMENTS = [
    ("api.yaml", ("producer", "reader", "operator"), 2),
    ("inspector.yaml", ("reader",), 1),
    ("reconciler.yaml", ("worker",), 0),
    ("workers.yaml", ("worker",), 0),
]


@pytest.mark.parametrize(("name", "roles", "tokens"), DEPLOYMENTS)
def test_what_a_manifest_runs_answers_the_probes_it_names_and_ends_when_told(
    stage: Stage, run: Any, name: str, roles: tuple[str, ...], tokens: int
) -> None:
    """With a login that has just the roles which the chart's values name for it."""
    [deployment] = [item for item in read(name) if item["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    secrets = {
        entry["name"]: "a token of enough characters" + entry["name"]
        for entry in container["env"]
        if entry["name"].endswith("TOKEN")
    }
    assert len(secrets) == tokens
    with stage.login(*roles) as url:
        process, port = run(container, FAULTLINE_DATABASE_URL=url, **secrets)
        until(lambda: answers(port) or process.poll() is not None, "it listens")
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            path = container[kind]["httpGet"]["path"]
            until(lambda path=path: probe(port, path)[0] == 200, f"{kind}: {path}")
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_SECONDS) == 0


def test_the_migration_makes_an_installation_of_an_empty_database(
    empty_database: str, run: Any
) -> None:
    [container] = migration()["spec"]["template"]["spec"]["containers"]
    process, _ = run(container, FAULTLINE_DATABASE_URL=empty_database)
    assert process.wait(DEADLINE_SECONDS) == 0
    with psycopg.connect(empty_database) as conn:
        assert conn.execute("select count(*) from faultline.jobs").fetchone() == (0,)


def test_a_pod_is_given_more_time_than_its_worker_takes_to_end() -> None:
    """The grace; then handlers that will not end, and a database that does not answer."""
    [deployment] = [item for item in read("workers.yaml") if item["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    arguments = pod["containers"][0]["args"]
    grace = float(arguments[arguments.index("--grace-seconds") + 1])
    assert pod["terminationGracePeriodSeconds"] >= grace + ENDING_SECONDS + 5


# ── with Helm ────────────────────────────────────────────────────────────────────────────────────


@needs_helm
@pytest.mark.parametrize("path", SETS, ids=lambda path: path.name)
def test_a_set_of_values_becomes_objects_that_fit_the_migration_first(path: Path) -> None:
    found = rendered(values_of(path))
    assert found.lint == []
    for version in (judging.VERSIONS[0], judging.VERSIONS[-1]):
        assert list(judging.schemas(found.objects, version)) == []
    assert list(judging.hardened(found.objects)) == []
    for objects in (found.installed, found.upgraded):
        kinds = [item["kind"] for item in objects if not lets_the_migration_through(item)]
        assert (kinds[0], kinds.count("Job")) == ("Job", 1)
    broken = json.loads(json.dumps(found.of("Deployment")[:1]))
    pod = broken[0]["spec"]["template"]["spec"]
    pod["containers"][0]["imagePullPolice"] = "Never"
    del pod["automountServiceAccountToken"]
    assert "imagePullPolice" in "".join(judging.schemas(broken, judging.VERSIONS[0]))
    assert "a token of the cluster" in "".join(judging.hardened(broken))


@needs_helm
def test_the_migration_may_reach_the_database_before_it_starts_and_all_others_as_much() -> None:
    """Also in a namespace that denies everything: the other policies come after the hook."""
    found = rendered(values_of(CHART / "ci" / "production-values.yaml"))
    for objects in (found.installed, found.upgraded):
        assert lets_the_migration_through(objects[0])
        assert objects[1]["kind"] == "Job"
    policy, job = found.installed[:2]
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    [everybody] = [
        item["spec"]
        for item in found.of("NetworkPolicy")
        if item["metadata"]["name"] == "shop-faultline-database"
    ]
    assert policy["spec"]["egress"] == everybody["egress"]
    names, database, tracing = everybody["egress"]
    assert {port["port"] for port in names["ports"]} == {53}
    assert [port["port"] for port in database["ports"]] == [5432, 6432]
    assert database["to"] == [{"ipBlock": {"cidr": "10.20.0.0/24"}}]
    assert [port["port"] for port in tracing["ports"]] == [4317]


@needs_helm
def test_each_pool_of_workers_has_its_own_settings_and_the_defaults_besides(stage: Stage) -> None:
    chart = rendered(values_of(CHART / "ci" / "keda-values.yaml"))
    found = {
        item["metadata"]["labels"]["faultline/pool"]: item["spec"]
        for item in chart.of("Deployment")
        if "faultline/pool" in item["metadata"]["labels"]
    }
    assert {*found} == {"billing", "images", "reports"}
    arguments = {
        name: " ".join(spec["template"]["spec"]["containers"][0]["args"])
        for name, spec in found.items()
    }
    assert "worker shop:app" in arguments["billing"]
    assert "--queues billing,refunds" in arguments["billing"]
    assert "worker shop.images:app" in arguments["images"]
    graces = {n: s["template"]["spec"]["terminationGracePeriodSeconds"] for n, s in found.items()}
    assert graces == {"billing": 50, "images": 320, "reports": 50}
    assert "replicas" not in found["billing"], "it is KEDA's to say"
    assert found["reports"]["replicas"] == 1
    assert len(chart.of("ScaledObject")) == 2
    keda_asks(stage, chart)


@needs_helm
def test_a_pool_runs_where_it_says_with_what_it_says_and_else_as_all_others() -> None:
    chart = rendered(values_of(CHART / "ci" / "keda-values.yaml"))
    pods = {
        item["metadata"]["name"].removeprefix("shop-faultline-"): item["spec"]["template"]["spec"]
        for item in chart.of("Deployment")
    }
    everybody = {"kubernetes.io/os": "linux"}
    billing, images, reports = (pods[f"worker-{n}"] for n in ("billing", "images", "reports"))
    assert billing["nodeSelector"] == pods["api"]["nodeSelector"] == everybody
    assert images["nodeSelector"] == {"example.com/gpu": "true"}, "instead, not as well"
    assert "nodeSelector" not in reports
    taints = {name: [t["key"] for t in pod["tolerations"]] for name, pod in pods.items()}
    assert (taints.pop("worker-images"), {*map(tuple, taints.values())}) == (["gpu"], {("jobs",)})
    assert [name for name, pod in pods.items() if "affinity" in pod] == ["worker-images"]

    container = images["containers"][0]
    assert [source.popitem()[1]["name"] for source in container["envFrom"]] == [
        *("shop", "shop-images-store")
    ]
    found = {entry["name"]: entry for entry in container["env"]}
    assert found["SHOP_REGION"]["value"] == "north"
    secret = {"name": "shop-images", "key": "model-key"}
    assert found["SHOP_MODEL_KEY"]["valueFrom"]["secretKeyRef"] == secret
    for pod, own in (
        (images, {"name": "shop-images", "key": "database-url"}),
        (billing, {"name": "faultline-database", "key": "worker-url"}),
    ):
        [url] = [e for e in pod["containers"][0]["env"] if e["name"] == "FAULTLINE_DATABASE_URL"]
        assert url["valueFrom"]["secretKeyRef"] == own


@needs_helm
def test_a_pool_that_names_nothing_has_what_the_defaults_name() -> None:
    taint = {"key": "jobs", "operator": "Exists"}
    defaults = {
        "nodeSelector": {"a": "1"},
        "affinity": {"nodeAffinity": {}},
        "tolerations": [taint],
        "extraEnv": [{"name": "A", "value": "1"}],
    }
    nothing = {"nodeSelector": None, "affinity": {}, "tolerations": [], "extraEnv": []}
    pools = [{"name": "one"}, {"name": "two", **nothing}]
    chart = rendered(
        {"nodeSelector": {"b": "2"}, "workers": {"defaults": defaults, "pools": pools}}
    )
    one, two = (
        item["spec"]["template"]["spec"]
        for name in ("one", "two")
        for item in chart.of("Deployment")
        if item["metadata"]["name"] == f"shop-faultline-worker-{name}"
    )
    assert (one["nodeSelector"], two["nodeSelector"]) == ({"a": "1"}, {"b": "2"})
    assert (one["affinity"], one["tolerations"]) == ({"nodeAffinity": {}}, [taint])
    assert not {"affinity", "tolerations"} & {*two}
    variables = [{e["name"] for e in pod["containers"][0]["env"]} for pod in (one, two)]
    assert variables[0] - variables[1] == {"A"}


def test_a_pool_can_say_whatever_the_defaults_can() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    workers = schema["properties"]["workers"]["properties"]
    of_a_pool = dict(workers["pools"]["items"]["properties"])
    del of_a_pool["name"]
    assert of_a_pool == workers["defaults"]["properties"]


def keda_asks(stage: Stage, chart: Rendered) -> None:
    """What KEDA asks is a question that a reader may ask, and whose answer is a number."""
    stage.enqueue("charge", queue="billing")
    for item in chart.of("ScaledObject"):
        for trigger in item["spec"]["triggers"]:
            with stage.login("reader") as url, psycopg.connect(url) as conn:
                row = conn.execute(trigger["metadata"]["query"]).fetchone()
            assert row is not None
            assert float(row[0]) >= 0, "also when nothing waits"


@needs_helm
def test_the_values_that_the_page_shows_are_taken() -> None:
    page = (manifests.ROOT / "docs/how-to/kubernetes.md").read_text()
    shown = re.findall(r"^( *)```yaml\n(.*?)^\1```$", page, re.MULTILINE | re.DOTALL)
    assert len(shown) >= 2
    for _, text in shown:
        values = yaml.safe_load(dedent(text).replace("sha256:…", f"sha256:{'0' * 64}"))
        found = rendered(values)
        assert list(judging.schemas(found.objects, judging.VERSIONS[-1])) == []
        names = " ".join(item["metadata"]["name"] for item in found.of("Deployment"))
        assert [p["name"] for p in values["workers"]["pools"] if p["name"] not in names] == []


@needs_helm
def test_a_value_that_is_not_known_is_refused() -> None:
    with pytest.raises(Refused, match="wrokers"):
        rendered({"wrokers": {}})


@needs_helm
def test_a_pool_cannot_have_a_minimum_above_its_maximum() -> None:
    bounds = {"enabled": True, "minReplicas": 3, "maxReplicas": 3}
    pool = {"name": "a", "queues": ["a"]}
    for key in ("autoscaling", "keda"):
        rendered({"workers": {"pools": [{**pool, key: bounds}]}})
        crossed = {**pool, key: {**bounds, "minReplicas": 4}}
        with pytest.raises(Refused, match=rf"worker-a: {key}.minReplicas is more"):
            rendered({"workers": {"pools": [crossed]}})


def test_the_migration_ends_before_helm_loses_its_patience() -> None:
    """Which is 5 minutes, when nothing else is said."""
    assert migration()["spec"]["activeDeadlineSeconds"] < 5 * 60
