"""The race on demand: A stalls past its lease, B takes over and commits, A wakes and is refused.

Two OS processes drive the verbs; A is really stopped (SIGSTOP) and really resumed (SIGCONT). The
order is forced by barriers in the database, so it comes out the same every time:

    make lease-race RUNS=500     so many races in parallel; the last line is one JSON object
    make lease-race-log          one race, as a structured trace in JSON lines
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg

from faultline.config import Settings
from faultline.connect import connect
from faultline.demo.ground import database
from faultline.errors import FaultlineError
from faultline.migrate import migrate
from faultline.protocol import Protocol
from faultline.reading import Reading
from proofs.stopwatch import finish
from proofs.trace import SCHEMA, SETUP, Line, Trace

LEASE_SECONDS = 1.0
STALL_SECONDS = 2.5
# The events of the contract, in the order in which they have to come.
STORY = (
    ("A", "lease_acquired"),
    ("A", "execution_started"),
    ("B", "lease_acquired"),
    ("B", "execution_started"),
    ("A", "stale_write_blocked"),
    ("A", "worker_exit"),
    ("B", "worker_exit"),
)
Listener = Callable[[Line], None]


@dataclass
class Race:
    """One race that was run: its trace, and what was found wrong with it."""

    job_id: UUID
    lines: list[Line]
    charges: list[tuple[int, str]] = field(default_factory=list)
    refusals: int = 0
    recovery_seconds: float | None = None  # from the expiry to the successor's commit
    state: str = ""
    faults: list[str] = field(default_factory=list)

    def story(self) -> list[Line]:
        """The events of the contract, without what the harness itself noted."""
        names = {name for _, name in STORY}
        return [line for line in self.lines if line["event"] in names]


def prepare(url: str, schema: str) -> None:
    """Migrate, and make the tables of the harness, which no queue owns."""
    with connect(url, schema=None) as conn:
        migrate(conn, schema)
        conn.execute(SETUP)


def clear_up(url: str) -> None:
    """Take the harness's own tables away again; the jobs stay."""
    with connect(url, schema=None) as conn:
        conn.execute(f"drop schema {SCHEMA} cascade")


def play(
    url: str,
    schema: str,
    *,
    lease_seconds: float = LEASE_SECONDS,
    stall_seconds: float = STALL_SECONDS,
    listener: Listener | None = None,
) -> Race:
    """Run one race to its end and judge it."""
    run = f"race-{uuid.uuid4().hex[:12]}"
    with connect(url, schema=schema) as conn:
        verbs = Protocol(schema)
        enqueue = verbs.enqueue("charge", {"amount": 42}, queue=run, lease_seconds=lease_seconds)
        job_id = enqueue.run(conn)
        (lane,) = verbs.lanes([run]).run(conn)
        trace = Trace(url, run, listener)
        try:
            with racers(url, schema, run, lane.lane) as (a, b):
                direct(trace, a, b, stall_seconds)
            return judge(conn, schema, Race(job_id, trace.lines()))
        finally:
            trace.close()


def direct(trace: Trace, a: subprocess.Popen[bytes], b: subprocess.Popen[bytes], s: float) -> None:
    """Stop A when it has begun, resume it when B has committed, and see both end."""

    def watch() -> None:
        for name, process in (("A", a), ("B", b)):
            if process.poll():
                raise RuntimeError(f"worker {name} ended with {process.returncode}")

    trace.wait("a_started", watch=watch)
    a.send_signal(signal.SIGSTOP)
    stopped_at = time.monotonic()
    trace.note({"event": "worker_stalled", "worker": "A", "pid": a.pid, "signal": "SIGSTOP"})
    trace.open("a_stopped")
    trace.wait("b_committed", watch=watch)
    time.sleep(max(0.0, s - (time.monotonic() - stopped_at)))  # the stall is this long, at least
    trace.note({"event": "worker_resumed", "worker": "A", "pid": a.pid, "signal": "SIGCONT"})
    a.send_signal(signal.SIGCONT)
    trace.wait("a_refused", watch=watch)
    for process in (a, b):
        process.wait(timeout=60)
    trace.wait("a_refused")  # open already: shows what came last


@contextmanager
def racers(
    url: str, schema: str, run: str, lane: int
) -> Iterator[tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]]:
    """Both processes; whatever happens, neither outlives the block.

    Each is a process group of its own: should this process die, the kernel hangs up on the group,
    also on a member that is stopped.
    """
    started: list[subprocess.Popen[bytes]] = []
    try:
        for name in ("A", "B"):
            command = [sys.executable, "-m", "proofs.racer", name, schema, run, str(lane)]
            environment = {**os.environ, "FAULTLINE_DATABASE_URL": url}
            started.append(subprocess.Popen(command, process_group=0, env=environment))
        yield started[0], started[1]
    finally:
        for process in started:
            process.kill()
            process.wait()


def judge(conn: psycopg.Connection[Any], schema: str, race: Race) -> Race:
    """Compare what is in the database, and the trace, with what the contract says."""
    reading = Reading(schema)
    ledger = [entry["fencing_token"] for entry in reading.ledger(conn, race.job_id)]
    attempts = reading.attempts(conn, race.job_id)
    ends = {x["fencing_token"]: x["outcome"] for x in attempts}
    tokens = {line["worker"]: line["token"] for line in race.story() if "token" in line}
    job = reading.job(conn, race.job_id) or {}
    if len(attempts) == 2:
        race.recovery_seconds = (
            attempts[1]["at"] - attempts[0]["lease_expired_at"]
        ).total_seconds()
    race.state = str(job.get("state"))
    race.refusals = len(reading.refusals(conn, race.job_id))
    race.charges = conn.execute(
        "select token, worker from faultline_race.charge where job_id = %s", (race.job_id,)
    ).fetchall()
    claims = {
        "exactly one ledger entry": len(ledger) == 1,
        "min token = max token": bool(ledger) and min(ledger) == max(ledger),
        "the token is greater than A's": ledger == [tokens.get("B")]
        and tokens.get("B", 0) > tokens.get("A", 0),
        "A's attempt is recorded as expired": ends.get(tokens.get("A", 0)) == "expired",
        "final state succeeded": race.state == "succeeded",
        "one charge, by B": race.charges == [(tokens.get("B"), "B")],
        "the refusal is kept": race.refusals == 1,
        "the trace tells the story": [(x["worker"], x["event"]) for x in race.story()]
        == list(STORY),
    }
    race.faults = [claim for claim, holds in claims.items() if not holds]
    return race


def log(settings: Settings) -> int:
    """One race, as JSON lines in the order of the contract."""
    with database(settings) as url:
        prepare(url, settings.schema)
        race = play(url, settings.schema)
        clear_up(url)
    for line in race.story():
        print(json.dumps({**line, "at": line["at"].isoformat()}))
    for fault in race.faults:
        print(f"not so: {fault}", file=sys.stderr)
    return 1 if race.faults else 0


def run(settings: Settings, runs: int, parallel: int) -> int:
    """Many races at once; says how many came out right."""
    held = 0
    with database(settings) as url:
        prepare(url, settings.schema)
        pool = ThreadPoolExecutor(parallel)
        try:
            races = [pool.submit(play, url, settings.schema) for _ in range(runs)]
            for number, future in enumerate(as_completed(races), 1):
                race = future.result()
                held += not race.faults
                for fault in race.faults:
                    print(f"job {race.job_id}: not so: {fault}", file=sys.stderr)
                show_progress(held, number, runs)
        finally:
            pool.shutdown(cancel_futures=True)  # after Ctrl-C only those under way are finished
        with connect(url, schema=settings.schema) as conn:
            violations = len(Reading(settings.schema).violations(conn))
        clear_up(url)
    finish("race", {"races": runs, "held": held, "invariant_violations": violations})
    return 0 if held == runs and violations == 0 else 1


def show_progress(held: int, number: int, runs: int) -> None:
    """One line that counts up on a terminal, a line for every tenth part elsewhere."""
    if sys.stderr.isatty():
        end = "\n" if number == runs else "\r"
        print(f"{held} of {number} races held", file=sys.stderr, end=end, flush=True)
    elif number == runs or number % max(1, runs // 10) == 0:
        print(f"{held} of {number} races held", file=sys.stderr, flush=True)


def ended_cleanly(proof: Callable[[Settings], int]) -> int:
    """Run it with nothing left behind, also on Ctrl-C and SIGTERM; errors in one sentence."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return proof(Settings.from_environment())
    except FaultlineError as error:
        print(f"faultline: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; everything that was started has been stopped", file=sys.stderr)
        return 130


def main() -> int:
    """`run` or `log`."""
    parser = argparse.ArgumentParser(prog="proofs.race", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["run", "log"])
    parser.add_argument("--runs", type=int, default=500, help="how many races (default 500)")
    default = 4 * (os.cpu_count() or 1)
    parser.add_argument("--parallel", type=int, default=default, help=f"at once ({default})")
    arguments = parser.parse_args()
    if arguments.what == "log":
        return ended_cleanly(log)
    return ended_cleanly(lambda settings: run(settings, arguments.runs, arguments.parallel))


if __name__ == "__main__":
    sys.exit(main())
