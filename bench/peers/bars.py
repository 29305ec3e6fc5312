"""The bars that need a peer: pure functions of what was measured in one run."""

from __future__ import annotations

from typing import Any

from bench.rows import Bar, Row

GRAPHILE = "Graphile Worker"
PROCRASTINATE = "Procrastinate"
OURS = "Faultline"
SYNC = "Faultline, sync handlers"
# (row, whose figure, which, whose figure it is compared with, least)
RATIOS = (
    ("drain of no-op async jobs, 1 process", OURS, "one", GRAPHILE, 1.4),
    ("drain of no-op async jobs, 2 processes", OURS, "two", GRAPHILE, 1.2),
    ("drain of no-op sync jobs, 1 process", SYNC, "one", GRAPHILE, 1.2),
    ("drain of no-op sync jobs, 1 process", SYNC, "one", PROCRASTINATE, 50.0),
)


def rows_of(peers: list[dict[str, Any]]) -> list[Row]:
    """Every bar; one whose peer is not there has no figure, and says so. If it is not there since
    it failed, and so if we did, nobody knows better than that the bar is missed."""
    known = {row["peer"]: row for row in peers}
    rows = [
        _ratio(known, what, ours, part, theirs, Bar(least=least))
        for what, ours, part, theirs, least in RATIOS
    ]
    fastest = best(peers, "bulk", most=True, postgresql=False)
    rows.append(_ratio(known, "bulk enqueue", OURS, "bulk", fastest, Bar(least=1.3)))
    for part in ("p50_ms", "p99_ms"):
        quickest = best(peers, part, most=False, postgresql=True)
        what = f"pickup latency, {part[:3]}"
        rows.append(_ratio(known, what, OURS, part, quickest, Bar(most=1.0)))
    return rows


def best(peers: list[dict[str, Any]], part: str, *, most: bool, postgresql: bool) -> str | None:
    """The peer with the highest or lowest figure; of those on PostgreSQL, if asked so."""
    others: dict[str, float] = {
        row["peer"]: row["medians"][part]
        for row in peers
        if row["peer"] not in (OURS, SYNC)
        and part in row["medians"]
        and (row["on_postgresql"] or not postgresql)
    }
    if not others:
        return None
    return max(others, key=lambda name: others[name] if most else -others[name])


def _ratio(
    known: dict[str, dict[str, Any]],
    what: str,
    ours: str,
    part: str,
    theirs: str | None,
    bar: Bar,
) -> Row:
    what = f"{what}, against {theirs or 'a peer'}"
    rows = [known.get(ours), known.get(theirs or "")]
    mine, other = (row["medians"].get(part) if row else None for row in rows)
    if mine is None or other is None:
        failed = [row for row in rows if row is not None and row["failed"]]
        why = (
            f"{failed[0]['peer']}: {failed[0]['skipped']}"
            if failed
            else "one of the two is missing"
        )
        return Row("peers", what, None, "", skipped=why, failed=bool(failed))
    facts = {ours: mine, str(theirs): other}
    told = f"{_shown(mine)} to {_shown(other)} {'ms' if part.endswith('ms') else 'jobs/s'}"
    return Row("peers", what, mine / other, "times", bar, facts, told)


def _shown(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.2f}"
