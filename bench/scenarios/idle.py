"""What a worker costs that has nothing to do.

It first drains some thousand jobs, so that it has the size of a worker in use, and then is watched
for some seconds. Statements are counted in the server's log, which writes every one of this
database down; processor time and memory are the kernel's figures for the process.
"""

from __future__ import annotations

import time
from pathlib import Path

from bench.arena import Ground
from bench.blocks import Say
from bench.plan import Plan
from bench.rows import Bar, Row, skipped
from bench.statements import logged

SECONDS = 20.0
JOBS_FIRST = 5_000
CONNECTIONS = """
select count(*) from pg_stat_activity
 where datname = current_database() and usename <> current_user"""


def run(ground: Ground, plan: Plan, say: Say) -> list[Row]:
    """Four figures of one worker."""
    if ground.server is None or not Path("/proc/self/stat").exists():
        return [skipped("idle", "idle worker", "needs a server of its own, and /proc")]
    seconds = max(2.0, plan.seconds(SECONDS))
    with ground.arena() as arena, logged(arena) as log:
        worker = arena.worker()
        arena.enqueue(plan.number(JOBS_FIRST))
        arena.wait_until_done(worker)
        arena.wait_until_asleep(worker)
        time.sleep(seconds / 4)  # what it still has to do after its last job is not idling
        log.begin()
        before, started = worker.cpu_seconds(), time.monotonic()
        time.sleep(seconds)
        lasted = time.monotonic() - started
        used = worker.cpu_seconds() - before
        statements = log.lines()
        connections = arena.value(CONNECTIONS)
        resident = worker.resident_mb()
    facts = {"seconds": round(lasted, 1), "statements": [line.text[:100] for line in statements]}
    say(f"  {len(statements)} statements in {lasted:.0f} s, {used:.2f} s of processor time")
    return [
        Row("idle", "idle worker: statements", len(statements) / lasted, "/s", Bar(most=2), facts),
        Row("idle", "idle worker: processor", 100 * used / lasted, "%", Bar(most=1), {}),
        Row("idle", "idle worker: connections", connections, "", Bar(most=3), {}),
        Row("idle", "idle worker: memory", resident, "MB", Bar(most=80), {}),
    ]
