"""What a command prints: a table, a line of JSON, or a sentence when there is nothing.

In a terminal a table fits its width and has a little colour; elsewhere it is plain text in aligned
columns. Rich is imported only for a terminal. What comes from the database is shown, never obeyed:
control characters are written as escapes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NoReturn
from uuid import UUID

import typer

from faultline.log import duration, printable, wants_colours

NOTHING = 3  # the exit status for: nothing matched, or not running
WIDTH = 80  # where nobody says how wide it is

STATE_STYLES = {
    "running": "cyan",
    "succeeded": "green",
    "failed": "red",
    "quarantined": "red",
    "cancelled": "dim",
    "scheduled": "yellow",
    "paused": "yellow",
    "silent": "red",
    "expired": "bold red",
    "near expiry": "yellow",
    "overdue": "yellow",
    "ok": "green",
    "incomplete": "yellow",
    "warn": "yellow",
    "problem": "bold red",
}

_CODES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "bold red": "1;31",
    "green": "32",
    "yellow": "33",
    "cyan": "36",
}

_ID_WIDTH = 36


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: its heading, how to read a row, and how it is laid out."""

    title: str
    read: Callable[[Mapping[str, Any]], object]
    number: bool = False
    """Numbers stand to the right."""
    whole: bool = False
    """Never cut short, as an id."""
    optional: bool = False
    """Left out where the terminal is too narrow for all; the last first."""
    state: bool = False
    """Coloured by its word."""


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> None:
    """Print the rows under their headings."""
    cells = [[text(column.read(row)) for column in columns] for row in rows]
    if sys.stdout.isatty():
        _rich_table(cells, columns)
        return
    heads = [column.title for column in columns]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    for line in (heads, *cells):
        parts = [
            cell.rjust(width) if column.number else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        ]
        typer.echo("  ".join(parts).rstrip())


def print_json(value: object) -> None:
    """One line of JSON; moments in UTC, ids as text."""
    typer.echo(json.dumps(value, default=_as_json, ensure_ascii=False))


def nothing(sentence: str) -> NoReturn:
    """Say that there is nothing, and end with the status for it."""
    typer.echo(sentence, err=True)
    raise typer.Exit(NOTHING)


def text(value: object) -> str:
    """A cell: nothing for None, lists with commas, moments in UTC, no control characters."""
    match value:
        case None:
            return ""
        case datetime():
            return moment(value)
        case list() | tuple():
            return printable(", ".join(str(item) for item in value))
        case _:
            return printable(str(value))


def moment(at: datetime) -> str:
    """In UTC, to the second."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def ago(at: datetime | None, now: datetime) -> str:
    """How long before or after now, where now is the database's."""
    if at is None:
        return ""
    seconds = (now - at).total_seconds()
    if abs(seconds) < 0.1:
        return "now"
    return f"{duration(seconds)} ago" if seconds >= 0 else f"in {duration(seconds)}"


def plural(count: int, noun: str) -> str:
    """1 job, 2 jobs."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def styled(word: str, style: str | None = None) -> str:
    """The word in its colour, if stdout is a terminal that wants colours."""
    codes = _CODES.get(style or STATE_STYLES.get(word, ""))
    return f"\x1b[{codes}m{word}\x1b[0m" if codes and wants_colours(sys.stdout) else word


def columns() -> int:
    """How wide stdout is, if it is a terminal that says so."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or WIDTH
    except (OSError, ValueError):  # a pipe, or nothing that has a file
        return WIDTH


def _rich_table(cells: list[list[str]], columns: Sequence[Column]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    shown = fitting(cells, columns, console.width)
    for column in (columns[place] for place in shown):
        table.add_column(
            column.title,
            justify="right" if column.number else "left",
            no_wrap=True,
            overflow="ellipsis",
            min_width=_ID_WIDTH if column.whole else None,
        )
    for row in cells:
        styles = {place: STATE_STYLES.get(row[place], "") for place in shown}
        table.add_row(*(Text(row[p], style=styles[p] if columns[p].state else "") for p in shown))
    console.print(table)


def fitting(cells: Sequence[Sequence[str]], columns: Sequence[Column], width: int) -> list[int]:
    """The places of the columns for which there is room."""
    widths = [
        max(len(columns[place].title), *(len(row[place]) for row in cells)) + 2
        for place in range(len(columns))
    ]
    shown = list(range(len(columns)))
    for place in reversed(range(len(columns))):
        if sum(widths[p] for p in shown) - 2 > width and columns[place].optional:
            shown.remove(place)
    return shown


def _as_json(value: object) -> object:
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case Decimal():
            return float(value)
        case UUID() | date():
            return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")
