"""Rendered objects against what they have to be; each judge answers with what is wrong.

schemas      Kubernetes' own, strictly, in several versions
custom       the schemas of KEDA and of the Prometheus operator (npm; no field is unknown to them)
rules        promtool, on the rules as they are in the PrometheusRule
hardened     ours: no root, nothing to write to, no token, no secret but by reference
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from proofs.chart.rendering import ROOT, Object, pods

VERSIONS = ("1.28", "1.31", "1.34", "1.37")
CUSTOM = ("keda.sh/", "monitoring.coreos.com/")
MODELS = (
    "@kubernetes-models/keda@2.0.0",
    "@kubernetes-models/prometheus-operator@6.0.0",
    "typescript@5.9.2",
)
NODE = ROOT / ".venv" / "chart-node"
TIMEOUT_SECONDS = 300


def is_custom(item: Object) -> bool:
    """Whether it is none of Kubernetes' own."""
    return str(item["apiVersion"]).startswith(CUSTOM)


def schemas(objects: list[Object], version: str) -> Iterator[str]:
    """Kubernetes' own objects, in one version; a field that the schema does not know is wrong."""
    kubernetes_validate = import_module("kubernetes_validate")  # only `make chart-check` needs it
    for item in objects:
        if not is_custom(item):
            try:
                kubernetes_validate.validate(item, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                where = ".".join(map(str, error.path))
                yield f"{_name(item)} in {version}: {where}: {error.message}"


def custom(objects: list[Object]) -> Iterator[str]:
    """The others, with the models that npm has of them."""
    chosen = [item for item in objects if is_custom(item)]
    script = Path(__file__).with_name("custom.mjs")
    done = subprocess.run(
        ["node", script.name],
        cwd=_with_models(script),
        input=json.dumps(chosen),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=True,
    )
    yield from json.loads(done.stdout)


def can_judge_custom() -> bool:
    """Whether this machine has what that needs."""
    return shutil.which("npm") is not None and shutil.which("node") is not None


def _with_models(script: Path) -> Path:
    """A folder with the models, made once, and the script beside them."""
    if not (NODE / ".ready").exists():
        NODE.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--silent", *MODELS]
        subprocess.run(command, cwd=NODE, check=True, timeout=TIMEOUT_SECONDS)
        (NODE / ".ready").touch()
    shutil.copy(script, NODE)
    return NODE


def rules(objects: list[Object]) -> Iterator[str]:
    """What promtool says of the rules in every PrometheusRule."""
    for item in objects:
        if item["kind"] != "PrometheusRule":
            continue
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            yaml.safe_dump(item["spec"], file)
            file.flush()
            command = ["promtool", "check", "rules", file.name]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            yield f"{_name(item)}: {done.stdout}{done.stderr}"


def hardened(objects: list[Object]) -> Iterator[str]:
    """What no schema asks for."""
    for item in objects:
        if item["kind"] == "Secret":
            yield f"{_name(item)}: secrets are only referred to"
    for name, pod in pods(objects):
        wanted: list[tuple[Any, Any, str]] = [
            (pod.get("automountServiceAccountToken"), False, "a token of the cluster"),
            (pod["securityContext"].get("runAsNonRoot"), True, "root"),
            (pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault", "any system call"),
        ]
        for container in pod["containers"]:
            context = container["securityContext"]
            wanted += [
                (context.get("readOnlyRootFilesystem"), True, "a root it can write to"),
                (context.get("allowPrivilegeEscalation"), False, "more rights than it began with"),
                (context["capabilities"].get("drop"), ["ALL"], "capabilities"),
                (bool(container["resources"]["limits"].get("memory")), True, "all memory"),
                (_plain_secrets(container), [], "a secret that is written down"),
            ]
        yield from (f"{name} has {what}" for found, right, what in wanted if found != right)


def _plain_secrets(container: Object) -> list[str]:
    words = ("URL", "TOKEN", "PASSWORD")
    return [
        entry["name"]
        for entry in container.get("env", [])
        if entry["name"].startswith("FAULTLINE_") and entry["name"].endswith(words)
        if "value" in entry
    ]


def _name(item: Object) -> str:
    return f"{item['kind']} {item['metadata']['name']}"
