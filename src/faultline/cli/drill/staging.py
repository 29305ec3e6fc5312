"""Drilling an app's own handlers: what is shown, and the line at the end."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import typer

from faultline.cli.display import plural, print_json
from faultline.cli.drill.playing import tell
from faultline.drills import summary
from faultline.drills.staging import Orders, drill
from faultline.errors import InvalidArgument


def run_on_app(orders: Orders, path: Path, *, as_json: bool) -> int:
    """`faultline drill run --app`."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    jobs = list(_read(path))
    typer.echo(f"drilling {orders.app} with {plural(len(jobs), 'job')}", err=True)
    result = drill(orders, jobs, lambda said: typer.echo(said, err=True))
    if not as_json:
        tell(result)
    figures = summary.totals([result])
    print_json(figures)
    return 0 if summary.is_clean([result]) else 1


def _read(path: Path) -> Any:
    """The jobs in the file; a line that is none is said with its number."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path} cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            job = json.loads(line)
            yield str(job["task"]), dict(job.get("arguments", {}))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InvalidArgument(
                f'{path}, line {number}, is no job: write {{"task": "charge", "arguments": {{}}}}'
            ) from None
