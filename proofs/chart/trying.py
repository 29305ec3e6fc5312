"""A process with Helm in it: reads a chart and values, and says what Helm made of them.

    python -m proofs.chart.trying        one line of JSON in, one line of JSON out

A process of its own, since Helm is a Go program that takes its settings from the environment that
the process was started with.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from proofs.chart.cluster import Cluster
from proofs.chart.helm import Helm, HelmFailed

WARNING = 2  # and above; below are hints


def tried(chart: Path, release: str, values: dict[str, Any], version: str) -> dict[str, Any]:
    """Linted, installed, upgraded and tested."""
    with Cluster(version).running() as cluster:
        helm = Helm(cluster)
        lint = [said for said in helm.lint(chart) if said["Severity"] >= WARNING]
        try:
            helm.install(release, chart, values)
        except HelmFailed as error:
            return {"lint": lint, "refused": str(error)}
        installed = len(cluster.given)
        helm.upgrade(release, chart, values)
        upgraded = len(cluster.given)
        helm.test(release)
        return {
            "lint": lint,
            "installed": cluster.given[:installed],
            "upgraded": cluster.given[installed:upgraded],
            "tested": cluster.given[upgraded:],
        }


if __name__ == "__main__":
    asked = json.loads(sys.stdin.readline())
    print(
        json.dumps(
            tried(Path(asked["chart"]), *(asked[k] for k in ("release", "values", "version")))
        )
    )
