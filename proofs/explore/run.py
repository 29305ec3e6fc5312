"""Run scenarios in parallel: several processes, each on databases of its own on one server.

A scenario is shared out by its first turns. Each process keeps the arena of the kind it used last;
scenarios of one kind come one after the other. Progress goes to stderr.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from proofs.explore.arena import Arena, install
from proofs.explore.scenario import Scenario
from proofs.explore.search import prefixes, schedules
from proofs.explore.timeline import timeline

SHARED_TURNS = 2
SILENCE_SECONDS = 10.0  # after which a large scenario says how far it is
TOLD = 3  # timelines a scenario; the rest is counted


@dataclass(slots=True)
class Tally:
    """What was counted, and the first timelines of what went wrong."""

    schedules: int = 0
    violations: int = 0
    deadlocks: int = 0
    blocked_steps: int = 0
    passed_over: int = 0
    told: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.schedules += other.schedules
        self.violations += other.violations
        self.deadlocks += other.deadlocks
        self.blocked_steps += other.blocked_steps
        self.passed_over += other.passed_over
        self.told += other.told[: TOLD - len(self.told)]

    @property
    def holds(self) -> bool:
        return self.violations == 0 and self.deadlocks == 0


def explore(
    arena: Arena,
    scenario: Scenario,
    prefix: str = "",
    *,
    at_most: int | None = None,
    until_bad: bool = False,
) -> Tally:
    """All schedules with this prefix, or the first so many, or those up to the first bad one."""
    tally = Tally()
    for played in schedules(arena, scenario, prefix):
        tally.passed_over += played.raced
        tally.schedules += not played.raced
        tally.violations += bool(played.broken)
        tally.deadlocks += played.deadlocks
        tally.blocked_steps += played.blocked_steps
        if played.bad and len(tally.told) < TOLD:
            tally.told.append(timeline(played))
        if tally.schedules == at_most or (until_bad and played.bad):
            break
    return tally


class Lane:
    """What one process keeps between its tasks."""

    url: str
    template: str
    scenarios: Sequence[Scenario]
    arena: Arena | None = None
    kind: tuple[str, ...] = ()
    stack = ExitStack()


def _begin(url: str, template: str, scenarios: Sequence[Scenario]) -> None:
    Lane.url, Lane.template, Lane.scenarios = url, template, scenarios


def _task(task: tuple[int, str]) -> tuple[int, Tally]:
    number, prefix = task
    scenario = Lane.scenarios[number]
    if Lane.arena is None or Lane.kind != scenario.splits:
        Lane.stack.close()
        Lane.arena = Lane.stack.enter_context(
            Arena(Lane.url, Lane.template, splits=scenario.splits)
        )
        Lane.kind = scenario.splits
    try:
        return number, explore(Lane.arena, scenario, prefix)
    except Exception as error:  # a pool waits for ever for what it cannot pickle
        raise RuntimeError(f"{scenario.name}:{prefix}… {error!r}") from None


def run(url: str, scenarios: Iterable[Scenario], processes: int | None = None) -> Tally:
    """All schedules of these scenarios."""
    chosen = sorted(scenarios, key=lambda scenario: scenario.splits)
    tasks = [(n, p) for n, s in enumerate(chosen) for p in prefixes(s, SHARED_TURNS)]
    left = {n: len(prefixes(s, SHARED_TURNS)) for n, s in enumerate(chosen)}
    tallies = [Tally() for _ in chosen]
    whole, played, began, said = Tally(), 0, time.monotonic(), time.monotonic()
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes or os.cpu_count(), _begin, (url, install(url), chosen)) as pool:
        for number, tally in pool.imap_unordered(_task, tasks):
            tallies[number].add(tally)
            left[number] -= 1
            played += tally.schedules
            now = time.monotonic()
            if left[number] == 0:
                whole.add(tallies[number])
                _report(chosen[number], tallies[number], now - began, played)
            elif now - said < SILENCE_SECONDS:
                continue
            else:
                _say(f"{now - began:6.0f} s  {played:>7}  {chosen[number].name} …")
            said = now
    return whole


def _report(scenario: Scenario, tally: Tally, seconds: float, played: int) -> None:
    verdict = "holds" if tally.holds else "BROKEN"
    _say(
        f"{seconds:6.0f} s  {played:>7}  {scenario.name:<32} {tally.schedules:>6} "
        f"schedules, {tally.blocked_steps:>5} blocked steps, {verdict}"
    )
    for told in tally.told:
        _say(told + "\n")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
