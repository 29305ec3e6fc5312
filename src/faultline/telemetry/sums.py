"""Numbers that only add up: what a tally keeps, what a child passes on, what is exposed.

A key is the metric's name and then its labels. Values, no lock and no clock: whoever keeps them
sees to that.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Sequence
from typing import Self

from faultline.telemetry.catalogue import METRICS, Metric

Key = tuple[str, ...]
FEW = 8  # values, below which each is looked up by itself


class Histogram:
    """How many values were at most each bound; the last count is of those above all."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, values: list[float]) -> None:
        """Many at once. In a batch most are alike: so those between the same two bounds are counted
        together, the least first, and the others looked at again."""
        self.total += sum(values)
        counts, bounds = self.counts, self.bounds
        while len(values) >= FEW:
            number = bisect_left(bounds, min(values))
            if number == len(bounds) or max(values) <= bounds[number]:
                counts[number] += len(values)
                return
            bound = bounds[number]
            above = [value for value in values if value > bound]
            counts[number] += len(values) - len(above)
            values = above
        for value in values:
            counts[bisect_left(bounds, value)] += 1

    def merge(self, other: Histogram) -> None:
        """Both together."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    def cumulative(self) -> list[tuple[str, float]]:
        """As Prometheus has it: how many were at most so much."""
        found, so_far = [], 0
        bounds = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        for bound, count in zip(bounds, self.counts, strict=True):
            so_far += count
            found.append((bound, float(so_far)))
        return found


class Sums:
    """Counters, histograms and gauges by key."""

    def __init__(self) -> None:
        self.counters: dict[Key, float] = {}
        self.histograms: dict[Key, Histogram] = {}
        self.gauges: dict[Key, float] = {}

    def count(self, metric: Metric, number: float, *labels: str) -> None:
        """So many more."""
        key = (metric.name, *labels)
        self.counters[key] = self.counters.get(key, 0.0) + number

    def observe(self, metric: Metric, values: list[float], *labels: str) -> None:
        """These were seen."""
        key = (metric.name, *labels)
        found = self.histograms.get(key)
        if found is None:
            found = self.histograms[key] = Histogram(metric.buckets)
        found.add(values)

    def merge(self, other: Sums, *, gauges: bool = True) -> None:
        """Both together: gauges are added too, but of moments the latest is kept."""
        for key, number in other.counters.items():
            self.counters[key] = self.counters.get(key, 0.0) + number
        for key, histogram in other.histograms.items():
            if key not in self.histograms:
                self.histograms[key] = Histogram(histogram.bounds)
            self.histograms[key].merge(histogram)
        for key, number in other.gauges.items() if gauges else ():
            before = self.gauges.get(key, 0.0)
            is_moment = key[0].endswith("_timestamp_seconds")
            self.gauges[key] = max(before, number) if is_moment else before + number

    def to_line(self) -> bytes:
        """As it goes through a pipe."""
        histograms = [[key, h.counts, h.total] for key, h in self.histograms.items()]
        counters, gauges = list(self.counters.items()), list(self.gauges.items())
        return json.dumps([counters, histograms, gauges]).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """As it comes out; ValueError if it is none."""
        sums = cls()
        counters, histograms, gauges = json.loads(line)
        sums.counters = {tuple(key): number for key, number in counters}
        sums.gauges = {tuple(key): number for key, number in gauges}
        for key, counts, total in histograms:
            histogram = Histogram(METRICS[key[0]].buckets)
            histogram.counts, histogram.total = counts, total
            sums.histograms[tuple(key)] = histogram
        return sums
