"""What happened to one job, in order: moments, made from what the views show of it.

For `faultline jobs show` and for the service. Pure: this module asks nothing itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from faultline.log import duration

Record = Mapping[str, Any]

MOST_RENEWALS = 32
"""So many moments of a lease's renewals are kept (sql/functions/130_renew.sql)."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One thing that happened; token 0 is before the first claim."""

    at: datetime
    token: int
    kind: str
    """enqueued, claimed, renewed, step, lease_expired, refused, or the outcome of an attempt."""
    worker: str | None
    what: str


def moments(
    job: Record,
    lease: Record | None,
    attempts: Sequence[Record],
    steps: Sequence[Record],
    refusals: Sequence[Record],
) -> list[Moment]:
    """What happened, oldest first; at one moment, in the order of the tokens."""
    enqueued = f"enqueued into {job['queue']} by {job['producer']}"
    found = [Moment(job["created_at"], 0, "enqueued", None, enqueued)]
    for attempt in attempts:
        found += _attempt(attempt)
    if lease is not None:
        found += [_claimed(lease), *_renewed(lease)]
    for step in steps:
        token, what = step["fencing_token"], f"committed step {step['step']}"
        found.append(Moment(step["at"], token, "step", None, what))
    for refusal in refusals:
        token, what = refusal["stale_token"], _refusal(refusal)
        found.append(Moment(refusal["at"], token, "refused", refusal["worker"], what))
    return sorted(found, key=lambda moment: (moment.at, moment.token))


def error_line(error: Any) -> str:
    """An error as the worker recorded it, on one line; whatever else was recorded as JSON."""
    match error:
        case None:
            return ""
        case {"type": str(kind), "message": str(message)}:
            return f"{kind}: {message}"
        case {"message": str(message)} | {"reason": str(message)}:
            return message
        case {"reason": None}:
            return ""
        case {"traceback": _, **rest}:
            return json.dumps(rest, ensure_ascii=False)
    return json.dumps(error, ensure_ascii=False)


def _attempt(attempt: Record) -> Iterator[Moment]:
    token, worker = attempt["fencing_token"], attempt["worker"]
    if worker is not None:
        yield _claimed(attempt)
        yield from _renewed(attempt)
    if attempt["lease_expired_at"] is not None:
        what = f"the lease of {worker} expired"
        yield Moment(attempt["lease_expired_at"], token, "lease_expired", worker, what)
    yield Moment(attempt["at"], token, attempt["outcome"], worker, _ending(attempt))


def _claimed(claim: Record) -> Moment:
    token, worker = claim["fencing_token"], claim["worker"]
    return Moment(claim["claimed_at"], token, "claimed", worker, f"claimed by {worker}")


def _renewed(claim: Record) -> Iterator[Moment]:
    """The last time, and how often: each would drown the rest. The database keeps so many."""
    if kept := claim["renewals"]:
        token, worker, often = claim["fencing_token"], claim["worker"], len(kept)
        most = " or more" if often >= MOST_RENEWALS else ""
        times = "once" if often == 1 else f"{often} times{most}, lastly here"
        yield Moment(kept[-1], token, "renewed", worker, f"lease renewed {times}")


def _ending(attempt: Record) -> str:
    because = error_line(attempt["error"])
    colon = f": {because}" if because else ""
    match attempt["outcome"]:
        case "failed":
            return f"failed{', for good' if attempt['final'] else ''}{colon}"
        case "expired":
            late = attempt["at"] - (attempt["lease_expired_at"] or attempt["at"])
            started = "" if attempt["started"] else ", not started"
            after = f" {duration(late.total_seconds())} after it expired" if late else ""
            return f"lease taken away from {attempt['worker']}{after}{started}{colon}"
        case "released":
            return f"handed back by {attempt['worker']}{colon}"
        case outcome:
            return f"{outcome}{colon}"


def _refusal(refusal: Record) -> str:
    who = f" by {refusal['worker']}" if refusal["worker"] else ""
    late = refusal["late_seconds"]
    after = f", {duration(late)} after its lease ended" if late and late > 0 else ""
    return (
        f"REFUSED: {refusal['operation']}{who}; the job was at "
        f"{refusal['current_token']} ({refusal['reason']}{after})"
    )
