"""`make bench-crashing`: what 1,000 jobs that crash without end cost a neighbour (a minute).

Their leases last a millisecond, so each attempt is lost as soon as it has begun; one worker serves
them and a job of somebody else's every tenth of a second. The delay of that job is from its
enqueue to its success, by the database's clock; first without the crashing jobs, then beside them,
from their third attempt on. (The first two come without a pause: as any 2,000 jobs that are
enqueued at once, they delay those behind them by the time that they take.)
The last line is one JSON object; the exit code is 0 if the 99th percentile is at most 100 ms later.
"""

from __future__ import annotations

import json
import sys
import time

from bench.arena import Arena, ground
from faultline.config import Settings

CRASHING = 1_000
NEIGHBOURS = 300
EVERY_SECONDS = 0.1
MOST_MILLISECONDS = 100.0

CRASH = """select count({schema}.enqueue('nap', '{{"ms": 5}}', lease_seconds => 0.001,
    max_crashes => 100)) from generate_series(1, {jobs})"""
IS_PAUSING = """select not exists (select from {schema}.ready)
    and not exists (select from {schema}.lease) and exists (select from {schema}.scheduled)"""
DELAYS = """select percentile_disc(array[0.5, 0.99, 1]) within group (order by delay) from (
    select extract(epoch from a.at - j.created_at)::float8 * 1000 as delay
      from {schema}.job j join {schema}.attempt a on a.job_id = j.id
     where j.id = any (%s) and a.outcome = 'succeeded') d"""


def delays(arena: Arena) -> dict[str, float]:
    """Return the milliseconds from enqueue to success of a neighbour: median, 99 %, longest."""
    jobs = []
    for _ in range(NEIGHBOURS):
        jobs.append(arena.value("select {schema}.enqueue('noop')"))
        time.sleep(EVERY_SECONDS)
    ended = "select count(*) from {schema}.ledger where job_id = any (%s)"
    arena.wait(lambda: arena.value(ended, jobs) == NEIGHBOURS)
    milliseconds = arena.value(DELAYS, jobs)
    return dict(zip(("p50", "p99", "max"), (round(ms, 1) for ms in milliseconds), strict=True))


def main() -> int:
    """Measure on an embedded server, or the one that the settings name."""
    with ground(Settings.from_environment()) as here, here.arena() as arena:
        arena.wait_until_asleep(arena.worker())
        alone = delays(arena)
        print(f"alone: {alone}", file=sys.stderr)
        arena.run("update {schema}.setting set lease_seconds_floor = 0.001")
        arena.run(CRASH, jobs=CRASHING)
        arena.wait(lambda: bool(arena.value(IS_PAUSING)))
        beside = delays(arena)
        lost = arena.value("select count(*) from {schema}.attempt where outcome <> 'succeeded'")
        print(f"beside {CRASHING:,} that crash: {beside}; {lost:,} attempts", file=sys.stderr)
    is_met = beside["p99"] - alone["p99"] <= MOST_MILLISECONDS
    print(json.dumps({"alone": alone, "beside": beside, "attempts": lost, "is_met": is_met}))
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
