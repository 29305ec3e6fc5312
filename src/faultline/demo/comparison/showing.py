"""The comparison for people: how far it is, and what came out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from faultline.demo.comparison.driver import Drive
from faultline.demo.comparison.side_by_side import Listener

NAMES = {"faultline": "Faultline", "naive": "naive queue"}


class Lines:
    """Where there is no terminal: a line for every quarter of the way."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: dict[str, int] = {}

    def __call__(self, drive: Drive) -> None:
        name = drive.contender.name
        quarter = 4 * _done(drive) // _whole(drive)
        if quarter > self._shown.get(name, 0):
            self._shown[name] = quarter
            self._console.print(f"  {NAMES[name]}: {_words(drive)}")


class Bars:
    """On a terminal: a bar for each."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[str, TaskID] = {}

    def __call__(self, drive: Drive) -> None:
        name = drive.contender.name
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(NAMES[name], total=_whole(drive), words="")
        self._progress.update(self._bars[name], completed=_done(drive), words=_words(drive))


@contextmanager
def progress(console: Console) -> Iterator[Listener]:
    """What to call with a drive whenever it may have moved."""
    if not console.is_terminal:
        yield Lines(console)
        return
    columns = (
        TextColumn("  {task.description:<11}"),
        BarColumn(24),
        TextColumn("[dim]{task.fields[words]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        yield Bars(bars)


def table(rates: Sequence[dict[str, Any]]) -> Table:
    """One line for each contender at each rate."""
    drawn = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    drawn.add_column("faults hit", no_wrap=True)
    drawn.add_column("queue", no_wrap=True)
    for heading in ("jobs", "faults", "effects", "duplicates", "lost", "stale refused"):
        drawn.add_column(heading, justify="right")
    for rate in rates:
        for name, title in NAMES.items():
            found = rate[name]
            refused = found["stale_refused"]
            drawn.add_row(
                f"{rate['fault_rate']:.0%} of jobs" if name == "faultline" else "",
                title,
                *(str(found[key]) for key in ("jobs", "faults", "effects")),
                _coloured(found["duplicates"]),
                _coloured(found["lost"]),
                "" if refused is None else str(refused),
            )
    return drawn


def _coloured(bad: int) -> str:
    return f"[bold red]{bad}[/]" if bad else "[green]0[/]"


def _done(drive: Drive) -> int:
    return drive.ended + len(drive.faults)


def _whole(drive: Drive) -> int:
    return len(drive.schedule) + len(drive.schedule.faults)


def _words(drive: Drive) -> str:
    faults = f"{len(drive.faults)} of {len(drive.schedule.faults)} faults"
    return f"{drive.ended} of {len(drive.schedule)} jobs, {faults}"
