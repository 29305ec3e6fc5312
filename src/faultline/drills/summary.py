"""What a run of drills adds up to: for each kind, and in one line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from faultline.drills.scenario import Result


def totals(results: Sequence[Result]) -> dict[str, int]:
    """The figures of the line that a run ends with; a void scenario is one of `scenarios`, too."""
    return {
        "scenarios": len(results),
        "faults": sum(len(result.faults) for result in results),
        "jobs": sum(result.jobs for result in results),
        "violations": sum(len(result.violations) for result in results),
        "duplicates": sum(result.duplicates for result in results),
        "lost": sum(result.lost for result in results),
        "vacuous": sum(result.vacuous is not None for result in results),
        "void": sum(result.void is not None for result in results),
        "stale_refused": sum(result.stale_refused for result in results),
    }


def is_clean(results: Sequence[Result]) -> bool:
    """Whether there is something of each kind that was played, and nothing is wrong with it."""
    figures = totals(results)
    wrong = ("violations", "duplicates", "lost", "vacuous")
    if not results or any(figures[name] for name in wrong):
        return False
    return not never_staged(results)


def never_staged(results: Iterable[Result]) -> list[str]:
    """The kinds of which every scenario is void: the run shows nothing of them."""
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        groups[result.kind].append(result)
    return [kind for kind, group in groups.items() if all(one.void is not None for one in group)]


def by_kind(results: Iterable[Result]) -> list[dict[str, Any]]:
    """A row for each kind and lease: its figures, and how long recovery took."""
    groups: dict[tuple[str, float], list[Result]] = defaultdict(list)
    for result in results:
        groups[result.kind, result.lease_seconds].append(result)
    return [
        {
            "kind": kind,
            "lease_seconds": lease,
            **totals(group),
            "recovery": spread(s for result in group for s in result.recovery_seconds),
            "after_expiry": spread(s for result in group for s in result.after_expiry_seconds),
        }
        for (kind, lease), group in sorted(groups.items())
    ]


def spread(seconds: Iterable[float]) -> dict[str, float] | None:
    """How long it took: half of them, nearly all of them, the worst."""
    found = sorted(seconds)
    if not found:
        return None
    return {
        "count": len(found),
        "p50": round(_percentile(found, 50), 3),
        "p95": round(_percentile(found, 95), 3),
        "max": round(found[-1], 3),
    }


def _percentile(ordered: Sequence[float], percent: int) -> float:
    """The smallest value that so many of a hundred do not exceed."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
