"""Blocks that alternate: each round runs every kind once, so that a slow minute hits all alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

Say = Callable[[str], None]
Measured = dict[str, list[float]]


def alternated(
    rounds: int, kinds: Mapping[str, Callable[[], float]], say: Say, unit: str = "jobs/s"
) -> Measured:
    """What each kind's block answered in each round; the order turns from round to round."""
    seen: Measured = {kind: [] for kind in kinds}
    for number in range(rounds):
        order = list(kinds)
        turned = order[number % len(order) :] + order[: number % len(order)]
        for kind in turned:
            seen[kind].append(kinds[kind]())
        told = ", ".join(f"{kind} {figures[-1]:,.0f}" for kind, figures in seen.items())
        say(f"  round {number + 1} of {rounds}: {told} {unit}")
    return seen


def medians(seen: Measured) -> dict[str, float]:
    """Of each kind."""
    return {kind: statistics.median(figures) for kind, figures in seen.items()}
