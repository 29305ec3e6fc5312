"""From the proofs' files to the figures of the report: all that the page shows is in here.

Each section has either its figures and `made_by`, or `run`: the command that makes them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from proofs.report.sources import Json, Sources

DRILLS, COMPARISON, DUEL, DEMO = "make drills", "make comparison", "make duel", "make demo"
COUNTS = ("jobs", "committed", "duplicates", "lost", "stale_refused")
_SIDE = ("jobs", "faults", "effects", "duplicates", "lost", "stale_refused", "violations")


def digest(sources: Sources) -> Json:
    """Every section."""
    return {
        "demo": demo(sources),
        "takeover": takeover(sources),
        "duplicates": duplicates(sources),
        "recovery": recovery(sources),
        "scenarios": scenarios(sources),
        "duel": duel(sources),
    }


def demo(sources: Sources) -> Json:
    """The summary of the demo, as it is."""
    if sources.demo is None:
        return {"run": DEMO}
    return {**sources.demo, "made_by": sources.made_by(sources.demo)}


def takeover(sources: Sources) -> Json:
    """The story of one takeover: the first in which a stale write was refused."""
    told = [one for one in sources.scenarios or [] if one.get("timeline")]
    chosen = next(
        (one for one in told if "takeover" in one["kind"] and one["stale_refused"]),
        next((one for one in told if "takeover" in one["kind"]), None),
    )
    if chosen is None:
        return {"run": DRILLS}
    return {
        "scenario": chosen["id"],
        "lease_seconds": chosen["lease_seconds"],
        "faults": chosen["faults"],
        "timeline": chosen["timeline"],
        "made_by": {**_drills(sources), "seed": chosen["seed"]},
    }


def duplicates(sources: Sources) -> Json:
    """Both queues at each fault rate."""
    found = sources.comparison
    if found is None:
        return {"run": COMPARISON}
    rates = [
        {
            "fault_rate": rate["fault_rate"],
            "jobs": rate["jobs"],
            **{side: {key: rate[side][key] for key in _SIDE} for side in ("faultline", "naive")},
        }
        for rate in found["rates"]
    ]
    invalid = [text for rate in found["rates"] for text in rate["invalid"]]
    return {"rates": rates, "invalid": invalid, "made_by": sources.made_by(found)}


def recovery(sources: Sources) -> Json:
    """How long it took, by kind of fault and length of the lease; kinds that never had to are
    absent."""
    if sources.scenarios is None:
        return {"run": DRILLS}
    groups: dict[tuple[str, float], list[Json]] = defaultdict(list)
    for one in sources.scenarios:
        groups[one["kind"], one["lease_seconds"]].append(one)
    rows = []
    for (kind, lease_seconds), group in sorted(groups.items()):
        after_fault = spread(x for one in group for x in one["recovery_seconds"])
        after_expiry = spread(x for one in group for x in one["after_expiry_seconds"])
        if after_fault is not None or after_expiry is not None:
            rows.append(
                {
                    "kind": kind,
                    "lease_seconds": lease_seconds,
                    "after_fault": after_fault,
                    "after_expiry": after_expiry,
                }
            )
    return {"rows": rows, "made_by": _drills(sources)}


def spread(values: Iterable[float]) -> Json | None:
    """Count, p50, p95 (nearest rank) and the values themselves; None without any."""
    ordered = sorted(values)
    if not ordered:
        return None
    return {
        "count": len(ordered),
        "p50": _rank(ordered, 0.5),
        "p95": _rank(ordered, 0.95),
        "max": ordered[-1],
        "values": ordered,
    }


def _rank(ordered: Sequence[float], part: float) -> float:
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def scenarios(sources: Sources) -> Json:
    """What was run of each kind, and what came out."""
    if sources.scenarios is None:
        return {"run": DRILLS}
    groups: dict[str, list[Json]] = defaultdict(list)
    for one in sources.scenarios:
        groups[one["kind"]].append(one)
    rows = [{"kind": kind, **_tally(group)} for kind, group in sorted(groups.items())]
    return {
        "rows": rows,
        "total": _tally(sources.scenarios),
        "not_played": (sources.drills or {}).get("not_played", {}),
        "made_by": _drills(sources),
    }


def _tally(group: Sequence[Json]) -> dict[str, int]:
    return {
        "scenarios": len(group),
        "faults": sum(len(one["faults"]) for one in group),
        **{key: sum(one[key] for one in group) for key in COUNTS},
        "violations": sum(len(one["violations"]) for one in group),
        "vacuous": sum(one["vacuous"] is not None for one in group),
        "void": sum(one.get("void") is not None for one in group),
    }


def duel(sources: Sources) -> Json:
    """The peers, as the duel has them."""
    if sources.duel is None:
        return {"run": DUEL}
    kept = ("peer", "version", "settings", "recovery", "skipped", "duels", "void", "told_how")
    figures = ("late_effects", "ran_again", "told", "takeover_seconds")
    rows = [{key: row.get(key) for key in (*kept, *figures)} for row in sources.duel["rows"]]
    return {"rows": rows, "made_by": sources.made_by(sources.duel)}


def _drills(sources: Sources) -> dict[str, Any]:
    """Who made drills.jsonl stands in drills.json."""
    return sources.made_by(sources.drills or {"command": DRILLS})
