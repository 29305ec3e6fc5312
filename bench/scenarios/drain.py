"""Draining no-op jobs, against what the server itself can do in the same run.

Counted from the first claim to the last ending, by the times that the database recorded; the start
of the process is not counted, the start of a second one (which the first claim does not wait for)
is. The limit is `swap` in a loop inside the server, batch 500, on two connections.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.arena import Arena, Ground
from bench.blocks import Say, alternated
from bench.plan import Plan
from bench.rows import Bar, Row, against, paired, whole

WARM_UP = 5_000
TURNS = 2  # of the limit and one process in a round: from turn to turn they differ by a tenth


def run(ground: Ground, plan: Plan, say: Say) -> list[Row]:
    """One process, two, and one with sync handlers."""
    with ground.arena() as arena:
        warm_up(arena)
        limit = block(arena, plan.jobs, lambda: arena.limit())
        one = block(arena, plan.jobs, lambda: arena.drain(jobs=plan.jobs))
        two = block(arena, plan.jobs, lambda: arena.drain("--processes", "2", jobs=plan.jobs))
        sync = block(arena, plan.jobs, lambda: arena.drain(jobs=plan.jobs), "noop_sync")
        seen = alternated(TURNS * plan.rounds, {"limit": limit, "one": one}, say)
        others = alternated(plan.rounds, {"limit": limit, "two": two, "sync": sync}, say)
    told = (
        (seen, "one", "drain of no-op async jobs, 1 process", Bar(least=0.6)),
        (others, "two", "drain of no-op async jobs, 2 processes", None),
        (others, "sync", "drain of no-op sync jobs, 1 process", None),
    )
    return [
        Row(
            "drain",
            what,
            paired(found[kind], found["limit"]),
            "of the SQL limit",
            bar,
            {
                "jobs": plan.jobs,
                "jobs_per_second": whole(found[kind]),
                "limit_per_second": whole(found["limit"]),
            },
            against(found[kind], found["limit"]),
        )
        for found, kind, what, bar in told
    ]


def warm_up(arena: Arena) -> None:
    """Once through everything, so that no block pays for a cold server."""
    arena.enqueue(WARM_UP)
    arena.limit()


def block(
    arena: Arena, jobs: int, drain: Callable[[], float], task: str = "noop", payload: str = "'{}'"
) -> Callable[[], float]:
    """From empty tables, with so many jobs queued and the server at rest."""

    def measure() -> float:
        arena.empty()
        arena.enqueue(jobs, task, payload=f"({payload})::jsonb")
        arena.settle()
        return drain()

    return measure
