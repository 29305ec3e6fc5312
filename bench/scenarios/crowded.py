"""A drain beside a million finished and a million scheduled jobs, against one in empty tables.

Both are databases of one server and their drains alternate. The million are made by the functions
themselves: enqueued and drained by the SQL limit, and enqueued for next month.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from bench.arena import Arena, Ground
from bench.blocks import Say, alternated
from bench.plan import Plan
from bench.rows import Bar, Row, against, ratio, whole
from bench.scenarios.drain import block, warm_up
from faultline.connect import connect

OTHERS = 1_000_000
MONTH_SECONDS = 30 * 86_400.0


def run(ground: Ground, plan: Plan, say: Say) -> list[Row]:
    """One process, in each of two databases."""
    others = plan.number(OTHERS)
    with ground.arena() as empty, ground.arena() as crowded:
        warm_up(empty)
        say(f"  {others:,} finished and {others:,} scheduled jobs …")
        crowd(crowded, others)

        def drained() -> float:
            crowded.enqueue(plan.jobs)
            crowded.settle()
            return crowded.drain(jobs=plan.jobs)

        kinds = {
            "empty": block(empty, plan.jobs, lambda: empty.drain(jobs=plan.jobs)),
            "crowded": drained,
        }
        seen = alternated(plan.rounds, kinds, say)
    facts: dict[str, object] = {"jobs": plan.jobs, "finished": others, "scheduled": others}
    facts |= {kind: whole(figures) for kind, figures in seen.items()}
    what = f"drain with {others:,} finished and {others:,} scheduled jobs present"
    figure = ratio(seen["crowded"], seen["empty"])
    told = against(seen["crowded"], seen["empty"])
    return [Row("crowded", what, figure, "of empty", Bar(least=0.9), facts, told)]


def crowd(arena: Arena, count: int) -> None:
    """So many of each, both at once to save time."""
    with connect(arena.url, schema=None) as other, ThreadPoolExecutor(1) as beside:
        scheduled = beside.submit(arena.enqueue, count, delay=MONTH_SECONDS, conn=other)
        arena.enqueue(count)
        arena.limit()
        scheduled.result()
