"""The story of the stalled worker, told by two real `faultline worker` processes.

A is stopped (SIGSTOP) inside its handler; B takes the job over and charges the customer; A wakes up
and charges again. Then the short form of `make comparison`: the same faults for Faultline and for a
naive lease queue, side by side. Shows the timeline as it happens; every figure of the summary was
measured by this run.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from rich.console import Console
from rich.text import Text

from faultline.config import Settings
from faultline.connect import connect
from faultline.demo.actors import Cast, Line
from faultline.demo.comparison.contenders import stale_writes
from faultline.demo.comparison.driver import WORKERS
from faultline.demo.comparison.schedule import plan
from faultline.demo.comparison.showing import progress, table
from faultline.demo.comparison.side_by_side import arena, compare
from faultline.demo.ground import shop
from faultline.demo.shop import LEASE_SECONDS, QUEUE
from faultline.protocol import Protocol
from faultline.provenance import provenance
from faultline.reading import Reading

FAULT_RATE = 0.2
JOBS = 40
SEED = 1

SENTENCES = {
    "worker_started": "is ready: `faultline worker`, process {pid}",
    "lease_acquired": "claims {job} under token {token}; the lease lasts {lease:g} s",
    "execution_started": "calls the handler: charge the customer, record it",
    "worker_stalled": "stalls: process {pid} is stopped (SIGSTOP)",
    "lease_reclaimed": "finds the lease expired and takes the job over; token {token} is burnt",
    "job_completed": "has charged order {order}: row and check in one commit, token {token}",
    "worker_resumed": "wakes up (SIGCONT) and goes on: the same charge, the same job",
    "lease_lost": "notices by itself that its lease is over, and tells the handler, which will "
    "not listen",
    "stale_write_blocked": "REFUSED by the database: token {stale_token} is stale, the job is at "
    "{current_token} ({reason}); the charge is rolled back, the refusal kept",
    "renewal_blocked": "is refused the renewal of its lease: token {stale_token} is stale",
    "worker_draining": "is asked to end (SIGTERM)",
    "worker_exit": "exits: {reason}",
}
STYLES = {"stale_write_blocked": "bold red", "job_completed": "bold green"}


class Timeline:
    """Prints each line when it comes, with the seconds since the first claim."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._start: datetime | None = None
        self._early: list[Line] | None = []  # None: the job has been taken over
        self.orders: dict[str, int] = {}

    def __call__(self, line: Line) -> None:
        """B takes over in one thread and claims in another, which may be quicker to say so."""
        if self._early is None or line["actor"] != "B" or "job_id" not in line:
            self._tell(line)
        elif line["event"] != "lease_reclaimed":
            self._early.append(line)
        else:
            early, self._early = self._early, None
            for each in (line, *early):
                self._tell(each)

    def _tell(self, line: Line) -> None:
        event = line["event"]
        if event == "stale_write_blocked" and line["operation"] == "renew":
            event = "renewal_blocked"  # by its lease keeper; the charge is still to come
        if event not in SENTENCES:
            return
        at = datetime.fromisoformat(line["at"])
        self._start = self._start or at
        job_id = line.get("job_id", "")
        words = SENTENCES[event].format(
            **line,
            lease=LEASE_SECONDS,
            order=self.orders.get(job_id),
            # Each job counts its tokens from 1: that of the second one is not the burnt one.
            job="the job" if [job_id] == [*self.orders][:1] else "the next job",
        )
        indent = 0 if line["actor"] == "A" else 4
        text = Text()
        elapsed = (at - self._start).total_seconds()
        text.append(f"t={elapsed:5.2f} s  {' ' * indent}{line['actor']} ", "dim")
        text.append(words, STYLES.get(event, "cyan" if line["actor"] == "A" else "yellow"))
        self._console.print(text, soft_wrap=True)


@dataclass(frozen=True)
class Played:
    """What came out, from the database and from a table that no queue owns."""

    charges: list[tuple[int, int]]
    states: list[str]
    refusals: int
    violations: int
    recovery_seconds: float
    server: int


def play(url: str, schema: str, cast: Cast, timeline: Timeline) -> Played:
    """The story, in the order in which it has to happen."""
    with connect(url, schema=schema) as conn:
        verbs = Protocol(schema)

        def order(number: int) -> UUID:
            job_id = verbs.enqueue(
                "charge", {"order_id": number}, queue=QUEUE, lease_seconds=LEASE_SECONDS
            ).run(conn)
            timeline.orders[str(job_id)] = number
            return job_id

        a = cast.enter("A")
        cast.wait("A", "worker_started")
        job_id = order(7)
        cast.wait("A", "execution_started")
        a.send_signal(signal.SIGSTOP)
        cast.note("A", "worker_stalled", pid=a.pid)
        b = cast.enter("B")
        cast.wait("B", "job_completed")
        cast.note("A", "worker_resumed", pid=a.pid)
        a.send_signal(signal.SIGCONT)
        while cast.wait("A", "stale_write_blocked")["operation"] == "renew":
            pass  # by its lease keeper; the charge is still to come
        b.send_signal(signal.SIGTERM)
        cast.wait("B", "worker_exit")
        following = order(8)  # A lives on, and takes the next job
        cast.wait("A", "job_completed")
        a.send_signal(signal.SIGTERM)
        cast.wait("A", "worker_exit")
        return judge(conn, schema, [job_id, following])


def judge(conn: Any, schema: str, jobs: list[UUID]) -> Played:
    """Look at what is there now."""
    reading = Reading(schema)
    expired, succeeded = reading.attempts(conn, jobs[0])
    charges = conn.execute(f"select order_id, token from {schema}_shop.charge order by 1, 2")
    return Played(
        charges=charges.fetchall(),
        states=[str((reading.job(conn, job_id) or {}).get("state")) for job_id in jobs],
        refusals=stale_writes(reading.refusals(conn, jobs[0])),
        violations=len(reading.violations(conn)),
        recovery_seconds=(succeeded["at"] - expired["lease_expired_at"]).total_seconds(),
        server=conn.info.server_version,
    )


def contrast(url: str, schema: str, console: Console) -> dict[str, Any]:
    """The same faults for Faultline and for a naive queue; what came out for each."""
    schedule = plan(SEED, FAULT_RATE, JOBS)
    console.print(
        f"\nNow {JOBS} jobs on {WORKERS} workers of Faultline, and of a naive queue: leases, no "
        f"token. {len(schedule.faults)} of the jobs have their worker stopped, killed or cut off:",
        soft_wrap=True,
    )
    with arena(url, schema), progress(console) as listener:
        found = compare(url, schema, schedule, listener)
    console.print(table([found]))
    return found


def summarise(played: Played, found: dict[str, Any], command: str) -> dict[str, Any]:
    """The figures of this run: the story's and the comparison's together."""
    orders = [order for order, _ in played.charges]
    faultline = found["faultline"]
    duplicates = len(orders) - len(set(orders)) + faultline["duplicates"]
    unfinished = sum(state != "succeeded" for state in played.states)
    lost = unfinished + len({7, 8} - set(orders)) + faultline["lost"]
    violations = max(played.violations, faultline["violations"])
    refused = played.refusals + faultline["stale_refused"]
    return {
        "fault_rate": found["fault_rate"],
        "jobs": found["jobs"],
        "faults": faultline["faults"],
        "faultline_duplicates": duplicates,
        "naive_duplicates": found["naive"]["duplicates"],
        "lost_jobs": lost,
        "invariant_violations": violations,
        "stale_writes_prevented": refused,
        "safe_for_controlled_release_validation": violations == duplicates == lost == 0
        and refused >= 1,
        "recovery_seconds_after_expiry": played.recovery_seconds,
        **provenance(command, played.server),
        "seed": found["seed"],
    }


@dataclass(frozen=True)
class Told:
    """The figures, and why they would prove nothing (a fault that did not happen)."""

    summary: dict[str, Any]
    invalid: list[str]

    @property
    def held(self) -> bool:
        """Whether everything was as promised, in a run that could have shown otherwise."""
        return self.summary["safe_for_controlled_release_validation"] and not self.invalid


def tell(settings: Settings, console: Console, command: str) -> Told:
    """Play, show, sum up; `command` is what the summary says it was made by."""
    console.print("Faultline: a worker stalls, another takes over, the first one wakes up.")
    if settings.database_url is None:
        console.print("Starting PostgreSQL …", style="dim")
    timeline = Timeline(console)
    with shop(settings) as (url, schema):
        with Cast("faultline.demo.shop:app", url, schema, timeline) as cast:
            played = play(url, schema, cast, timeline)
        charged = ", ".join(f"order {order} under token {token}" for order, token in played.charges)
        console.print(
            f"Charges in the shop's own table: {len(played.charges)} ({charged}).", soft_wrap=True
        )
        found = contrast(url, schema, console)
    return Told(summarise(played, found, command), found["invalid"])
