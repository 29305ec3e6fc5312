"""The duel's results as a table for a terminal, as markdown, and as one line of JSON."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from typing import Any

import psycopg
from rich.table import Table

from faultline.provenance import provenance

COLUMNS = (
    "peer",
    "version",
    "late effect landed, stopped early",
    "late effect landed, stopped at its write",
    "finished job ran again",
    "worker told",
    "takeover, s after the stall",
)


def facts(url: str, runs: int) -> dict[str, Any]:
    """Where, when and by what command the figures came about."""
    with psycopg.connect(url) as conn:
        origin = provenance(f"python -m proofs.duel --runs {runs}", conn.info.server_version)
    return {
        **origin,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "runs": runs,
    }


def cells(row: dict[str, Any]) -> list[str]:
    """One row; of a peer without a duel, the reason."""
    head = [row["peer"], row["version"] or "-"]
    if not row["duels"]:
        reason = row["skipped"] or "; ".join(row["void"])
        return [*head, reason, "-", "-", "-", "-"]
    seconds = row["takeover_seconds"]
    spread = "" if seconds["min"] == seconds["max"] else f" ({seconds['min']} to {seconds['max']})"
    late = [f"{x['landed']} of {x['duels']}" for x in row["late_effects"].values()]
    figures = [*late, *(f"{row[key]} of {row['duels']}" for key in ("ran_again", "told"))]
    if row["void"]:
        figures[0] += f"; void: {'; '.join(row['void'])}"
    return [*head, *figures, f"{seconds['median']}{spread}"]


def table(report: dict[str, Any]) -> Table:
    """For a terminal."""
    grid = Table(
        title=f"The stale-worker duel, {report['runs']} runs at each point", show_lines=True
    )
    for column in COLUMNS:
        grid.add_column(column)
    grid.add_column("settings")
    for row in report["rows"]:
        grid.add_row(*cells(row), f"{row['settings']}. Recovery: {row['recovery']}")
    return grid


def document(report: dict[str, Any]) -> str:
    """For docs/duel.md: the results, then what was set for each peer."""
    lines = [
        f"`{report['command']}` on {report['at'][:10]}, PostgreSQL {report['postgresql']}, "
        f"Python {report['python']}, commit {report['commit']}.",
        "",
        _line(COLUMNS),
        _line(["---"] * len(COLUMNS)),
        *(_line(cells(row)) for row in report["rows"]),
        "",
        _line(["peer", "settings", "how B got the job", "how A was told"]),
        _line(["---"] * 4),
    ]
    for row in report["rows"]:
        told = row["told_how"][0] if row["told_how"] else "-"
        lines.append(_line([row["peer"], row["settings"], row["recovery"], told]))
    return "\n".join(lines)


def last_line(report: dict[str, Any]) -> dict[str, Any]:
    """What stdout ends with."""
    rows = report["rows"]
    return {
        "peers": len(rows),
        "duels": sum(row["duels"] for row in rows),
        "void": sum(len(row["runs"]) - row["duels"] for row in rows),
        "skipped": [row["peer"] for row in rows if row["skipped"]],
        "late_effects": {
            row["peer"]: sum(there["landed"] for there in row["late_effects"].values())
            for row in rows
            if row["duels"]
        },
        "ran_again": {row["peer"]: row["ran_again"] for row in rows if row["duels"]},
        "told": {row["peer"]: row["told"] for row in rows if row["duels"]},
    }


def _line(values: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(value.replace('|', '/') for value in values)} |"
