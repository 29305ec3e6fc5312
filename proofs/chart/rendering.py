"""A chart with values, as the objects that would reach a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "faultline"
SETS = tuple(sorted((CHART / "ci").glob("*-values.yaml")))
TIMEOUT_SECONDS = 120

Object = dict[str, Any]


class Refused(Exception):
    """Helm said no, before anything reached the cluster."""


@dataclass(frozen=True)
class Rendered:
    """What Helm gave to the cluster, in its order."""

    lint: list[Object]
    installed: list[Object]
    upgraded: list[Object]
    tested: list[Object]

    @property
    def objects(self) -> list[Object]:
        """All there are."""
        return [*self.installed, *self.tested]

    def of(self, kind: str) -> list[Object]:
        """Those of a kind."""
        return [item for item in self.objects if item["kind"] == kind]


def values_of(path: Path) -> Object:
    """One set of values."""
    found: Object = yaml.safe_load(path.read_text())
    return found


def rendered(values: Object, *, release: str = "shop", version: str = "1.34.0") -> Rendered:
    """Install, upgrade and test the chart with these values."""
    asked = {"chart": str(CHART), "release": release, "values": values, "version": version}
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [sys.executable, "-m", "proofs.chart.trying"],
            input=json.dumps(asked) + "\n",
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={"PATH": os.defpath, "HOME": home, "HELM_DRIVER": "memory"},
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    said = json.loads(done.stdout.splitlines()[-1])
    if "refused" in said:
        raise Refused(said["refused"])
    return Rendered(**said)


def pods(objects: list[Object]) -> list[tuple[str, Object]]:
    """Every Pod's name and spec, of whatever makes it."""
    found = []
    for item in objects:
        spec = item if item["kind"] == "Pod" else item.get("spec", {}).get("template")
        if spec is not None and "containers" in spec.get("spec", {}):
            found.append((f"{item['kind']} {item['metadata']['name']}", spec["spec"]))
    return found
