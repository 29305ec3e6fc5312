"""`make demo`: the story of the stalled worker, with real processes, on an embedded PostgreSQL.

Shows the timeline as it happens; the last line on stdout is the summary as one JSON object, which
is also written to reports/latest/benchmark_summary.json. Every figure in it was measured by this
run; what nothing measures yet is absent. Exits with 1 if anything was not as promised.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from faultline import __version__
from faultline.config import Settings
from faultline.connect import connect
from faultline.reading import Reading
from proofs.race import Race, clear_up, database, ended_cleanly, play, prepare
from proofs.trace import Line

SUMMARY = Path("reports/latest/benchmark_summary.json")
LEASE_SECONDS = 2.0

SENTENCES = {
    "lease_acquired": "claims the job under token {token}; the lease lasts {lease:g} s",
    "execution_started": "starts: charge the customer, then complete the job",
    "worker_stalled": "stalls: process {pid} is stopped ({signal})",
    "lease_reclaimed": "finds {owner}'s lease expired and takes the job; token {token} is burnt",
    "job_completed": "commits the charge and the success in one transaction, token {token}",
    "worker_resumed": "wakes up ({signal}) and goes on: the same charge, the same job",
    "stale_write_blocked": "REFUSED by the database: token {stale_token} is stale, the job is at "
    "{current_token} ({reason}); the charge is rolled back, the refusal kept",
    "worker_exit": "exits: {reason}",
}
STYLES = {"stale_write_blocked": "bold red", "job_completed": "bold green"}


class Timeline:
    """Prints each line of the trace when it comes, with the seconds since the first."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._start: datetime | None = None

    def __call__(self, line: Line) -> None:
        self._start = self._start or line["at"]
        elapsed = (line["at"] - self._start).total_seconds()
        words = SENTENCES[line["event"]].format(**line, lease=LEASE_SECONDS)
        indent = 0 if line["worker"] == "A" else 4
        text = Text()
        text.append(f"t={elapsed:5.2f} s  {' ' * indent}{line['worker']} ", "dim")
        text.append(words, STYLES.get(line["event"], "cyan" if line["worker"] == "A" else "yellow"))
        self._console.print(text, soft_wrap=True)


def summarise(race: Race, violations: int, server: int) -> dict[str, Any]:
    """The figures of this run, from the database and from a table that no queue owns."""
    duplicates = max(0, len(race.charges) - 1)
    lost = int(race.state != "succeeded")
    return {
        "faultline_duplicates": duplicates,
        "lost_jobs": lost,
        "invariant_violations": violations,
        "stale_writes_prevented": race.refusals,
        "safe_for_controlled_release_validation": violations == duplicates == lost == 0
        and race.refusals >= 1
        and not race.faults,
        "recovery_seconds_after_expiry": race.recovery_seconds,
        "command": "make demo",
        "version": __version__,
        "commit": commit(),
        "postgresql": f"{server // 10_000}.{server % 10_000}",
    }


def commit() -> str | None:
    """The commit of this checkout, if it is one."""
    if shutil.which("git") is None:
        return None
    asked = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return asked.stdout.strip() or None


def demo(settings: Settings, console: Console) -> int:
    """Play, show, sum up."""
    console.print("Faultline: a worker stalls, another takes over, the first one wakes up.")
    if settings.database_url is None:
        console.print("Starting PostgreSQL …", style="dim")
    with database(settings) as url:
        prepare(url, settings.schema)
        race = play(
            url,
            settings.schema,
            lease_seconds=LEASE_SECONDS,
            stall_seconds=LEASE_SECONDS + 1,
            listener=Timeline(console),
        )
        with connect(url, schema=settings.schema) as conn:
            violations = len(Reading(settings.schema).violations(conn))
            summary = summarise(race, violations, conn.info.server_version)
        clear_up(url)
    for fault in race.faults:
        console.print(f"not so: {fault}", style="bold red")
    charged = ", ".join(f"{worker} under token {token}" for token, worker in race.charges)
    console.print(f"Charges in the table that no queue owns: {len(race.charges)} ({charged}).")
    SUMMARY.parent.mkdir(parents=True, exist_ok=True)
    SUMMARY.write_text(json.dumps(summary, indent=2) + "\n")
    console.file.flush()
    print(json.dumps(summary), flush=True)
    return 0 if summary["safe_for_controlled_release_validation"] else 1


if __name__ == "__main__":
    sys.exit(ended_cleanly(lambda settings: demo(settings, Console())))
