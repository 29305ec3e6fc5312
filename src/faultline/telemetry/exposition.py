"""The numbers for Prometheus, as metric families. Needs the extra `metrics`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from faultline.telemetry.catalogue import METRICS
from faultline.telemetry.sums import Sums

PREFIX = "faultline_"


class Exposition(Collector):
    """A collector for prometheus_client: what `look` answers, whenever somebody scrapes."""

    def __init__(self, look: Callable[[], Sums]) -> None:
        self._look = look

    def collect(self) -> Iterator[Metric]:
        """One family for each metric that has a number."""
        yield from families(self._look())

    def describe(self) -> Iterable[Metric]:
        """Nothing: else registering would look."""
        return []


class Beside(Collector):
    """Ours, and with them whatever the process has in the default registry: the handlers' own
    metrics, and those of the process itself."""

    def __init__(self, ours: Collector) -> None:
        self._ours = ours

    def collect(self) -> Iterator[Metric]:
        """Each name once, also if ours are registered there too."""
        yield from self._ours.collect()
        for family in REGISTRY.collect():
            if not family.name.startswith(PREFIX):
                yield family


def families(sums: Sums) -> Iterator[Metric]:
    """As prometheus_client wants them, in the order of the catalogue."""
    kinds: tuple[dict[Any, Any], ...] = (sums.counters, sums.gauges, sums.histograms)
    values: dict[str, list[tuple[list[str], Any]]] = {}
    for numbers in kinds:
        for (name, *labels), value in numbers.items():
            values.setdefault(name, []).append((labels, value))
    for metric in METRICS.values():
        if metric.name not in values:
            continue
        make = {
            "counter": CounterMetricFamily,
            "gauge": GaugeMetricFamily,
            "histogram": HistogramMetricFamily,
        }[metric.kind]
        family = make(metric.name, metric.help, labels=metric.labels)
        for labels, value in sorted(values[metric.name], key=lambda item: item[0]):
            if metric.kind == "histogram":
                family.add_metric(labels, value.cumulative(), value.total)
            else:
                family.add_metric(labels, value)
        yield family
