"""The plots, as SVG to be put into the page: text stays text, colours are the page's variables.

Each is drawn for a wide and for a narrow screen. matplotlib knows colours only as numbers, so the
variables go through it as numbers that occur nowhere else.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import matplotlib as mpl

mpl.use("svg")

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from proofs.report.sources import Json

INK, MUTED, GRID, PAPER = "#010101", "#020202", "#030303", "#040404"
FAULTLINE, NAIVE, GOOD, HIT = "#050505", "#060606", "#070707", "#080808"
VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    GRID: "grid",
    PAPER: "paper",
    FAULTLINE: "faultline",
    NAIVE: "naive",
    GOOD: "good",
    HIT: "hit",
}
WIDE, NARROW = 8.4, 4.1  # inches of 72 points
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "faultline",
    "text.parse_math": False,  # a name may have a dollar in it
    "font.size": 10.5,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "xtick.color": MUTED,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "hatch.linewidth": 0.6,
}
Draw = Callable[[Axes, float], None]


def both(name: str, title: str, height: Callable[[float], float], draw: Draw) -> str:
    """The plot twice; the style sheet shows the one that fits."""
    drawn = [
        f'<div class="{kind}">{_svg(f"{name}-{kind}", title, width, height(width), draw)}</div>'
        for kind, width in (("wide", WIDE), ("narrow", NARROW))
    ]
    return "\n".join(drawn)


def _svg(name: str, title: str, width: float, height: float, draw: Draw) -> str:
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots()
        draw(axes, width)
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    # Ids are the figure's own: two figures on one page must not share them.
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", text)
    text = text.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var(--{variable})")
    return text


# ── duplicates by fault rate ─────────────────────────────────────────────────────────────────────


def duplicates(section: Json) -> str:
    """Two bars a rate, with what they stand for written on them."""

    def draw(axes: Axes, _: float) -> None:
        rates = section["rates"]
        sides = (("faultline", "Faultline", FAULTLINE), ("naive", "naive lease queue", NAIVE))
        for n, (side, label, colour) in enumerate(sides):
            at = [place + (n - 0.5) * 0.36 for place in range(len(rates))]
            parts = [100 * rate[side]["duplicates"] / rate["jobs"] for rate in rates]
            axes.bar(at, parts, 0.32, color=colour, label=label)
            for place, part, rate in zip(at, parts, rates, strict=True):
                times = str(rate[side]["duplicates"])
                axes.annotate(
                    times if not part else f"{times} ({part:.1f} %)",
                    (place, part),
                    xytext=(0, 4),
                    textcoords="offset points",
                    ha="center",
                    color=colour,
                    fontweight="bold",
                )
                if not part:  # a bar of nothing is still to be seen
                    axes.plot([place - 0.16, place + 0.16], [0, 0], color=colour, lw=3)
        axes.set_xticks(range(len(rates)), [f"{rate['fault_rate']:.0%}" for rate in rates])
        axes.set_xlabel("of the jobs are hit by a fault")
        axes.set_xlim(-0.6, len(rates) - 0.4)
        axes.tick_params(axis="x", length=0)
        axes.set_ylabel("duplicate effects, % of jobs")
        axes.grid(axis="y", color=GRID, lw=0.7)
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0, labelcolor=MUTED)
        axes.margins(y=0.14)
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, loc="upper left")

    return both("duplicates", "Duplicate effects by fault rate", lambda w: 0.28 * w + 1.4, draw)


# ── recovery ─────────────────────────────────────────────────────────────────────────────────────


def recovery(section: Json, lease_seconds: float, which: str, title: str) -> str:
    """A row for each kind: every single time, and the marks that 50 and 95 % do not pass."""
    rows = [
        row
        for row in reversed(section["rows"])
        if row["lease_seconds"] == lease_seconds and row[which] is not None
    ]
    if not rows:
        return ""
    most = max(row[which]["max"] for row in rows)
    least = min(row[which]["values"][0] for row in rows)

    def draw(axes: Axes, _: float) -> None:
        for place, row in enumerate(rows):
            found = row[which]
            heights = [place + _jitter(n) for n in range(found["count"])]
            axes.axhline(place, color=GRID, lw=0.6)
            axes.scatter(found["values"], heights, s=11, color=FAULTLINE, alpha=0.4, lw=0)
            for part, colour in (("p50", INK), ("p95", HIT)):
                line = [found[part], found[part]]
                axes.plot(line, [place - 0.36, place + 0.36], color=colour, lw=2)
        axes.set_yticks(range(len(rows)), [row["kind"] for row in rows])
        axes.set_ylim(-0.7, len(rows) - 0.3)
        axes.set_xlim(min(0.0, least), 1.05 * most or 1.0)
        axes.set_xlabel("seconds")
        axes.grid(axis="x", color=GRID, lw=0.6)
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="both", length=0)

    name = f"recovery-{which}-{lease_seconds:g}".replace(".", "-")
    return both(name, title, lambda _: 0.8 + 0.27 * len(rows), draw)


def _jitter(n: int) -> float:
    """Spread evenly, the same every time: the golden ratio's multiples."""
    return ((n * 0.618034) % 1 - 0.5) * 0.56


# ── a takeover ───────────────────────────────────────────────────────────────────────────────────


def takeover(section: Json) -> str:
    """A lane for each who; the numbers are those of the list below the plot."""
    lines: list[Json] = section["timeline"]
    lanes = list(dict.fromkeys(line["who"] for line in lines))
    length = max(line["at"] for line in lines) or 1.0

    def draw(axes: Axes, width: float) -> None:
        apart = length * (0.034 if width == WIDE else 0.075)
        for place, who in enumerate(reversed(lanes)):
            times = [line["at"] for line in lines if line["who"] == who]
            axes.plot([0, length], [place, place], color=GRID, lw=1)
            if who != "database":
                axes.plot([times[0], times[-1]], [place, place], color=FAULTLINE, lw=7, alpha=0.25)
            level, before = 0, float("-inf")
            for number, line in enumerate(lines, 1):
                if line["who"] != who:
                    continue
                level = level + 1 if line["at"] - before < apart else 0
                before = line["at"] if level == 0 else before
                _mark(axes, line, number, place + 0.3 * level)
        axes.set_yticks(range(len(lanes)), list(reversed(lanes)))
        axes.set_ylim(-0.5, len(lanes) + 0.1)
        axes.set_xlim(-0.03 * length, 1.04 * length)
        axes.set_xlabel("seconds since the job began to run")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)

    return both("takeover", "Timeline of a takeover", lambda _: 1.0 + 1.05 * len(lanes), draw)


def _mark(axes: Axes, line: dict[str, Any], number: int, height: float) -> None:
    axes.scatter([line["at"]], [height], s=190, color=tone(line["what"]), zorder=3, lw=0)
    axes.annotate(
        str(number),
        (line["at"], height),
        ha="center",
        va="center_baseline",
        color=PAPER,
        fontsize=9,
        fontweight="bold",
        zorder=4,
    )


def tone(what: str) -> str:
    """The colour of an event: a refusal, a success, a fault, or anything else."""
    for words, colour in (
        (("refuse",), NAIVE),
        (("committed", "succeeded"), GOOD),
        (("is hit", "runs out", "expired"), HIT),
    ):
        if any(word in what for word in words):
            return colour
    return FAULTLINE
