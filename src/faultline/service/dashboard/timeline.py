"""The life of one job as a picture: `faultline.timeline` in coordinates. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from faultline.log import duration
from faultline.timeline import Axis, life

Record = Mapping[str, Any]

WIDTH = 1000.0
LEFT, RIGHT, TOP, ROW = 150.0, 24.0, 34.0, 44.0
BREAK_WIDTH = 46.0  # what a long pause is drawn as
NARROWEST = 3.0
TICK_WIDTH = 90.0


@dataclass(frozen=True, slots=True)
class Bar:
    """Some time of one attempt."""

    kind: str
    """As of a `faultline.timeline.Span`."""
    x: float
    width: float
    y: float
    title: str


@dataclass(frozen=True, slots=True)
class Mark:
    """One moment."""

    kind: str
    x: float
    y: float
    title: str


@dataclass(frozen=True, slots=True)
class Row:
    """The attempt of one token."""

    token: int
    worker: str
    y: float
    outcome: str


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the job stood between two moments, in words; for who points at the drawing."""

    x: float
    until: float
    at: str
    words: str


@dataclass(slots=True)
class Drawing:
    """All of it."""

    height: float = TOP
    width: float = WIDTH
    rows: list[Row] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    handovers: list[tuple[float, float, float, float]] = field(default_factory=list)
    ticks: list[tuple[float, str]] = field(default_factory=list)
    breaks: list[tuple[float, str]] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    left_out: int = 0  # attempts that came before the first one drawn

    def facts(self) -> list[dict[str, Any]]:
        """The stages, as the page's script reads them."""
        return [asdict(stage) for stage in self.stages]


def drawn(
    job: Record,
    lease: Record | None,
    attempts: Sequence[Record],
    steps: Sequence[Record],
    refusals: Sequence[Record],
    now: datetime,
) -> Drawing:
    """The drawing, as of now."""
    lived = life(job, lease, attempts, steps, refusals, now)
    axis = Axis(lived, LEFT, WIDTH - RIGHT, BREAK_WIDTH)

    def place(moment: datetime) -> float:
        return round(axis(moment), 2)

    drawing = Drawing(left_out=lived.left_out)
    for number, row in enumerate(lived.rows):
        y = TOP + ROW * number
        drawing.rows.append(Row(row.token, row.worker, y, row.outcome))
        for span in row.spans:
            x = place(span.begin)
            width = max(round(place(span.end) - x, 2), NARROWEST)
            drawing.bars.append(Bar(span.kind, x, width, y, span.title))
        drawing.marks += [Mark(mark.kind, place(mark.at), y, mark.title) for mark in row.marks]
        if row.took_over_at is not None:
            begin, end = place(row.took_over_at), place(row.claimed_at)
            drawing.handovers.append((begin, y - ROW + 12, end, y + 12))
    drawing.height = TOP + ROW * max(len(lived.rows), 1) + 8
    drawing.ticks = list(_ticks(axis))
    drawing.breaks = [(round(x, 2), duration(seconds)) for x, seconds in axis.breaks]
    for stage in lived.stages:
        since = (stage.at - lived.begin).total_seconds()
        at = f"+{duration(since) if since > 0 else '0 s'}"
        x = place(stage.at)
        drawing.stages.append(Stage(x, max(place(stage.until), x), at, stage.words))
    return drawing


def _ticks(axis: Axis) -> Iterator[tuple[float, str]]:
    """Some moments along the axis, in seconds from the beginning, not too near each other."""
    last = -TICK_WIDTH
    for second, x in axis.points:
        if x - last >= TICK_WIDTH:
            last = x
            yield round(x, 2), f"+{duration(second)}" if second else "enqueued"
