"""Enumerate: all schedules of a scenario that begin with a given prefix, each played once.

A depth-first walk over the turns. Who can have a turn is known only when it comes to it (others may
wait), so each schedule is played from the start, and leaves behind who else could have had its
turns; the deepest turn that somebody else has not had yet comes next. Reductions: BEGIN is no turn
of its own (steps.py), and of two twins only one begins first (scenario.py). No other is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import product

from proofs.explore.arena import Arena
from proofs.explore.play import Diverged, Play, Played
from proofs.explore.scenario import Scenario

# When two have waited for one lock, the server lets either have it first, and so decides who can
# have the turns after that. A schedule is tried so often until it comes out the same way again.
TRIES = 25


def schedules(arena: Arena, scenario: Scenario, prefix: str = "") -> Iterator[Played]:
    """Each schedule with this prefix; none if it cannot be followed."""
    try:
        played = Play(arena, scenario).run(prefix)
    except Diverged:
        return
    yield played
    turns, choices = played.turns, played.choices
    while (after := next_turns(turns, choices, len(prefix))) is not None:
        turns = after
        try:
            played = replay(arena, scenario, turns, choices[: len(turns)])
        except Diverged:
            yield Played(scenario, turns, raced=True)
            continue
        yield played
        turns, choices = played.turns, played.choices


def next_turns(turns: str, choices: list[str], fixed: int) -> str | None:
    """The deepest turn that somebody else can have, and the turns before it."""
    for n in range(len(turns) - 1, fixed - 1, -1):
        later = choices[n][choices[n].index(turns[n]) + 1 :]
        if later:
            return turns[:n] + later[0]
    return None


def replay(arena: Arena, scenario: Scenario, turns: str, known: Sequence[str] = ()) -> Played:
    """Play it; raises Diverged if these turns cannot be given, however often it is tried."""
    for _ in range(TRIES - 1):
        with suppress(Diverged):
            return Play(arena, scenario).run(turns, known)
    return Play(arena, scenario).run(turns, known)


def prefixes(scenario: Scenario, length: int) -> list[str]:
    """How a scenario is shared out: by its first turns."""
    names = [actor.name for actor in scenario.actors]
    return ["".join(turns) for turns in product(names, repeat=length)]
