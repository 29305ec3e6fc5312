"""Single enqueues while real workers sleep, none, one and many, which also do the jobs.

The scenario `enqueue` has sessions that only listen, since it asks what announcements cost who
enqueues. Here are the processes: if each of them asked for every job that is announced, they would
take the machine from who enqueues. None, one and many have a database each, in turns. No bar: jobs
are done meanwhile, in the smaller batches the more do them, on the cores that enqueue them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from bench.arena import Arena, Ground
from bench.blocks import Say, alternated
from bench.plan import Plan
from bench.rows import Row, against, paired, whole
from bench.scenarios.enqueue import noop, settled_rate
from faultline import App

MANY = 20
SINGLES = 1_000  # in a block
TURNS = 2  # of them in a round
ASLEEP = "select count(distinct worker) from {schema}.sleeper"


def run(ground: Ground, plan: Plan, say: Say) -> list[Row]:
    """Enqueues a second beside so many, of those beside none."""
    many = max(2, plan.number(MANY))
    with ExitStack() as stack:
        kinds = {
            f"{workers} workers": beside_workers(stack, ground, workers, plan)
            for workers in (0, 1, many)
        }
        alternated(1, kinds, lambda _: None)  # the first round warms up
        seen = alternated(TURNS * plan.rounds, kinds, say, "enqueues/s")
    none, *some = seen
    return [
        Row(
            "beside",
            f"single enqueue, idle worker processes, which do the jobs: {beside}",
            paired(seen[beside], seen[none]),
            "of that with none",
            None,
            {kind: whole(figures) for kind, figures in seen.items()},
            against(seen[beside], seen[none], "/s"),
        )
        for beside in some
    ]


def beside_workers(
    stack: ExitStack, ground: Ground, workers: int, plan: Plan
) -> Callable[[], float]:
    """A database with so many workers that sleep; a block enqueues, and waits until all is done."""
    arena: Arena = stack.enter_context(ground.arena())
    app = stack.enter_context(App(arena.producer_url, schema=arena.schema))
    task = app.task(noop)
    task.enqueue()
    started = [arena.worker() for _ in range(workers)]
    arena.wait(lambda: arena.value(ASLEEP) == workers, *started)

    def block() -> float:
        rate = settled_rate(task.enqueue, plan.number(SINGLES), plan)
        for worker in started[:1]:
            arena.wait_until_done(worker)
        return rate

    return block
