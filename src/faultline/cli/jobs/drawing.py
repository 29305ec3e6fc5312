"""The life of one job as text: a row for each attempt, by token, along a time axis.

    ╷enqueued                                          +9 s╷
    #1 A  ┣━━◆━━━━━━━━━━╫╌╌╌╌╌╌┓··················✗          expired
    #2 B                       ┗━━━━━━━━━━━━━━━━━━━━━━━━━━━✓ succeeded

Pure: lines of pieces, each with a style; who prints them knows what a terminal can show. Marks that
fall on one place stand beside each other, and of one kind there is one: columns are few.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from faultline.log import duration, printable
from faultline.timeline import Axis, Life, Row

Piece = tuple[str, str]
"""Some text, and its style."""
Line = list[Piece]

_MOST_LABEL = 24
_LEAST_AXIS = 24
_OUTCOME = 9
_BREAK_WIDTH = 14
_REACH = 2  # columns that a mark may be moved, so that another is seen


@dataclass(frozen=True, slots=True)
class Symbols:
    """One character each."""

    held: str
    unleased: str
    late: str
    waiting: str
    tick: str
    dots: str
    cut: str
    marks: dict[str, str]


UNICODE = Symbols(
    *("━", "╌", "·", "─", "╷", "⋯", "…"),
    {
        "taken": "┓",
        "takeover": "┗",
        "claimed": "┣",
        "refused": "✗",
        "expiry": "╫",
        "step": "◆",
        "renewal": "○",
        "until": "┆",
        "succeeded": "✓",
        "failed": "!",
        "running": "▸",
        "ended": "┫",
    },
)
ASCII = Symbols(
    *("=", "-", ".", "_", "|", "~", "."),
    {
        "taken": "\\",
        "takeover": "`",
        "claimed": "[",
        "refused": "X",
        "expiry": "|",
        "step": "o",
        "renewal": "r",
        "until": ":",
        "succeeded": "*",
        "failed": "!",
        "running": ">",
        "ended": "]",
    },
)
# What was written too late is the news; then what made it late.
_MARK_ORDER = ("taken", "takeover", "refused", "expiry", "end", "step", "until", "renewal")
_STYLES = {
    "succeeded": "green",
    "failed": "red",
    "expired": "yellow",
    "running": "cyan",
    "unleased": "yellow",
    "late": "dim",
    "refused": "bold red",
    "expiry": "yellow",
    "taken": "yellow",
    "takeover": "yellow",
    "step": "bold",
}
_WORDS = {
    "step": "step committed",
    "renewal": "lease renewed",
    "until": "the lease is good until here",
    "expiry": "lease expired",
    "taken": "taken over by the next",
    "refused": "write REFUSED",
}


def symbols_for(encoding: str | None) -> Symbols:
    """Those that can be written in it."""
    wanted = "".join((UNICODE.held, UNICODE.unleased, UNICODE.dots, *UNICODE.marks.values()))
    try:
        wanted.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def drawn(life: Life, width: int, symbols: Symbols) -> list[Line]:
    """The lines, none wider than this; none at all for a job that was never claimed."""
    if not life.rows:
        return []
    names = [f"#{row.token} {printable(row.worker)}" for row in life.rows]
    label = min(_MOST_LABEL, width // 3, max(map(len, names)))
    room = max(width - label - _OUTCOME - 2, _LEAST_AXIS)
    axis = Axis(life, 0, room - 1 - _REACH, min(_BREAK_WIDTH, room // 4))
    lines: list[Line] = [[(" " * (label + 1), ""), (_scale(axis, room, symbols), "dim")]]
    used: set[str] = set()
    for number, (row, name) in enumerate(zip(life.rows, names, strict=True)):
        taken = number + 1 < len(life.rows) and life.rows[number + 1].took_over_at is not None
        cells = _Cells(room, symbols, axis)
        used |= cells.draw(row, taken)
        shown = name if len(name) <= label else name[: label - 1] + symbols.cut
        outcome = (row.outcome, _STYLES.get(row.outcome, ""))
        lines.append([(shown.ljust(label + 1), ""), *cells.pieces(), (" ", ""), outcome])
    if legend := _legend(used, width, symbols):
        lines += [[(line, "dim")] for line in legend]
    if life.left_out:
        lines.append([(f"{life.left_out} earlier attempts are not drawn", "dim")])
    return lines


class _Cells:
    """One row, column by column."""

    def __init__(self, room: int, symbols: Symbols, axis: Axis) -> None:
        self._symbols = symbols
        self._axis = axis
        self._cells: list[Piece] = [(" ", "")] * room
        self._taken: dict[int, str] = {}  # columns that have a mark, and of which kind

    def draw(self, row: Row, taken: bool) -> set[str]:
        """Its spans, then its marks in the order of their weight; which kinds there are."""
        fills = {"unleased": self._symbols.unleased, "late": self._symbols.late}
        if row.took_over_at is not None:
            self._fill(row.took_over_at, row.claimed_at, self._symbols.waiting, "dim")
        for span in reversed(row.spans):  # what comes first is on top
            fill = fills.get(span.kind, self._symbols.held)
            self._fill(span.begin, span.end, fill, _STYLES.get(span.kind, ""))
        wanted = sorted(_marks(row, taken), key=lambda mark: _MARK_ORDER.index(mark[0]))
        for kind, at in wanted:
            self._mark(kind, at, row.outcome)
        first = self._column(row.claimed_at)
        if first not in self._taken and row.took_over_at is None:
            style = _STYLES.get(row.outcome, "")
            self._cells[first] = (self._symbols.marks["claimed"], style)
        return {kind for kind, _ in wanted}

    def pieces(self) -> Iterator[Piece]:
        """Neighbours of one style together."""
        text, style = "", ""
        for cell, its in self._cells:
            if its != style and text:
                yield text, style
                text = ""
            text, style = text + cell, its
        yield text, style

    def _column(self, moment: datetime) -> int:
        return min(round(self._axis(moment)), len(self._cells) - 1)

    def _fill(self, begin: datetime, end: datetime, fill: str, style: str) -> None:
        for column in range(self._column(begin), self._column(end) + 1):
            self._cells[column] = (fill, style)

    def _mark(self, kind: str, at: datetime, outcome: str) -> None:
        column = self._column(at)
        step = -1 if kind in ("expiry", "step", "renewal") else 1  # these came before what ended it
        near = [column + step * by for by in range(_REACH + 1)]
        near += [column - step * by for by in range(1, _REACH + 1)]
        marks = self._symbols.marks
        for place in near:
            if not 0 <= place < len(self._cells):
                continue
            if self._taken.get(place) == kind:
                return
            if place not in self._taken:
                self._taken[place] = kind
                known = outcome if outcome in marks else "ended"
                style = _STYLES.get(outcome if kind == "end" else kind, "")
                self._cells[place] = (marks[known if kind == "end" else kind], style)
                return


def _marks(row: Row, taken: bool) -> Iterator[tuple[str, datetime]]:
    """Kinds, and when: those of the row, and how it begins and ends."""
    for mark in row.marks:
        yield mark.kind, mark.at
    if row.took_over_at is not None:
        yield "takeover", row.took_over_at
    ended = next(span.end for span in reversed(row.spans) if span.kind != "late")
    yield "taken" if taken else "end", ended


def _scale(axis: Axis, room: int, symbols: Symbols) -> str:
    """The pauses that are cut short, the beginning and the end; then what there is room for."""
    tick = symbols.tick
    pauses = [
        (middle, f"{symbols.dots} {duration(seconds)} {symbols.dots}")
        for middle, seconds in axis.breaks
    ]
    last = f"+{duration(axis.points[-1][0])}"
    wanted = [(round(middle - len(pause) / 2), pause) for middle, pause in pauses]
    wanted += [(0, f"{tick}enqueued"), (0, f"{tick}0")]
    wanted.append((round(axis.points[-1][1]) - len(last), last + tick))
    between = [(round(x), f"{tick}+{duration(second)}") for second, x in axis.points[1:-1]]
    # Of the same words, as after a day when minutes are not told apart, the end keeps them.
    wanted += [(x, label) for x, label in between if label.strip(tick) != last]
    text = [" "] * room
    for begin, label in wanted:
        around = text[max(begin - 1, 0) : begin + len(label) + 1]
        if 0 <= begin <= room - len(label) and not "".join(around).strip():
            text[begin : begin + len(label)] = label
    return "".join(text).rstrip()


def _legend(used: set[str], width: int, symbols: Symbols) -> list[str]:
    """What the marks that were used mean, in as many lines as it takes."""
    told = [f"{symbols.marks[kind]} {words}" for kind, words in _WORDS.items() if kind in used]
    return _wrapped(told, width)


def _wrapped(parts: Sequence[str], width: int) -> list[str]:
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 3 + len(part) <= width:
            lines[-1] += f"   {part}"
        else:
            lines.append(part)
    return lines
