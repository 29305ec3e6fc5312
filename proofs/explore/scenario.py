"""What a scenario is: a few jobs in a place, and actors with their programs."""

from __future__ import annotations

from dataclasses import dataclass

from proofs.explore.steps import Program


@dataclass(frozen=True, slots=True)
class Actor:
    """One session and its program. `holds`: it was leased the jobs, under token 1, before.

    `after` names a twin, an actor with the same program: this one does not begin before it. The
    schedules in which it does are the same with the names exchanged.
    """

    name: str
    program: Program
    holds: bool = False
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """All merges of these programs, from this start."""

    name: str
    about: str
    actors: tuple[Actor, ...]
    jobs: int = 1
    place: str = "lease"  # or ready, scheduled, dead
    splits: tuple[str, ...] = ()
    quick: bool = False
    preemptions: int | None = None  # how often a turn may go from one who could go on to another
