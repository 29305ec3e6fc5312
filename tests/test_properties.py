"""Any order of the public verbs: what the server answers and holds is what a small oracle says.

Method: a hypothesis state machine plays three workers that remember every attempt they ever had and
use any of them again, alone or in batches, and the world around them: producers, operators, leases
that expire, pointers that are lost. After every step the verb's answer, the views, the refusals and
a user's table of effects are compared with the oracle of tests/oracle.py. In the end every worker
dies, the queue is drained, every job has ended and no invariant is violated. A failure is shrunk
and told as a story with job numbers.

In the suite the examples are always the same ones. To search for others, at random and longer:

    FAULTLINE_PROPERTY_EXAMPLES=3000 python -m pytest tests/test_properties.py -k agrees
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from importlib import resources
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from proofs.mutants import guards
from tests.stage import Stage
from tests.world import QUEUES, Step, World

SOUGHT = os.environ.get("FAULTLINE_PROPERTY_EXAMPLES")


def explore(stage: Stage, **options: Any) -> None:
    """Play the world on this stage; raises AssertionError with the shortest story it finds."""
    stage.execute("create table if not exists effect (job_id uuid, token bigint, kind text)")
    for queue in QUEUES:
        for priority in (0, 5):
            stage.enqueue(queue=queue, priority=priority)
    world = type("World", (World,), {"stage": stage})
    fixed = {"deadline": None, "database": None, "phases": [Phase.generate]}
    try:
        run_state_machine_as_test(
            world, settings=settings(**fixed, **options, suppress_health_check=list(HealthCheck))
        )
    except AssertionError as error:
        raise AssertionError(shortest(world, world.latest.steps, str(error))) from None


def shortest(world: type[World], steps: list[Step], story: str) -> str:
    """Leave out every step, and make every step smaller, without which it goes wrong as well.

    For a stale complete, complete_one or fail, hypothesis's own shrinking took 50 to 130 s and left
    up to 11 lines; this takes 6 to 16 s, search included, and leaves 6.
    """
    n = len(steps)
    while n:
        n -= 1
        for replaced in ([], *([step] for step in simpler(*steps[n]))):
            shorter = [*steps[:n], *replaced, *steps[n + 1 :]]
            found = ((other, retell(world(), other)) for other in with_other_endings(shorter))
            if better := next((pair for pair in found if pair[1]), None):
                steps, story = better
                n = min(len(steps), n + 1)
                break
    return story


def with_other_endings(steps: list[Step]) -> Iterator[list[Step]]:
    """The last step may have to name another attempt now."""
    yield steps
    name, drawn = steps[-1] if steps else ("", {})
    if "which" in drawn:
        yield from ([*steps[:-1], (name, {**drawn, "which": [n], "meant": None})] for n in range(4))


def simpler(name: str, drawn: dict[str, Any]) -> Iterator[Step]:
    usual = {"worker": "A", "served": QUEUES, "started": True, "size": 1}
    for what, value in drawn.items():
        if what in ("which", "wanted") and len(value) > 1:
            yield from ((name, {**drawn, what: [one], "meant": None}) for one in value)
        elif value != usual.get(what, value):
            yield name, {**drawn, what: usual[what]}


def retell(world: World, steps: list[Step]) -> str:
    """The story of these steps, if it goes wrong."""
    try:
        for name, drawn in steps:
            if world.possible(name):
                world.play(name, drawn)
        world.teardown()
    except AssertionError as error:
        return str(error)
    return ""


@pytest.mark.both_servers
def test_whatever_the_order_of_the_verbs_the_server_agrees_with_the_oracle(stage: Stage) -> None:
    examples = int(SOUGHT or 40)
    explore(stage, max_examples=examples, stateful_step_count=40, derandomize=not SOUGHT)


BROKEN = {  # without this guard the story ends with a line like this
    "complete compares the token": r"\b[ABC] completes job \d with stale token 1 → accepted",
    "the settling verbs compare the token": r"\b[ABC] \w+s job \d with stale token 1.* → accepted",
    "reclaim burns the old token": r"reclaims .* → job \d from [ABC], quarantined",
}


@pytest.mark.parametrize("guard", BROKEN)
def test_without_a_guard_the_shortest_story_of_a_stale_worker_is_found(
    stage: Stage, guard: str
) -> None:
    remove(stage, guard)
    with pytest.raises(AssertionError, match="the server and the oracle disagree") as caught:
        explore(stage, max_examples=2000, stateful_step_count=12, derandomize=True)
    story = str(caught.value).splitlines()
    assert re.search(BROKEN[guard], story[-2]), "\n".join(story)
    assert len(story) <= 9, "\n".join(story)


def remove(stage: Stage, name: str) -> None:
    """Take this guard out of the function that is installed in this test's own database."""
    guard = next(guard for guard in guards() if guard.name == name)
    source = resources.files("faultline").joinpath(guard.file).read_text("utf-8")
    functions = re.findall(r"create or replace function \{schema\}\.(\w+)", source)
    find = """select pg_get_functiondef(oid) from pg_proc where pronamespace = %s::regnamespace
              and proname = any (%s) and position(%s in prosrc) > 0"""
    [installed] = stage.execute(find, stage.schema, functions, guard.text)
    broken = installed[0].replace(guard.text, guard.without)
    stage.execute(f"set search_path = {stage.schema}; {broken}; reset search_path")
