"""Playing the drills of the house: progress while they run, a table and a line at the end."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from faultline import __version__
from faultline.cli.display import Column, plural, print_json, print_table
from faultline.drills import run as drills
from faultline.drills import summary
from faultline.drills.kinds import KINDS
from faultline.drills.scenario import Result, Scenario
from faultline.errors import InvalidArgument
from faultline.launcher import Server
from faultline.provenance import commit


def run_kinds(
    kinds: list[str] | None,
    quick: bool,
    each: int | None,
    seed: int,
    lanes: int | None,
    out: Path | None,
    *,
    as_json: bool,
) -> int:
    """`faultline drill run`."""
    names = kinds or list(KINDS)
    for name in names:
        _insist_known(name)
    missing = drills.what_is_missing(names)
    for name, why in missing.items():
        typer.echo(f"{name} cannot be played here: {why}", err=True)
    playable = [name for name in names if name not in missing]
    chosen = drills.choose(playable, quick=quick, each=each, seed=seed)
    progress = Progress(len(chosen))
    facts = _play(chosen, progress, lanes)
    figures = summary.totals(progress.results)
    rows = summary.by_kind(progress.results)
    if out is not None:
        more = {**figures, "kinds": rows, "not_played": missing, "seed": seed, **facts}
        _write(out, progress.results, more)
    if not as_json:
        print_table(rows, _COLUMNS)
    for kind in summary.never_staged(progress.results):
        typer.echo(f"{kind}: none of its scenarios could be staged, nothing is shown", err=True)
    typer.echo(f"drills took {facts['seconds']} s", err=True)
    print_json({**figures, "seconds": facts["seconds"]})
    return 0 if summary.is_clean(progress.results) else 1


def replay_one(scenario: str, *, as_json: bool) -> int:
    """`faultline drill replay`."""
    chosen = Scenario.parse(scenario)
    _insist_known(chosen.kind)
    if (why := KINDS[chosen.kind].needs()) is not None:
        raise InvalidArgument(f"{chosen.kind} cannot be played here: {why}")
    progress = Progress(1, silent=True)
    _play([chosen], progress, 1)
    (result,) = progress.results
    if as_json:
        print_json(asdict(result))
    else:
        tell(result)
    return 0 if result.is_good else 1


def tell(result: Result) -> None:
    """The story of one scenario."""
    for fault in result.faults:
        typer.echo(f"fault: {fault['what']}, process {fault['pid']}, at {fault['at']}")
    for line in result.timeline:
        typer.echo(f"t={line['at']:7.3f} s  {line['who']:<9} {line['what']}")
    typer.echo(verdict(result))


def verdict(result: Result) -> str:
    """Good, or everything that is wrong with it."""
    if result.is_good:
        return (
            f"{result.id}: good ({plural(result.jobs, 'job')}, "
            f"{plural(result.committed, 'effect')}, "
            f"{plural(result.stale_refused, 'stale write')} refused, {result.seconds:.1f} s)"
        )
    if result.void is not None and not result.violations:
        return f"{result.id}: VOID, it could not be staged: {result.void}"
    wrong = [*result.violations, *([f"vacuous: {result.vacuous}"] if result.vacuous else [])]
    return "\n  ".join([f"{result.id}: BAD", *wrong])


class Progress:
    """Counts scenarios as they end, and says at once what is wrong with one."""

    def __init__(self, total: int, *, silent: bool = False) -> None:
        self.results: list[Result] = []
        self._total = total
        self._silent = silent
        self._is_terminal = sys.stderr.isatty()
        self._began = time.monotonic()

    def __call__(self, result: Result) -> None:
        self.results.append(result)
        if self._silent:
            return
        if not result.is_good:
            self._say(f"{verdict(result)}\n  again: faultline drill replay {result.id}", end="\n")
        count = len(self.results)
        if self._is_terminal or count == self._total or count % max(1, self._total // 20) == 0:
            figures = summary.totals(self.results)
            seconds = time.monotonic() - self._began
            self._say(
                f"{count} of {self._total} scenarios, {plural(figures['faults'], 'fault')}, "
                f"{plural(figures['violations'], 'violation')}, {figures['void']} void, "
                f"{seconds:.0f} s",
                end="\r" if self._is_terminal and count < self._total else "\n",
            )

    def _say(self, text: str, end: str) -> None:
        clear = "\x1b[2K\r" if self._is_terminal else ""
        typer.echo(f"{clear}{text}{end}", err=True, nl=False)


def _insist_known(kind: str) -> None:
    if kind not in KINDS:
        raise InvalidArgument(f"there is no kind {kind!r:.80}: there are {', '.join(KINDS)}")


def _play(chosen: list[Scenario], progress: Progress, lanes: int | None) -> dict[str, Any]:
    """On a server of its own, which goes again, also after SIGTERM; where the figures come from."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()
    with Server.temporary(options=drills.OPTIONS) as server:
        asyncio.run(drills.run(chosen, server.url, progress, lanes=lanes))
        version = server.binaries.version
    return {
        "command": shlex.join(["faultline", *sys.argv[1:]]),
        "commit": commit(),
        "version": __version__,
        "postgresql": version,
        "seconds": round(time.monotonic() - began, 1),
    }


def _write(folder: Path, results: list[Result], figures: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(asdict(result)) + "\n" for result in results)
    (folder / "drills.jsonl").write_text(lines)
    (folder / "drills.json").write_text(json.dumps(figures, indent=2) + "\n")


def _seconds(name: str, figure: str) -> Any:
    return lambda row: "" if row[name] is None else f"{row[name][figure]:.2f}"


_COLUMNS = [
    Column("kind", lambda row: row["kind"], whole=True),
    Column("lease", lambda row: f"{row['lease_seconds']:g} s", number=True),
    *(
        Column(title, lambda row, name=name: row[name], number=True)  # type: ignore[misc]
        for title, name in (
            ("scenarios", "scenarios"),
            ("faults", "faults"),
            ("jobs", "jobs"),
            ("refused", "stale_refused"),
            ("violations", "violations"),
            ("vacuous", "vacuous"),
            ("void", "void"),
        )
    ),
    Column("recovery p50", _seconds("recovery", "p50"), number=True),
    Column("p95", _seconds("recovery", "p95"), number=True),
    Column("max s", _seconds("recovery", "max"), number=True),
    Column("after expiry p50", _seconds("after_expiry", "p50"), number=True),
]
