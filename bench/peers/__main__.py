"""`make bench-peers`: Faultline and other queues under the same work, interleaved in one run.

Each peer runs in an environment of its own (the first run installs them, a minute or two), with the
settings that its documentation recommends for many short jobs. Each round gives every peer its
turn: bulk enqueue, a drain by one worker and by two, and pickup latency at 50 jobs a second.
Figures are medians of the rounds. The last line on stdout is one JSON object; all of it, with
plots, is in reports/bench. The exit status is 1 if a bar was missed.

    python -m bench.peers --list
    python -m bench.peers --peers faultline,graphile --rounds 1
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console

from bench.blocks import Say
from bench.peers.bars import rows_of
from bench.peers.page import document, table
from bench.peers.peer import PEERS, Peer
from bench.peers.stage import OPTIONS, PER_SECOND, Failed, set_up
from bench.plan import Plan
from bench.report import WIDTH, facts, publish
from faultline.config import Settings
from faultline.launcher import Server
from proofs.peers.environment import Unavailable
from proofs.race import ended_cleanly

OUT = Path("reports/bench")
PICKUP_SECONDS = 10.0
Row = dict[str, Any]


def measure(chosen: list[Peer], plan: Plan, cache: Path, url: str, say: Say) -> list[Row]:
    """All rounds of all peers, every other one backwards, so that neighbours stay neighbours: in a
    few minutes the machine changes more than they differ. One that cannot be had, or fails, keeps
    the reason, and has no figures: those of fewer rounds would not compare."""
    rows = [_new_row(peer, plan) for peer in chosen]
    for peer, row in zip(chosen, rows, strict=True):
        try:
            say(f"{peer.name}: its environment …")
            peer.environment.make(cache)
            row["version"] = peer.environment.version(cache)
        except Unavailable as error:
            row["skipped"] = str(error)
    for number in range(plan.rounds):
        both = list(zip(chosen, rows, strict=True))
        for peer, row in reversed(both) if number % 2 else both:
            if row["skipped"] is not None:
                continue
            try:
                with set_up(peer, cache, url) as turn:
                    found = turn.play(row["jobs"], row["probes"])
            except (Unavailable, Failed, psycopg.Error) as error:
                row["failed"] = not isinstance(error, Unavailable)
                row["skipped"] = str(error).partition("\n")[0]
                row["rounds"] = {}
                say(f"  {peer.name}: {row['skipped']}")
                continue
            for part, figure in found.items():
                row["rounds"].setdefault(part, []).append(round(figure, 2))
            told = ", ".join(f"{part} {figure:,.1f}" for part, figure in found.items())
            say(f"  round {number + 1} of {plan.rounds}, {peer.name}: {told}")
    for row in rows:
        row["medians"] = {part: statistics.median(x) for part, x in row["rounds"].items()}
    return rows


def _new_row(peer: Peer, plan: Plan) -> Row:
    return {
        "peer": peer.name,
        "settings": peer.settings,
        "on_postgresql": not peer.redis,
        "jobs": max(10, round(plan.jobs * peer.share)),
        "probes": max(25, round(plan.seconds(PICKUP_SECONDS) * PER_SECOND)),
        "version": None,
        "skipped": None,
        "failed": False,
        "rounds": {},
        "medians": {},
    }


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Measure, print, write."""
    plan = Plan.quick() if arguments.quick else Plan()
    plan = Plan(arguments.jobs or plan.jobs, arguments.rounds or plan.rounds, plan.share)
    console = Console(stderr=True)

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    cache = arguments.cache or settings.home / "peers"
    with Server.temporary(binaries=settings.binaries, options=OPTIONS) as server:
        peers = measure(choose(arguments.peers), plan, cache, server.url, say)
        command = f"python -m bench.peers {' '.join(sys.argv[1:])}".strip()
        report = facts(server.url, command, jobs=plan.jobs, rounds=plan.rounds, peers=peers)
    Console(width=None if sys.stdout.isatty() else WIDTH).print(table(peers))
    return publish(arguments.out, "peers", "Bars", report, rows_of(peers))


def choose(names: str | None) -> list[Peer]:
    """All, or those whose name begins with one of these."""
    if names is None:
        return list(PEERS)
    wanted = tuple(name.strip().lower() for name in names.split(","))
    found = [peer for peer in PEERS if peer.name.lower().startswith(wanted)]
    if not found:
        sys.exit(f"no peer is named {names}; --list shows them")
    return found


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="bench.peers", description=__doc__.splitlines()[0])
    parser.add_argument("--peers", metavar="A,B", help="only those whose names begin so")
    parser.add_argument("--quick", action="store_true", help="smaller, and one round (a look)")
    parser.add_argument("--rounds", type=int, metavar="N", help="medians of so many (3)")
    parser.add_argument("--jobs", type=int, metavar="N", help="of the fast ones (100000)")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="where the peers are installed")
    parser.add_argument("--out", type=Path, default=OUT, metavar="DIR", help=f"({OUT})")
    parser.add_argument("--list", action="store_true", help="name the peers and end")
    parser.add_argument("--markdown", action="store_true", help="the last run's table, and end")
    arguments = parser.parse_args()
    if arguments.list:
        for peer in PEERS:
            print(f"{peer.name:26} {peer.settings}")
        return 0
    if arguments.markdown:
        print(document(json.loads((arguments.out / "peers.json").read_text())))
        return 0
    return ended_cleanly(lambda settings: run(settings, arguments))


if __name__ == "__main__":
    sys.exit(main())
