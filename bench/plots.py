"""The plots of a benchmark, as SVG files beside its JSON."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")

from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, MUTED, GRID = "#1f2430", "#5d6470", "#d9dce2"
OURS, OTHERS, MISSED = "#1f6feb", "#8b93a1", "#c4441c"
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "faultline",
    "text.parse_math": False,
    "font.size": 10.5,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": MUTED,
    "ytick.color": INK,
}
Draw = Callable[[Axes], None]


def draw(out: Path, name: str, report: dict[str, Any]) -> list[str]:
    """Every plot that the report has the figures for; the names of the files."""
    made: list[str] = []
    foot = (
        f"{report['command']}, {report['at'][:10]}, commit {report['commit']}, "
        f"PostgreSQL {report['postgresql']}, {report['machine']['cores']} cores"
    )
    for part, title, height, drawing in PLOTS.get(name, _bench)(report):
        file = out / f"{name}-{part}.svg"
        with mpl.rc_context(SETTINGS):
            figure = Figure(figsize=(8.4, height), layout="constrained")
            axes = figure.subplots()
            axes.set_title(title, loc="left", fontsize=12)
            drawing(axes)
            figure.supxlabel(foot, fontsize=7.5, color=MUTED, x=0.01, ha="left")
            figure.savefig(file, format="svg", metadata={"Date": None})
        made.append(file.name)
    return made


Plot = tuple[str, str, float, Draw]


def _bench(report: dict[str, Any]) -> list[Plot]:
    """How far each bar is met, and the long drain by the second."""
    rows = [row for row in report["rows"] if row["met"] is not None]
    plots: list[Plot] = []
    if rows:
        plots.append(
            ("bars", "figure and bar", 1.2 + 0.36 * len(rows), lambda axes: _bars(axes, rows))
        )
    for row in report["rows"]:
        if (rates := row["facts"].get("by_second")) is not None:
            drawing = partial(_line, values=rates, across="seconds", up="jobs/s")
            plots.append((row["scenario"], row["what"], 2.8, drawing))
    return plots


def _bars(axes: Axes, rows: list[dict[str, Any]]) -> None:
    """How much of its bar each figure reaches: 1 is the bar, to its right is better."""
    for place, row in enumerate(reversed(rows)):
        part = reached(row)
        colour = OURS if row["met"] else MISSED
        axes.barh(place, min(part, 3.0), 0.6, color=colour)
        text = f"{row['figure']:.3g} ({row['bar']})"
        axes.annotate(
            text,
            (min(part, 3.0), place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
        )
    axes.axvline(1.0, color=INK, lw=1)
    axes.set_yticks(range(len(rows)), [row["what"] for row in reversed(rows)], fontsize=8.5)
    axes.set_xlim(0, 3.6)
    axes.set_xlabel("of the bar (1 = just met; cut off at 3)")
    axes.tick_params(axis="y", length=0)


def reached(row: dict[str, Any]) -> float:
    """Figure over bar, or bar over figure where less is better."""
    bar = float(row["bar"].split()[1])
    figure = float(row["figure"])
    if row["bar"].startswith("≥"):
        return figure / bar
    return 3.0 if figure <= 0 else bar / figure


def _line(axes: Axes, values: list[float], across: str, up: str) -> None:
    axes.plot(range(len(values)), values, color=OURS, lw=1.6)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(axis="y", color=GRID, lw=0.7)


PLOTS: dict[str, Callable[[dict[str, Any]], list[Plot]]] = {}
