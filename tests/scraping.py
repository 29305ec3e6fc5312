"""What Prometheus would get: a scrape over HTTP, read with prometheus_client's own parser."""

from __future__ import annotations

import urllib.request
from dataclasses import dataclass
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families

from tests.stage import DEADLINE_SECONDS, until
from tests.workers import Process


@dataclass(frozen=True)
class Scrape:
    """The samples, by name and labels."""

    samples: dict[tuple[str, frozenset[tuple[str, str]]], float]
    kinds: dict[str, str]

    @classmethod
    def read(cls, text: str) -> Self:
        families = list(text_string_to_metric_families(text))
        found: dict[Any, float] = {}
        for family in families:
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in found, f"{key} is there twice"
                found[key] = sample.value
        return cls(found, {family.name: family.type for family in families})

    @classmethod
    def of(cls, port: int) -> Self:
        url = f"http://127.0.0.1:{port}/metrics"
        with urllib.request.urlopen(url, timeout=DEADLINE_SECONDS) as answer:
            return cls.read(answer.read().decode())

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.samples}

    def sum(self, name: str, **labels: str) -> float:
        """Of all that have these labels; 0 if there is none."""
        wanted = set(labels.items())
        return sum(
            value
            for (n, has), value in self.samples.items()
            if n == f"faultline_{name}" and wanted <= has
        )


def port_of(worker: Process) -> int:
    """Where it answers Prometheus; it was started with --metrics-port 0."""
    return int(worker.until("metrics_served")["port"])


def until_counted(port: int, name: str, number: float, **labels: str) -> Scrape:
    """Scrape until it says so much; more is wrong."""
    last: list[Scrape] = []

    def counted() -> bool:
        last[:] = [Scrape.of(port)]
        return last[0].sum(name, **labels) >= number

    until(counted, f"{name} {labels} is {number}")
    assert last[0].sum(name, **labels) == number, (name, labels)
    return last[0]
