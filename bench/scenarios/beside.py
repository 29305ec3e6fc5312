"""Single enqueues while real workers sleep: one, and many, which also do the jobs.

The scenario `enqueue` has sessions that only listen, since it asks what announcements cost who
enqueues. Here are the processes: if each of them asked for every job that is announced, they would
take the machine from who enqueues. One worker and many have a database each, in turns. No bar: jobs
are done meanwhile, in the smaller batches the more do them, on the cores that enqueue them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from bench.arena import Arena, Ground
from bench.blocks import Say, alternated
from bench.plan import Plan
from bench.rows import Row, against, ratio, whole
from bench.scenarios.enqueue import noop, settled_rate
from faultline import App

MANY = 20
SINGLES = 1_000  # in a block
TURNS = 2  # of them in a round
ASLEEP = "select count(distinct worker) from {schema}.sleeper"


def run(ground: Ground, plan: Plan, say: Say) -> list[Row]:
    """Enqueues a second beside many, of those beside one."""
    count, many = plan.number(SINGLES), max(2, plan.number(MANY))
    with ExitStack() as stack:
        beside = {
            "one": beside_workers(stack, ground, 1, count),
            "many": beside_workers(stack, ground, many, count),
        }
        alternated(1, beside, lambda _: None)  # the first round warms up
        seen = alternated(TURNS * plan.rounds, beside, say, "enqueues/s")
    return [
        Row(
            "beside",
            f"single enqueue, {many} idle worker processes, which do the jobs",
            ratio(seen["many"], seen["one"]),
            "of that with one",
            None,
            {name: whole(figures) for name, figures in seen.items()},
            against(seen["many"], seen["one"], "/s"),
        )
    ]


def beside_workers(
    stack: ExitStack, ground: Ground, workers: int, count: int
) -> Callable[[], float]:
    """A database with so many workers that sleep; a block enqueues, and waits until all is done."""
    arena: Arena = stack.enter_context(ground.arena())
    app = stack.enter_context(App(arena.producer_url, schema=arena.schema))
    task = app.task(noop)
    task.enqueue()
    for _ in range(workers):
        worker = arena.worker()
    arena.wait(lambda: arena.value(ASLEEP) == workers, worker)

    def block() -> float:
        rate = settled_rate(task.enqueue, count)
        arena.wait_until_done(worker)
        return rate

    return block
