"""Handlers that suspend: sleeps of 1 to 50 ms, 500 at once.

What concurrency and sleep allow is 500 jobs in a mean sleep. Where the server cannot give out jobs
that fast, the bar is that of a drain: 0.6 of the SQL limit of this run.
"""

from __future__ import annotations

import statistics

from bench.arena import Ground
from bench.blocks import Say, alternated
from bench.plan import Plan
from bench.rows import Bar, Row, against, ratio, whole
from bench.scenarios.drain import block, warm_up

CONCURRENCY = 500
MEAN_SECONDS = 0.0255
# Each of 1 … 50 ms once in any fifty jobs, long and short ones mixed.
PAYLOAD = "jsonb_build_object('ms', 1 + mod(n * 19, 50))"


def run(ground: Ground, plan: Plan, say: Say) -> list[Row]:
    """The worker and the limit in turn."""
    options = ("--concurrency", str(CONCURRENCY))
    with ground.arena() as arena:
        warm_up(arena)
        kinds = {
            "limit": block(arena, plan.jobs, lambda: arena.limit()),
            "suspending": block(
                arena,
                plan.jobs,
                lambda: arena.drain(*options, jobs=plan.jobs),
                "nap",
                PAYLOAD,
            ),
        }
        seen = alternated(plan.rounds, kinds, say)
    allowed = CONCURRENCY / MEAN_SECONDS
    least = min(0.9, 0.6 * statistics.median(seen["limit"]) / allowed)
    facts: dict[str, object] = {"jobs": plan.jobs, "allowed_per_second": round(allowed)}
    facts |= {f"{kind}_per_second": whole(figures) for kind, figures in seen.items()}
    what = f"jobs that suspend for 1 to 50 ms, concurrency {CONCURRENCY}"
    figure = ratio(seen["suspending"], [allowed])
    return [
        Row(
            "suspending",
            what,
            figure,
            "of what concurrency and sleep allow",
            Bar(least=least),
            facts,
            against(seen["suspending"], [allowed]),
        )
    ]
