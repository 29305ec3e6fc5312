"""A ground whose producers and workers export their spans to a collector."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.collector import Collector, Span
from tests.stage import Stage
from tests.workers import PATH, Ground, Process

APP = "tests.traced:app"
BLOCKED = "stale_write_blocked"


class Scene(Ground):
    """A ground whose processes export their spans."""

    def __init__(self, stage: Stage, collector: Collector) -> None:
        super().__init__(stage)
        self.collector = collector
        self.span, self.spans = collector.span, collector.spans

    def worker(self, *arguments: str, **variables: str) -> Process:
        environment = {**self.collector.environment, **variables}
        return Process(self.stage.url, *arguments, app=APP, **environment)

    def work(self, jobs: int, *arguments: str, **variables: str) -> None:
        """A worker that ends after so many attempts, and exports what it has by then."""
        with self.worker("--max-jobs", str(jobs), *arguments, **variables) as worker:
            assert worker.ended() == 0
            assert "traced" not in "".join(worker.errors)

    def produce(self, code: str, **variables: str) -> Any:
        """Run this in a producer's process, and give what it puts into `said`."""
        script = f"import json; from tests.traced import *; said = None\n{code}"
        done = subprocess.run(
            [sys.executable, "-c", f"{script}\nprint(json.dumps(said, default=str))"],
            env={
                **os.environ,
                "PYTHONPATH": PATH,
                "FAULTLINE_DATABASE_URL": self.stage.url,
                **self.collector.environment,
                **variables,
            },
            check=True,
            capture_output=True,
            text=True,
        )
        assert done.stderr == ""
        return json.loads(done.stdout)

    def of(self, operation: str, job_id: Any, token: int = 1) -> Span:
        """The span of one operation on one attempt."""
        (found,) = [
            span
            for span in self.spans()
            if span.attributes.get("messaging.operation.name") == operation
            and span.attributes.get("faultline.job_id") == str(job_id)
            and span.attributes.get("faultline.token") == token
        ]
        return found

    def above(self, span: Span) -> list[str]:
        """The ids of its parent, of that one's parent, …"""
        spans = {each.span_id: each for each in self.spans()}
        ids = [span.parent_id]
        while ids[-1] in spans:
            ids.append(spans[ids[-1]].parent_id)
        return ids


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector.running() as collector:
        yield collector


@pytest.fixture
def scene(stage: Stage, collector: Collector) -> Scene:
    collector.forget()
    return Scene(stage, collector)
