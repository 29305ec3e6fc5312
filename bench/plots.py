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
    rows = [row for row in report["rows"] if row["bar"] and row["figure"] is not None]
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
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
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


# ── peers ────────────────────────────────────────────────────────────────────────────────────────


def _peers(report: dict[str, Any]) -> list[Plot]:
    """The figures of every peer, and the bars."""
    plots: list[Plot] = []
    for part, title, unit in (
        ("one", "drain of no-op jobs, one worker", "jobs/s"),
        ("two", "drain of no-op jobs, two workers", "jobs/s"),
        ("bulk", "bulk enqueue", "jobs/s"),
        ("p50_ms", "pickup latency at 50 jobs/s, p50", "ms"),
        ("p99_ms", "pickup latency at 50 jobs/s, p99", "ms"),
    ):
        rows = [row for row in report["peers"] if part in row["medians"]]
        if rows:
            drawing = partial(_ranked, rows=rows, part=part, unit=unit)
            plots.append((part, title, 1.1 + 0.34 * len(rows), drawing))
    return plots + _bench(report)


def _ranked(axes: Axes, rows: list[dict[str, Any]], part: str, unit: str) -> None:
    """A bar for each peer, the best on top, every round as a dot."""
    rows = sorted(rows, key=lambda row: float(row["medians"][part]), reverse=unit == "ms")
    most = max(float(row["medians"][part]) for row in rows)
    for place, row in enumerate(rows):
        median = float(row["medians"][part])
        axes.barh(place, median, 0.6, color=OURS if row["peer"].startswith("Fault") else OTHERS)
        rounds = row["rounds"][part]
        axes.scatter(rounds, [place] * len(rounds), s=9, color=INK, zorder=3, lw=0)
        shown = f"{median:,.0f}" if median >= 100 else f"{median:.1f}"
        axes.annotate(
            shown,
            (max(median, *rounds), place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    axes.set_yticks(range(len(rows)), [row["peer"] for row in rows])
    axes.set_xlim(0, 1.15 * most)
    axes.set_xlabel(unit)
    axes.tick_params(axis="y", length=0)


# ── soak ─────────────────────────────────────────────────────────────────────────────────────────


def _soak(report: dict[str, Any]) -> list[Plot]:
    """Rate, latency and sizes over time."""
    windows = report["windows"]
    at = [window["seconds"] for window in windows]
    lines: tuple[tuple[str, str, str, dict[str, list[Any]]], ...] = (
        ("rate", "rate of endings", "jobs/s", {"": [w["jobs_per_second"] for w in windows]}),
        (
            "pickup",
            "pickup latency",
            "ms",
            {part: [w[f"{part}_ms"] for w in windows] for part in ("p50", "p99")},
        ),
        (
            "sizes",
            "hot tables with their indexes",
            "MB",
            {name: [w["hot_mb"][name] for w in windows] for name in windows[0]["hot_mb"]},
        ),
    )
    return [
        (part, title, 2.8, partial(_lines, at=at, lines=named, up=unit))
        for part, title, unit, named in lines
    ] + _bench(report)


def _lines(axes: Axes, at: list[float], lines: dict[str, list[Any]], up: str) -> None:
    # A window without a figure is a gap.
    for (name, values), colour in zip(lines.items(), (OURS, MISSED, OTHERS), strict=False):
        axes.plot(at, values, color=colour, lw=1.6, label=name)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds")
    axes.set_ylabel(up)
    axes.grid(axis="y", color=GRID, lw=0.7)
    if len(lines) > 1:
        axes.legend(frameon=False)


PLOTS: dict[str, Callable[[dict[str, Any]], list[Plot]]] = {"peers": _peers, "soak": _soak}
