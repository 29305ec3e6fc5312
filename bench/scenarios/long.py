"""Many long jobs in one worker: how often their leases are renewed, and whether one is lost.

2,000 jobs with leases of 30 s sleep in one worker. `renew` is counted in the server's log from the
first renewal on; a lease is lost when its row is gone, or was ever taken over or refused.
"""

from __future__ import annotations

import time
from dataclasses import replace

from bench.arena import Arena, Ground
from bench.blocks import Say
from bench.plan import Plan
from bench.rows import Bar, Row, skipped
from bench.statements import Line, logged

JOBS = 2_000
LEASE_SECONDS = 30.0
SECONDS = 35.0
EVERY_SECONDS = 5.0
LOST = """
select %s - (select count(*) from {schema}.lease where expires_at > clock_timestamp())
     + (select count(*) from {schema}.attempt) + (select count(*) from {schema}.refusal)"""


def run(ground: Ground, plan: Plan, say: Say) -> list[Row]:
    """One worker, watched over several renewals."""
    jobs, seconds = plan.number(JOBS), plan.seconds(SECONDS)
    what = f"{jobs:,} long jobs in one worker, leases of {LEASE_SECONDS:.0f} s"
    if ground.server is None:
        return [skipped("long", what, "the log of somebody else's server cannot be read")]
    with ground.arena() as arena, logged(arena) as log:
        arena.enqueue(jobs, "long")
        arena.settle()
        worker = arena.worker("--concurrency", str(jobs))
        arena.wait(lambda: running(arena) == jobs, worker)
        log.begin()
        time.sleep(seconds)
        worker.check()
        renewals = [line for line in log.lines() if ".renew(" in line.text]
        lost = arena.value(LOST, jobs)
        worker.kill()
    say(f"  {len(renewals)} renewals in {seconds:.0f} s, {lost} leases lost")
    facts = {"seconds": seconds, "renewals": len(renewals)}
    row = Row("long", f"{what}: renewals", most(renewals), "in any 5 s", Bar(most=1), facts)
    if not renewals and seconds > LEASE_SECONDS:
        row = replace(row, skipped="no renewal was seen in the log", failed=True)
    return [
        row,
        Row("long", f"{what}: leases lost", lost, "", Bar(most=0), {}),
    ]


def running(arena: Arena) -> int:
    """How many leases there are."""
    return int(arena.value("select count(*) from {schema}.lease"))


def most(lines: list[Line]) -> int:
    """In any five seconds."""
    times = [line.at for line in lines]
    return max((sum(t <= x < t + EVERY_SECONDS for x in times) for t in times), default=0)
