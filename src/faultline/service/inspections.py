"""What the inspector answers, as OpenAPI shows it."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from faultline.service.models import Depth


class Lease(BaseModel):
    """What runs; the columns of the view `leases`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "job_id": "01980f2e-6c1b-7c3a-9d55-0b6f5b1e7a42",
                    "queue": "billing",
                    "priority": 0,
                    "task": "charge",
                    "fencing_token": 2,
                    "worker": "web-1:11:095a0215",
                    "started": True,
                    "claimed_at": "2026-11-16T10:00:00Z",
                    "expires_at": "2026-11-16T10:00:30Z",
                    "remaining_seconds": 21.5,
                    "lease_seconds": 30.0,
                    "attempts": 0,
                    "crashes": 1,
                    "cancel_reason": None,
                }
            ]
        }
    )

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

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "worker": "web-1:11:095a0215",
                    "queues": ["billing"],
                    "details": {},
                    "started_at": "2026-11-16T09:00:00Z",
                    "seen_at": "2026-11-16T10:00:00Z",
                    "silent_seconds": 3.2,
                    "clock_difference_seconds": 0.004,
                    "leases": 2,
                    "asleep": False,
                }
            ]
        }
    )

    worker: str
    queues: list[str]
    details: Any
    started_at: datetime
    seen_at: datetime
    silent_seconds: float
    clock_difference_seconds: float | None
    leases: int
    asleep: bool | None = Field(description="It waits for work; null on a standby.")


class Workers(BaseModel):
    """Who is there; one that was killed stays listed for a day."""

    workers: list[Worker]


class Queues(BaseModel):
    """What waits where."""

    queues: list[Depth]


class Refusal(BaseModel):
    """A write that came too late; the columns of the view `refusals`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": 7,
                    "job_id": "01980f2e-6c1b-7c3a-9d55-0b6f5b1e7a42",
                    "stale_token": 1,
                    "current_token": 2,
                    "reason": "token_mismatch",
                    "operation": "complete",
                    "worker": "web-1:11:095a0215",
                    "late_seconds": 4.2,
                    "at": "2026-11-16T10:00:34Z",
                }
            ]
        }
    )

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

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "at": "2026-11-16T10:00:34Z",
                    "seconds": 34.2,
                    "token": 1,
                    "kind": "refused",
                    "worker": "web-1:11:095a0215",
                    "what": "REFUSED: complete by web-1:11:095a0215; the job was at 2",
                }
            ]
        }
    )

    at: datetime
    seconds: float = Field(description="Since it was enqueued.")
    token: int
    kind: str = Field(
        description="enqueued, claimed, renewed (the last time), step, lease_expired, refused; "
        "or how an attempt ended: succeeded, failed, snoozed, released, expired, "
        "cancelled, requeued."
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
