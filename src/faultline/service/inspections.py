"""What the inspector answers, as OpenAPI shows it."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from faultline.service.models import Depth


class Lease(BaseModel):
    """What runs; the columns of the view `leases`."""

    job_id: UUID
    queue: str
    priority: int
    task: str | None
    fencing_token: int
    worker: str
    started: bool
    claimed_at: datetime
    expires_at: datetime
    remaining_seconds: float = Field(description="Negative: expired, and not yet taken over.")
    lease_seconds: float
    attempts: int
    crashes: int
    cancel_reason: str | None


class Leases(BaseModel):
    """What runs now, the next to expire first."""

    leases: list[Lease]
    more: bool = Field(description="There are more than limit=.")


class Worker(BaseModel):
    """A worker; the columns of the view `workers`."""

    worker: str
    queues: list[str]
    details: Any
    started_at: datetime
    seen_at: datetime
    silent_seconds: float
    clock_difference_seconds: float | None
    leases: int
    asleep: bool = Field(description="It waits for work.")


class Workers(BaseModel):
    """Who is there; one that was killed stays listed for a day."""

    workers: list[Worker]


class Queues(BaseModel):
    """What waits where."""

    queues: list[Depth]


class Refusal(BaseModel):
    """A write that came too late; the columns of the view `refusals`."""

    id: int
    job_id: UUID
    stale_token: int
    current_token: int | None
    reason: Literal["token_mismatch", "lease_expired"]
    operation: str
    worker: str | None
    late_seconds: float | None
    at: datetime


class Refusals(BaseModel):
    """A page of refusals, the latest first."""

    refusals: list[Refusal]
    next_cursor: int | None


class Moment(BaseModel):
    """One thing that happened to a job."""

    at: datetime
    seconds: float = Field(description="Since it was enqueued.")
    token: int
    kind: str = Field(
        description="enqueued, claimed, step, lease_expired, refused; or how an attempt ended: "
        "succeeded, failed, snoozed, released, expired, cancelled, requeued."
    )
    worker: str | None
    what: str


class Timeline(BaseModel):
    """A job's life, in order."""

    id: UUID
    state: str
    task: str
    moments: list[Moment]


class Sign(BaseModel):
    """One reason for the score."""

    sign: str
    points: int
    count: int
    what: str
    do: str = Field(description="What to do about it.")
    examples: list[str] = Field(description="Jobs, workers or tables; a few.")


class Risk(BaseModel):
    """How likely a worker is to write too late just now; and why."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "stale_risk": "low",
                    "active_workers": 8,
                    "score": 2,
                    "reasons": [
                        {
                            "sign": "slow_handlers",
                            "points": 2,
                            "count": 1,
                            "what": "handlers run for longer than their lease …",
                            "do": "nothing, if they are meant to …",
                            "examples": ["01980f2e-6c1b-7c3a-9d55-0b6f5b1e7a42"],
                        }
                    ],
                    "unseen": [],
                }
            ]
        }
    )

    stale_risk: Literal["low", "medium", "high"]
    active_workers: int
    score: int = Field(ge=0, le=100, description="From 20 on medium, from 60 on high.")
    reasons: list[Sign]
    unseen: list[str] = Field(description="What the service's login may not look at.")


class Rates(BaseModel):
    """How much happened in a second, on average."""

    enqueued: float
    claimed: float
    ended: float = Field(description="Attempts that ended, however.")
    refused: float
    quarantined: float


class Throughput(BaseModel):
    """How much is done, from the server's own counters; approximate by a second or so."""

    seconds: float = Field(description="The time that was measured; 0: ask again in a second.")
    per_second: Rates | None
