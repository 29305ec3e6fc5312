"""The life of one job in time: attempts by token, what each held, and what happened when.

    life      from what the views show to rows of spans and marks, and where the job stood when
    Axis      from moments to places, with long pauses broken

Pure: whoever draws it, as a picture or as text, brings the width and nothing else. Where nothing
happens for long, as before a retry on the next day, the axis is broken, so that what did happen can
be seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from faultline.log import duration

Record = Mapping[str, Any]

LONG = 0.4  # a pause that by itself would take more of the axis than this is broken
LONG_SECONDS = 2.0
MOST_ROWS = 40


@dataclass(frozen=True, slots=True)
class Span:
    """Some time of one attempt."""

    kind: str
    """running, succeeded, failed, …; `unleased`: without a lease; `late`: thought it had one."""
    begin: datetime
    end: datetime
    title: str


@dataclass(frozen=True, slots=True)
class Mark:
    """One moment of an attempt: step, renewal, expiry, until (the lease is good till then) or
    refused."""

    kind: str
    at: datetime
    title: str


@dataclass(frozen=True, slots=True)
class Row:
    """The attempt of one token."""

    token: int
    worker: str
    outcome: str
    claimed_at: datetime
    took_over_at: datetime | None
    """When the lease was taken away from the attempt before, if this one follows on that."""
    spans: Sequence[Span]
    marks: Sequence[Mark]


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the job stood between two moments, in words."""

    at: datetime
    until: datetime
    words: str


@dataclass(frozen=True, slots=True)
class Life:
    """All of it."""

    begin: datetime
    """When it was enqueued."""
    rows: Sequence[Row]
    stages: Sequence[Stage]
    moments: Sequence[datetime]
    busy: Sequence[tuple[datetime, datetime]]
    """From when to when something goes on, which is never cut short."""
    left_out: int
    """Attempts that came before the first one here."""


class Axis:
    """From moments to places between two ends; a long pause takes no more than `break_width`."""

    def __init__(self, life: Life, begin: float, end: float, break_width: float) -> None:
        self._from = life.moments[0]
        seconds = sorted({self._second(moment) for moment in life.moments})
        spans = [(self._second(since), self._second(until)) for since, until in life.busy]
        whole = seconds[-1] or 1.0
        idle = [
            (before, after)
            for before, after in pairwise(seconds)
            if after - before > LONG_SECONDS
            and not any(since < after and until > before for since, until in spans)
        ]
        # Beside the rest, not beside each other: retries a day apart are all broken.
        rest = whole - sum(after - before for before, after in idle)
        pauses = [(a, b) for a, b in idle if b - a > rest * LONG / (1 - LONG)]
        paused = sum(after - before for before, after in pauses)
        if whole - paused < 1e-6:  # nothing but pauses: they are all there is to see
            pauses, paused = [], 0.0
        per_second = (end - begin - break_width * len(pauses)) / (whole - paused)
        self.breaks: list[tuple[float, float]] = []  # where its middle is, how many seconds
        self.points = [(0.0, begin)]  # seconds from the beginning, and where they are
        for before, after in pairwise(seconds):
            x = self.points[-1][1]
            if (before, after) in pauses:
                self.breaks.append((x + break_width / 2, after - before))
                self.points.append((after, x + break_width))
            else:
                self.points.append((after, x + (after - before) * per_second))

    def __call__(self, moment: datetime) -> float:
        """Where it is."""
        second = self._second(moment)
        before = self.points[0]
        if second <= 0:
            return before[1]
        for point in self.points[1:]:
            if second <= point[0]:
                share = (second - before[0]) / (point[0] - before[0])
                return before[1] + share * (point[1] - before[1])
            before = point
        return before[1]

    def _second(self, moment: datetime) -> float:
        return (moment - self._from).total_seconds()


def life(
    job: Record,
    lease: Record | None,
    attempts: Sequence[Record],
    steps: Sequence[Record],
    refusals: Sequence[Record],
    now: datetime,
) -> Life:
    """Of this job, as of now; without rows, if it was never claimed."""
    tries = [dict(attempt) for attempt in attempts[-MOST_ROWS:] if attempt["worker"] is not None]
    orders = [attempt for attempt in attempts if attempt["worker"] is None]  # an operator's
    if lease is not None:
        tries.append(_live(lease, now))
    return Life(
        begin=job["created_at"],
        rows=list(_rows(tries, steps, refusals)),
        stages=list(_stages(job, [*tries, *orders], refusals, now)),
        moments=_moments(job, lease, tries, steps, refusals, now),
        busy=_busy(tries, refusals),
        left_out=max(0, len(attempts) - MOST_ROWS),
    )


def _live(lease: Record, now: datetime) -> dict[str, Any]:
    """The attempt that runs, as if it ended now."""
    expired = lease["expires_at"] if lease["expires_at"] <= now else None
    return {**lease, "outcome": "running", "at": now, "lease_expired_at": expired}


def _rows(
    tries: Sequence[Record], steps: Sequence[Record], refusals: Sequence[Record]
) -> Iterator[Row]:
    before: Record | None = None
    for attempt in tries:
        token = attempt["fencing_token"]
        mine = [refusal for refusal in refusals if refusal["stale_token"] == token]
        done = [step for step in steps if step["fencing_token"] == token]
        lost = before is not None and before["outcome"] == "expired"
        yield Row(
            token=token,
            worker=attempt["worker"],
            outcome=attempt["outcome"],
            claimed_at=attempt["claimed_at"],
            took_over_at=before["at"] if before is not None and lost else None,
            spans=list(_spans(attempt, mine)),
            marks=list(_marks(attempt, mine, done)),
        )
        before = attempt


def _spans(attempt: Record, refusals: Sequence[Record]) -> Iterator[Span]:
    """With a lease; then without one, until it was taken away; then, unknowing, until refused."""
    begin, end, expired = attempt["claimed_at"], attempt["at"], attempt["lease_expired_at"]
    held = min(expired, end) if expired else end
    who = f"token {attempt['fencing_token']} · {attempt['worker']}"
    took = duration((held - begin).total_seconds())
    yield Span(attempt["outcome"], begin, held, f"{who}: held the lease for {took}")
    if expired and end > expired:
        late = duration((end - expired).total_seconds())
        yield Span("unleased", expired, end, f"{who}: lease expired, {late} ago then")
    if refusals and (last := max(refusal["at"] for refusal in refusals)) > end:
        yield Span("late", end, last, f"{who}: went on without knowing")


def _marks(attempt: Record, refusals: Sequence[Record], steps: Sequence[Record]) -> Iterator[Mark]:
    for step in steps:
        yield Mark("step", step["at"], f"step {step['step']} committed")
    for moment in attempt["renewals"] or ():
        yield Mark("renewal", moment, "lease renewed")
    if attempt["lease_expired_at"]:
        yield Mark("expiry", attempt["lease_expired_at"], "the lease expired")
    elif attempt["outcome"] == "running":
        yield Mark("until", attempt["expires_at"], "the lease is good until here")
    for refusal in refusals:
        late = refusal["late_seconds"]
        after = f", {duration(late)} too late" if late and late > 0 else ""
        title = (
            f"REFUSED: {refusal['operation']} under token {attempt['fencing_token']}, the job "
            f"was at {refusal['current_token']}{after}"
        )
        yield Mark("refused", refusal["at"], title)


def _moments(
    job: Record,
    lease: Record | None,
    tries: Sequence[Record],
    steps: Sequence[Record],
    refusals: Sequence[Record],
    now: datetime,
) -> list[datetime]:
    first = tries[0]["claimed_at"] if tries else job["created_at"]
    found = [min(job["created_at"], first)]
    for attempt in tries:
        found += [attempt["claimed_at"], attempt["at"]]
        found += [attempt["lease_expired_at"]] if attempt["lease_expired_at"] else []
    found += [step["at"] for step in steps]
    found += [refusal["at"] for refusal in refusals]
    if lease is not None:
        found.append(max(now, lease["expires_at"]))
    elif job["finished_at"] is None:
        found.append(now)
    return sorted(found)


def _busy(tries: Sequence[Record], refusals: Sequence[Record]) -> list[tuple[datetime, datetime]]:
    """Each attempt, until the last that was heard of it."""
    last = {refusal["stale_token"]: refusal["at"] for refusal in refusals}
    return [
        (
            attempt["claimed_at"],
            max(attempt["at"], last.get(attempt["fencing_token"], attempt["at"])),
        )
        for attempt in tries
    ]


def _stages(
    job: Record, tries: Sequence[Record], refusals: Sequence[Record], now: datetime
) -> Iterator[Stage]:
    """From moment to moment where the job stood."""
    found: list[tuple[datetime, str]] = [(job["created_at"], "waiting, not claimed yet")]
    for attempt in tries:
        token, worker, outcome = attempt["fencing_token"], attempt["worker"], attempt["outcome"]
        if worker is not None:  # else an operator's: nothing ran
            found.append((attempt["claimed_at"], f"running under token {token} on {worker}"))
        if attempt["lease_expired_at"]:
            said = f"still leased to {worker} under token {token}, but the lease has expired"
            found.append((attempt["lease_expired_at"], said))
        if outcome != "running":
            found.append((attempt["at"], _after(attempt)))
    standing = sorted(found, key=lambda item: item[0])
    if job.get("state") == "quarantined":
        last = found.index(standing[-1])
        found[last] = standing[-1] = (standing[-1][0], "quarantined: an operator decides")
    for refusal in refusals:
        words = [words for at, words in standing if at <= refusal["at"]][-1]
        said = f"a write under token {refusal['stale_token']} is refused; the job: {words}"
        found.append((refusal["at"], said))
    found.sort(key=lambda item: item[0])
    ends = [*(at for at, _ in found[1:]), max(now, found[-1][0])]
    for (at, said), until in zip(found, ends, strict=True):
        yield Stage(at, until, said)


def _after(attempt: Record) -> str:
    match attempt["outcome"]:
        case "succeeded":
            return "succeeded: nothing more can be written for it"
        case "failed" if attempt["final"]:
            return "failed for good"
        case "failed" | "snoozed":
            return f"{attempt['outcome']}; waiting to be tried again"
        case "expired":
            return "taken away from its worker; waiting for another"
        case "released":
            return "handed back; waiting for another worker"
        case "requeued":
            return "requeued; waiting for a worker"
        case "cancelled":
            return "cancelled: it will not run again"
        case outcome:
            return str(outcome)
