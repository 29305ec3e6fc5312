"""Blocks that alternate: each round runs every kind once, so that a slow minute hits all alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import TypeVar

Kind = TypeVar("Kind")
Say = Callable[[str], None]
Measured = dict[str, list[float]]


def alternated(
    rounds: int, kinds: Mapping[str, Callable[[], float]], say: Say, unit: str = "jobs/s"
) -> Measured:
    """What each kind's block answered in each round; the order turns from round to round."""
    seen: Measured = {kind: [] for kind in kinds}
    for number in range(rounds):
        for kind in turned(list(kinds), number):
            seen[kind].append(kinds[kind]())
        told = ", ".join(f"{kind} {figures[-1]:,.0f}" for kind, figures in seen.items())
        say(f"  round {number + 1} of {rounds}: {told} {unit}")
    return seen


def turned(order: list[Kind], number: int) -> list[Kind]:
    """Of this round: in each another one begins."""
    first = number % len(order)
    return order[first:] + order[:first]


def medians(seen: Measured) -> dict[str, float]:
    """Of each kind."""
    return {kind: statistics.median(figures) for kind, figures in seen.items()}
