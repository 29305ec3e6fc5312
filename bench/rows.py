"""What a run says: rows with a figure, the bar it is held to, and whether that is met.

A row without a bar only tells; one that cannot be measured here says why, and counts as neither met
nor missed. A measurement that failed counts as missed: nobody knows better.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Bar:
    """A figure must be at least, or at most, this."""

    least: float | None = None
    most: float | None = None

    def met(self, figure: float) -> bool:
        """Whether the figure, as it was measured and not as it is shown, passes."""
        return (self.least is None or figure >= self.least) and (
            self.most is None or figure <= self.most
        )

    def __str__(self) -> str:
        return f"≥ {self.least:.3g}" if self.least is not None else f"≤ {self.most:g}"


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    scenario: str
    what: str
    figure: float | None
    unit: str  # of the figure: "of the limit", "ms", …
    bar: Bar | None = None
    facts: dict[str, Any] = field(default_factory=dict)  # what the figure was made from
    measured: str = ""  # the same, for people
    skipped: str | None = None
    failed: bool = False  # it was to be measured, and `skipped` says what went wrong

    @property
    def met(self) -> bool | None:
        """None: there is nothing to meet."""
        if self.failed:
            return False
        if self.bar is None or self.figure is None:
            return None
        return self.bar.met(self.figure)

    def as_json(self) -> dict[str, Any]:
        """For the file and the last line."""
        return {
            **asdict(self),
            "bar": str(self.bar) if self.bar is not None else None,
            "met": self.met,
        }


def failed(scenario: str, error: BaseException) -> Row:
    """A scenario that broke off."""
    why = str(error).partition("\n")[0] or type(error).__name__
    return Row(scenario, scenario, None, "", skipped=f"failed: {why}", failed=True)


def skipped(scenario: str, what: str, why: str) -> Row:
    """A row that could not be measured here."""
    return Row(scenario, what, None, "", skipped=why)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Of the medians."""
    return statistics.median(ours) / statistics.median(theirs)


def paired(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the ratios of each turn: what changes within minutes hits both of a turn."""
    return statistics.median(our / their for our, their in zip(ours, theirs, strict=True))


def against(ours: Sequence[float], theirs: Sequence[float], unit: str = "jobs/s") -> str:
    """What a ratio was made from, for people: the medians."""
    return f"{statistics.median(ours):,.0f} to {statistics.median(theirs):,.0f} {unit}"


def percentile(values: Sequence[float], part: float) -> float:
    """The value that this part of them does not pass."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def whole(values: Sequence[float]) -> list[int]:
    """For facts: rates are not known to a fraction."""
    return [round(value) for value in values]
