"""What the service is sent and what it answers, as OpenAPI shows it.

What is sent is checked strictly: a field that does not exist or is of another type is refused, so
that a misspelt option is not silently left out.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    StrictStr,
)

from faultline.states import State

MAX_BATCH = 1000
_ID = "01980f2e-6c1b-7c3a-9d55-0b6f5b1e7a42"
_INT = 2**31 - 1


def _whole(value: Any) -> Any:
    """JSON has one kind of number: 5.0 is five, and some languages write it so."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _written(value: Any) -> Any:
    """As text with its parts: pydantic would take a number for seconds since 1970."""
    if not isinstance(value, str) or "-" not in value[1:]:
        raise ValueError("write it as 2030-01-31T12:00:00Z")
    return value


NO_NUL = r"^[^\x00]*$"  # PostgreSQL's text has none
Text = Annotated[StrictStr, Field(pattern=NO_NUL)]
Seconds = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Whole = Annotated[StrictInt, BeforeValidator(_whole)]


class Sent(BaseModel):
    """Something that a client sends."""

    model_config = ConfigDict(extra="forbid")


class NewJob(Sent):
    """A job to enqueue. What is not given is the task's own default, or the general one."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "task": "charge",
                    "payload": {"order_id": 7},
                    "queue": "billing",
                    "idempotency_key": "order-7",
                }
            ]
        },
    )

    task: Text = Field(min_length=1, max_length=255, description="The task's name.")
    payload: dict[str, Any] = Field(default_factory=dict, description="The task's arguments.")
    queue: Text | None = Field(None, min_length=1, max_length=128)
    priority: Whole | None = Field(
        None, ge=-_INT - 1, le=_INT, description="Higher runs first, always."
    )
    delay_seconds: Seconds | None = Field(None, ge=0, description="Not before so many seconds.")
    run_at: Annotated[AwareDatetime, BeforeValidator(_written)] | None = Field(
        None, description="Not before this moment; ISO 8601 with a time zone."
    )
    idempotency_key: Text | None = Field(
        None,
        min_length=1,
        max_length=255,
        description="A second enqueue of this task under this key gives the first one's job. The "
        "header Idempotency-Key says the same.",
    )
    headers: dict[str, Any] | None = Field(None, description="JSON beside the arguments.")
    max_attempts: Whole | None = Field(None, ge=1, le=1000, description="How often it may fail.")
    max_crashes: Whole | None = Field(
        None, ge=1, le=100, description="How many leases may be lost."
    )
    lease_seconds: Seconds | None = Field(
        None, ge=0.001, le=1e6, description="How long a silent worker keeps the job."
    )
    backoff_seconds: Seconds | None = Field(
        None, ge=0, le=1e6, description="Before the first retry; doubled each time."
    )
    backoff_cap_seconds: Seconds | None = Field(None, ge=0, le=1e6)


class Batch(Sent):
    """Jobs to enqueue, all or none; each with a key of its own, if it has one."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"jobs": [{"task": "charge", "payload": {"order_id": n}} for n in (7, 8)]}]
        },
    )

    jobs: list[NewJob] = Field(min_length=1, max_length=MAX_BATCH)


class Reason(Sent):
    """Why a job is to end."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"reason": "customer left"}]}
    )

    reason: Text | None = Field(None, max_length=1000, description="Kept with the job.")


class Accepted(BaseModel):
    """A job that is there now."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"id": _ID, "created": True}]},
    )

    id: UUID
    created: bool = Field(description="False: the key was used before, this is the first job.")


class AcceptedBatch(BaseModel):
    """The jobs, in the order in which they were sent."""

    jobs: list[Accepted]


class Changed(BaseModel):
    """What became of a request to change a job."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"id": _ID, "outcome": "cancelled"}]})

    id: UUID
    outcome: Literal["due", "requeued", "cancelled", "requested", "finished"] = Field(
        description="due: a scheduled job is queued now; requeued: a dead one has another life; "
        "cancelled: it was waiting and has ended; requested: it runs, and its handler is told; "
        "finished: it had ended already."
    )


class Overview(BaseModel):
    """A job without what may be large; the columns of the view `jobs`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": _ID,
                    "state": "queued",
                    "queue": "billing",
                    "priority": 0,
                    "task": "charge",
                    "lease_owner": None,
                    "lease_expires_at": None,
                    "fencing_token": 0,
                    "next_run_at": None,
                    "attempts": 0,
                    "crashes": 0,
                    "snoozes": 0,
                    "max_attempts": 5,
                    "max_crashes": 3,
                    "created_at": "2026-11-16T10:00:00Z",
                    "finished_at": None,
                    "quarantine_reason": None,
                    "cancel_reason": None,
                    "producer": "shop",
                }
            ]
        }
    )

    id: UUID
    state: State | Literal["lost"]
    queue: str
    priority: int
    task: str
    lease_owner: str | None
    lease_expires_at: datetime | None
    fencing_token: int = Field(description="Rises with every claim.")
    next_run_at: datetime | None
    attempts: int
    crashes: int
    snoozes: int
    max_attempts: int
    max_crashes: int
    created_at: datetime
    finished_at: datetime | None
    quarantine_reason: str | None
    cancel_reason: str | None
    producer: str = Field(description="The database user that enqueued it.")


class Job(Overview):
    """A job, and all it carries."""

    payload: Any
    headers: Any
    result: Any
    error: Any
    progress: Any
    payload_bytes: int = Field(
        description="Of payload and headers as text. Above 16 MiB both are left out."
    )
    quarantine_evidence: Any


class Jobs(BaseModel):
    """A page of jobs, the newest first."""

    jobs: list[Overview]
    next_cursor: UUID | None = Field(
        description="cursor= of the next page; null: the last one. A page may be short, or empty, "
        "and not the last."
    )


class Depth(BaseModel):
    """How many jobs of a queue stand where."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "queue": "billing",
                    "paused": False,
                    "queued": 12,
                    "scheduled": 3,
                    "running": 8,
                    "quarantined": 0,
                    "capped": False,
                }
            ]
        }
    )

    queue: str
    paused: bool
    queued: int
    scheduled: int
    running: int
    quarantined: int
    capped: bool = Field(description="There are more: the counts are lower bounds.")


class Depths(BaseModel):
    """The queues, and their sum."""

    queues: list[Depth]
    queued: int
    running: int
    scheduled: int
    quarantined: int
    capped: bool


class Alive(BaseModel):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Health(BaseModel):
    """All is well."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"status": "ok", "version": "0.1.0", "schema_version": 3}]}
    )

    status: Literal["ok"]
    version: str
    schema_version: int


class FieldError(BaseModel):
    """What is wrong with one field; never what was in it."""

    field: str
    message: str
    where: str = Field(alias="in", description="body, query, path or header.")


class ProblemBody(BaseModel):
    """Why a request was not answered as asked (RFC 9457), with facts that depend on its type."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="faultline: and the kind, as faultline:job_not_found.")
    title: str
    status: int
    detail: str = Field(description="What is the matter, and what to do.")
    errors: list[FieldError] | None = Field(None, description="Which fields are wrong.")
