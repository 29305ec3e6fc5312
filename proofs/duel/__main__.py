"""`make duel`: Faultline and its peers against the stale worker, each with its documented settings.

Worker A is stopped (SIGSTOP) inside its handler, in half of the duels with half a second of work
still to do, in the other half right at its write; worker B of the same peer takes the job over by
that peer's own recovery and finishes; A is resumed (SIGCONT) and goes on to its INSERT into a table
that no queue owns, and to its completion. The first run installs the peers (a minute or two); the
last line on stdout is one JSON object, all of it is in reports/latest/duel.json, and each worker's
log beside it in duel/.

    python -m proofs.duel --list
    python -m proofs.duel --runs 3 --peers faultline,pg-boss
    python -m proofs.duel --markdown          the table of the last run, as in docs/duel.md
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console

from faultline.config import Settings
from faultline.launcher import Server
from proofs.duel.judge import POINTS, Verdict, judge, summarise
from proofs.duel.peer import Peer
from proofs.duel.peers import peers
from proofs.duel.report import document, facts, last_line, table
from proofs.duel.stage import NotShown, fight, set_up
from proofs.peers.environment import Unavailable
from proofs.race import ended_cleanly
from proofs.stopwatch import finish

REPORTS = Path("reports/latest")
SCRIPTS = Path(__file__).parent / "scripts"
WIDTH = 160  # of the table where there is no terminal


def play(peer: Peer, cache: Path, url: str, runs: int, logs: Path, say: Console) -> dict[str, Any]:
    """All the duels of one peer, as one row; a peer that cannot be had is a row with a reason."""
    row: dict[str, Any] = {
        "peer": peer.name,
        "settings": peer.settings,
        "recovery": peer.recovery,
        "version": None,
        "skipped": None,
    }
    verdicts: list[Verdict] = []
    try:
        say.print(f"[bold]{peer.name}[/]: its environment …", end=" ")
        made = peer.environment.make(cache)
        row["version"] = peer.environment.version(cache)
        say.print(f"{'installed' if made else 'there'}, version {row['version']}")
        for run in range(1, runs + 1):
            for point in POINTS:
                verdicts.append(duel(peer, cache, url, run, point, logs))
                line = f"  {run} of {runs}, {point}: {describe(verdicts[-1])}"
                say.print(line, highlight=False, markup=False, soft_wrap=True)
    except Unavailable as error:
        row["skipped"] = str(error)
        say.print(f"  {error}", highlight=False, markup=False)
    return {**row, "runs": [asdict(verdict) for verdict in verdicts], **summarise(verdicts)}


def duel(peer: Peer, cache: Path, url: str, run: int, point: str, logs: Path) -> Verdict:
    """One duel; whatever keeps it from its end makes it void, with the reason."""
    parts = (peer.script.partition(".")[0], peer.variant, point, str(run))
    folder = logs / "-".join(filter(None, parts))
    command = peer.environment.command(cache, SCRIPTS / peer.script)
    with set_up(peer, command, url, run, point, folder.absolute()) as stage:
        try:
            return judge(fight(stage))
        except (NotShown, psycopg.Error, OSError) as error:
            if (ending := _ending_behind(error)) is not None:
                raise ending from None
            return Verdict(point, void=str(error).partition("\n")[0])


def _ending_behind(error: BaseException | None) -> BaseException | None:
    """SIGTERM or Ctrl-C, if that is what the error came of: a statement that was broken off makes
    the next one on its connection fail."""
    while error is not None and not isinstance(error, SystemExit | KeyboardInterrupt):
        error = error.__context__
    return error


def describe(verdict: Verdict) -> str:
    """One line of progress."""
    if verdict.void is not None:
        return f"void: {verdict.void}"
    return (
        f"taken over after {verdict.takeover_seconds:.2f} s; the late effect "
        f"{'LANDED' if verdict.late_effect else 'did not land'}; "
        f"{'RAN AGAIN' if verdict.ran_again else 'did not run again'}; "
        f"{'told, ' + verdict.told if verdict.told else 'not told'}"
    )


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """The duels of the chosen peers; 0 if Faultline kept what it promises."""
    chosen = choose(arguments.peers)
    say = Console(stderr=True)
    logs = REPORTS / "duel"
    shutil.rmtree(logs, ignore_errors=True)
    cache = arguments.cache or settings.home / "peers"
    with Server.temporary(binaries=settings.binaries, options={"max_connections": "200"}) as server:
        rows = [play(peer, cache, server.url, arguments.runs, logs, say) for peer in chosen]
        report = {**facts(server.url, arguments.runs), "rows": rows}
    REPORTS.mkdir(parents=True, exist_ok=True)
    (REPORTS / "duel.json").write_text(json.dumps(report, indent=2) + "\n")
    if not arguments.json:
        Console(width=None if sys.stdout.isatty() else WIDTH).print(table(report))
    finish("duel", last_line(report))
    return 0 if all(kept(row) for row in rows if row["peer"] == "Faultline") else 1


def kept(row: dict[str, Any]) -> bool:
    """Whether each duel took place, and nothing late landed, ran again or went untold."""
    landed = sum(there["landed"] for there in row["late_effects"].values())
    return bool(row["duels"] == len(row["runs"]) == row["told"] and landed + row["ran_again"] == 0)


def choose(names: str | None) -> list[Peer]:
    """All, or those whose name begins with one of these."""
    if names is None:
        return peers()
    wanted = [name.strip().lower() for name in names.split(",")]
    found = [peer for peer in peers() if peer.name.lower().startswith(tuple(wanted))]
    if not found:
        sys.exit(f"no peer is named {names}; --list shows them")
    return found


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="proofs.duel", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3, help="duels of each peer (default 3)")
    parser.add_argument("--peers", metavar="A,B", help="only those whose names begin so")
    parser.add_argument("--cache", type=Path, help="where the peers are installed")
    parser.add_argument("--list", action="store_true", help="name the peers and end")
    parser.add_argument("--json", action="store_true", help="no table, just the line of JSON")
    parser.add_argument("--markdown", action="store_true", help="the last run's table, and end")
    arguments = parser.parse_args()
    if arguments.list:
        for peer in peers():
            print(f"{peer.name:30} {peer.settings}")
        return 0
    if arguments.markdown:
        print(document(json.loads((REPORTS / "duel.json").read_text())))
        return 0
    return ended_cleanly(lambda settings: run(settings, arguments))


if __name__ == "__main__":
    sys.exit(main())
