"""What was measured of the peers, as a table for a terminal and as markdown."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from bench.report import markdown

SHOWN = (
    ("bulk", "bulk enqueue/s"),
    ("one", "drain/s, 1 worker"),
    ("two", "drain/s, 2 workers"),
    ("p50_ms", "pickup p50, ms"),
    ("p99_ms", "pickup p99, ms"),
    ("p50_ms_from_return", "p50 from the return"),
    ("p50_ms_from_call", "p50 from the call"),
)
Row = dict[str, Any]


def table(rows: list[Row]) -> Table:
    """What was measured of each, and as a part of ours."""
    grid = Table(title="Faultline and its peers, medians; in brackets, of Faultline's")
    for column in ("peer", "version", "jobs", *(title for _, title in SHOWN)):
        grid.add_column(column, justify="left" if column == "peer" else "right")
    ours = _ours(rows)
    for row in rows:
        if not row["medians"]:
            grid.add_row(row["peer"], row["version"] or "-", "-", row["skipped"] or "-")
            continue
        cells = [_cell(row["medians"].get(part), ours.get(part)) for part, _ in SHOWN]
        grid.add_row(row["peer"], row["version"], f"{row['jobs']:,}", *cells)
    return grid


def _cell(figure: float | None, ours: float | None) -> str:
    if figure is None:
        return "-"
    shown = f"{figure:,.0f}" if figure >= 100 else f"{figure:.1f}"
    return shown if not ours else f"{shown} ({figure / ours:.2f})"


def _ours(rows: list[Row]) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in rows:
        found = row["medians"] if row["peer"] == "Faultline" else found
    return found


def document(report: dict[str, Any]) -> str:
    """For docs/benchmarks.md: the bars, what was measured of each peer, and how each was set."""
    ours = _ours(report["peers"])
    lines = [
        markdown(report),
        "",
        _line(["peer", "version", "jobs", *(title for _, title in SHOWN)]),
        _line(["---"] * (3 + len(SHOWN))),
    ]
    for row in report["peers"]:
        cells = [_cell(row["medians"].get(part), ours.get(part)) for part, _ in SHOWN]
        if not row["medians"]:
            cells[0] = row["skipped"] or "-"
        lines.append(_line([row["peer"], row["version"] or "-", f"{row['jobs']:,}", *cells]))
    lines += ["", _line(["peer", "settings"]), _line(["---"] * 2)]
    lines += [_line([row["peer"], row["settings"]]) for row in report["peers"]]
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
