"""What came of one duel, and what it says: pure functions of what was seen.

An outcome holds only what the database and A's own log showed. `judge` first asks whether the duel
took place at all (A begun and stopped, B another process, A back and at its write); if not, the
verdict is void, with the reason, and counts for nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import Any

POINTS = ("early", "write")
# What a worker's log, or the error inside its handler, says once the job is no longer its own. One
# expression for all, so that no peer is read with a narrower eye than another; what it found is
# kept as evidence.
TOLD = re.compile(
    r"stale|\blease (is )?lost|lost (the |its )?(lock|lease|job)|stolen|missing lock|no longer"
    r"|not own|another (worker|execut|process)|conflict|\bclaim|cancel|abort|taken over"
    r"|already (been )?(complete|finish|succe|processed)|not (found|running|active)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Event:
    """What a handler, or the duel itself, noted; the time is the database's."""

    worker: str
    pid: int
    what: str
    at: datetime


@dataclass(frozen=True)
class Effect:
    """One business row."""

    worker: str
    pid: int
    at: datetime


@dataclass(frozen=True)
class Outcome:
    """All that was seen of one duel; `point` is where in its handler A was stopped."""

    point: str
    events: list[Event]
    effects: list[Effect]
    late_log: list[str] = field(default_factory=list)  # what A's process wrote after SIGCONT

    def first(self, worker: str, what: str, after: datetime | None = None) -> Event | None:
        """The first event whose name begins so."""
        for event in self.events:
            if after is not None and event.at <= after:
                continue
            if event.worker == worker and event.what.startswith(what):
                return event
        return None


@dataclass(frozen=True)
class Verdict:
    """One duel, judged."""

    point: str
    void: str | None = None  # why it proves nothing
    late_effect: bool = False  # A's row was there at the end
    effects: int = 0  # rows in all; one job, so more than one is one too many
    ran_again: bool = False  # a handler began after B had finished the job
    told: str | None = None  # how A's own process was told
    takeover_seconds: float | None = None


def judge(outcome: Outcome) -> Verdict:
    """Void, or what happened."""
    began, stalled = outcome.first("A", "began"), outcome.first("duel", "stalled")
    if began is None or stalled is None or began.at > stalled.at:
        return Verdict(outcome.point, void="A was not stopped inside its handler")
    successor = outcome.first("B", "began")
    if successor is None:
        return Verdict(outcome.point, void="B did not take the job over")
    if successor.at < stalled.at:
        return Verdict(outcome.point, void="B had the job before A was stopped")
    if successor.pid == began.pid:
        return Verdict(outcome.point, void="A and B were the same process")
    finished, resumed = outcome.first("duel", "finished"), outcome.first("duel", "resumed")
    if outcome.first("B", "wrote") is None or finished is None:
        return Verdict(outcome.point, void="B did not finish the job")
    if resumed is None or resumed.at < finished.at:
        return Verdict(outcome.point, void="A was not resumed after B had finished")
    attempts = ("wrote", "stopped")
    if not any(outcome.first("A", what, after=resumed.at) for what in attempts):
        return Verdict(outcome.point, void="A did not come to its write")
    return Verdict(
        outcome.point,
        late_effect=any(effect.worker == "A" for effect in outcome.effects),
        effects=len(outcome.effects),
        ran_again=any(e.what == "began" and e.at > finished.at for e in outcome.events),
        told=how_told(outcome),
        takeover_seconds=(successor.at - stalled.at).total_seconds(),
    )


def how_told(outcome: Outcome) -> str | None:
    """The error that ended the handler, if it says so; else the first line of A's log that does."""
    ended = outcome.first("A", "stopped")
    if ended is not None and TOLD.search(ended.what):
        return f"handler {ended.what}"
    for line in outcome.late_log:
        if TOLD.search(line):
            return f"log: {line.strip()[:160]}"
    return None


def summarise(verdicts: list[Verdict]) -> dict[str, Any]:
    """The figures of one row; duels that were void are counted and left out of the rest."""
    valid = [verdict for verdict in verdicts if verdict.void is None]
    seconds = [v.takeover_seconds for v in valid if v.takeover_seconds is not None]
    return {
        "duels": len(valid),
        "void": sorted({v.void for v in verdicts if v.void is not None}),
        "late_effects": {point: _late_effects(valid, point) for point in POINTS},
        "ran_again": sum(v.ran_again for v in valid),
        "told": sum(v.told is not None for v in valid),
        "told_how": sorted({v.told for v in valid if v.told is not None})[:1],
        "takeover_seconds": {
            "min": round(min(seconds), 2),
            "median": round(median(seconds), 2),
            "max": round(max(seconds), 2),
        }
        if seconds
        else None,
    }


def _late_effects(verdicts: list[Verdict], point: str) -> dict[str, int]:
    there = [verdict.late_effect for verdict in verdicts if verdict.point == point]
    return {"landed": sum(there), "duels": len(there)}
