"""What every benchmark leaves: a table, a file with all of it, plots, and one line of JSON."""

from __future__ import annotations

import json
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console
from rich.table import Table

from bench.rows import Row
from faultline.provenance import provenance
from proofs.stopwatch import finish

WIDTH = 140  # of the table where there is no terminal
SETTINGS = (
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "shared_buffers",
    "max_wal_size",
    "checkpoint_timeout",
    "autovacuum",
    "autovacuum_naptime",
    "track_commit_timestamp",
    "max_connections",
)


def facts(url: str, command: str, **more: Any) -> dict[str, Any]:
    """Where, when and with what settings the figures came about."""
    with psycopg.connect(url) as conn:
        origin = provenance(command, conn.info.server_version)
        server = {
            name: _value(conn.execute("select current_setting(%s)", (name,)).fetchone())
            for name in SETTINGS
        }
    return {
        **origin,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "psycopg": psycopg.__version__,
        "machine": machine(),
        "server_settings": server,
        **more,
    }


def machine() -> dict[str, Any]:
    """What it ran on, and how busy that is."""
    return {
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def _value(row: tuple[Any, ...] | None) -> Any:
    return row[0] if row is not None else None


def table(title: str, rows: list[Row]) -> Table:
    """For a terminal."""
    grid = Table(title=title)
    for column in ("what", "figure", "measured", "bar", ""):
        grid.add_column(column, justify="right" if column == "figure" else "left")
    for row in rows:
        grid.add_row(row.what, shown(row), row.measured, str(row.bar or "-"), verdict(row))
    return grid


def shown(row: Row) -> str:
    """The figure with its unit, or why there is none."""
    if row.figure is None:
        return f"- ({row.skipped})"
    size = abs(row.figure)
    figure = (
        f"{row.figure:,.0f}"
        if size >= 100 or row.figure == int(row.figure)
        else (f"{row.figure:.1f}" if size >= 10 else f"{row.figure:.2f}")
    )
    return f"{figure} {row.unit}".strip()


def verdict(row: Row) -> str:
    """In a word."""
    return {True: "met", False: "[bold red]missed[/]", None: ""}[row.met]


def missed(rows: list[Row]) -> list[str]:
    """What fell short of its bar."""
    return [row.what for row in rows if row.met is False]


def markdown(report: dict[str, Any]) -> str:
    """The table of a report, as in docs/benchmarks.md."""
    lines = [
        f"`{report['command']}` on {report['at'][:10]}, {report['machine']['cores']} cores, "
        f"PostgreSQL {report['postgresql']}, Python {report['python']}, commit {report['commit']}.",
        "",
        "| what | figure | measured | bar | |",
        "|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        again = Row(**{k: v for k, v in row.items() if k not in ("bar", "met")})
        verdicts = {True: "met", False: "**missed**", None: ""}
        cells = (
            row["what"],
            shown(again),
            row["measured"],
            row["bar"] or "-",
            verdicts[row["met"]],
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def publish(out: Path, name: str, title: str, report: dict[str, Any], rows: list[Row]) -> int:
    """Write everything down and end with one line of JSON; 1 if a bar was missed."""
    from bench import plots  # only here, since it is heavy

    out.mkdir(parents=True, exist_ok=True)
    report = {**report, "rows": [row.as_json() for row in rows], "missed": missed(rows)}
    (out / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    plotted = plots.draw(out, name, report)
    Console(width=None if sys.stdout.isatty() else WIDTH).print(table(title, rows))
    line = {
        "benchmark": name,
        "commit": report["commit"],
        "postgresql": report["postgresql"],
        "cores": report["machine"]["cores"],
        "figures": {row.what: _rounded(row.figure) for row in rows},
        "met": sum(row.met is True for row in rows),
        "missed": missed(rows),
        "skipped": [row.what for row in rows if row.skipped is not None and not row.failed],
        "report": str(out / f"{name}.json"),
        "plots": plotted,
    }
    finish(name, line)
    return 1 if line["missed"] else 0


def _rounded(figure: float | None) -> float | None:
    return None if figure is None else round(figure, 3)
