"""A real Prometheus: its rules checked by promtool, and a server that scrapes what a test runs."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

from tests.ports import answers, free_port
from tests.stage import DEADLINE_SECONDS, until

RULES = Path(__file__).parent.parent / "deploy" / "prometheus" / "faultline.rules.yml"

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="there is no promtool (Debian: prometheus)"
)
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="there is no prometheus (Debian: prometheus)"
)


class Prometheus:
    """Scrapes these ports of this machine every second, with the project's own rules."""

    def __init__(self, folder: Path, targets: dict[str, int]) -> None:
        self.port = free_port()
        config = {
            "global": {
                "scrape_interval": "1s",
                "scrape_timeout": "1s",
                "evaluation_interval": "1s",
            },
            "rule_files": [str(RULES)],
            "scrape_configs": [
                {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
                for name, port in targets.items()
            ],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._log = (folder / "log").open("w+")
        self.process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def __enter__(self) -> Self:
        until(lambda: answers(self.port), "Prometheus listens")
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(DEADLINE_SECONDS)
        self._log.close()

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer that has to be a success."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=DEADLINE_SECONDS) as answer:
            body = json.load(answer)
        assert body["status"] == "success", body
        return body["data"]

    def values(self, query: str) -> list[float]:
        """What a query answers, without what is no number."""
        data = self.ask("query", query=query)
        assert data["resultType"] == "vector", query
        found = [float(series["value"][1]) for series in data["result"]]
        return [value for value in found if not math.isnan(value)]

    def firing(self) -> set[str]:
        """The alerts that fire."""
        alerts = self.ask("alerts")["alerts"]
        return {a["labels"]["alertname"] for a in alerts if a["state"] == "firing"}
