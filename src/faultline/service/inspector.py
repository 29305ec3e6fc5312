"""Routes of the inspector: what runs, who works, what was refused, and what endangers leases.

Everything here only looks. Thin: one question to the views, one body.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import JSONResponse, StreamingResponse
from psycopg import Connection

from faultline.errors import JobNotFound
from faultline.observing import observe
from faultline.reading import Reading
from faultline.risk import Limits, assess
from faultline.service import inspections
from faultline.service.jobs import Here, shown
from faultline.service.models import Depth
from faultline.service.openapi import said
from faultline.service.watch import Watch
from faultline.story import moments

router = APIRouter(prefix="/api", tags=["inspector"])

_NUMBER = re.compile(r"[0-9]{1,18}")
Limit = Annotated[int, Query(ge=1, le=1000)]


@router.get("/leases", response_model=inspections.Leases)
def get_leases(here: Here, limit: Limit = 200) -> JSONResponse:
    """What runs now, the next to expire first."""
    rows = here.read(lambda reading, conn: reading.leases(conn, limit + 1))
    found = [inspections.Lease(**row) for row in rows[:limit]]
    return shown(inspections.Leases(leases=found, more=len(rows) > limit))


@router.get("/workers", response_model=inspections.Workers)
def get_workers(here: Here) -> JSONResponse:
    """Who is there, what each holds, when it was last heard of, and how far off its clock is."""
    rows = here.read(lambda reading, conn: reading.workers(conn))
    return shown(inspections.Workers(workers=[inspections.Worker(**row) for row in rows]))


@router.get("/queues", response_model=inspections.Queues)
def get_queues(here: Here) -> JSONResponse:
    """What waits where; as /queue/depth, without the sums."""
    rows = here.read(lambda reading, conn: reading.depths(conn))
    return shown(inspections.Queues(queues=[Depth(**row) for row in rows]))


@router.get("/risk", response_model=inspections.Risk)
def get_risk(here: Here, request: Request) -> JSONResponse:
    """How likely it is that a worker writes too late just now, scored, with the reasons.

    Whatever the score, a write that is late is refused by the database.
    """
    limits: Limits = request.app.state.limits
    return shown(inspections.Risk(**asdict(assess(observe(here, limits), limits))))


@router.get("/refusals", response_model=inspections.Refusals)
def get_refusals(
    here: Here,
    job_id: Annotated[UUID | None, Query(description="Only of this job, oldest first.")] = None,
    cursor: Annotated[
        int | None, Query(ge=0, le=2**63 - 1, description="next_cursor of the page before.")
    ] = None,
    limit: Limit = 100,
) -> JSONResponse:
    """The stale writes that were refused, the latest first, page by page."""

    def ask(reading: Reading, conn: Connection[Any]) -> list[dict[str, Any]]:
        if job_id is not None:
            return reading.refusals(conn, job_id)
        return reading.latest_refusals(conn, before=cursor, limit=limit + 1)

    rows = here.read(ask)
    page = [inspections.Refusal(**row) for row in (rows if job_id else rows[:limit])]
    following = page[-1].id if len(rows) > len(page) else None
    return shown(inspections.Refusals(refusals=page, next_cursor=following))


@router.get(
    "/jobs/{job_id}/timeline",
    response_model=inspections.Timeline,
    responses=said(404, "there is no such job"),
)
def get_timeline(job_id: UUID, here: Here) -> JSONResponse:
    """What happened to a job, in order: claims, endings, lost leases, refused writes."""
    job, lease, attempts, steps, refusals = here.read(
        lambda reading, conn: (
            reading.job(conn, job_id),
            reading.lease(conn, job_id),
            reading.attempts(conn, job_id),
            reading.steps(conn, job_id),
            reading.refusals(conn, job_id),
        )
    )
    if job is None:
        raise JobNotFound(job_id)
    found = [
        inspections.Moment(
            seconds=(moment.at - job["created_at"]).total_seconds(), **asdict(moment)
        )
        for moment in moments(job, lease, attempts, steps, refusals)
    ]
    return shown(
        inspections.Timeline(id=job_id, state=job["state"], task=job["task"], moments=found)
    )


@router.get("/throughput", response_model=inspections.Throughput)
def get_throughput(
    request: Request,
    seconds: Annotated[
        float, Query(ge=1, le=600, description="Over about so many last seconds.")
    ] = 60,
) -> JSONResponse:
    """How much is done in a second. Measured while somebody asks or watches: the first answer may
    be empty. From the server's own counters, so that it costs the same however many jobs there
    are."""
    watch: Watch = request.app.state.watch
    return shown(watch.rates(seconds))


@router.get(
    "/stream",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Server-sent events.",
            "content": {
                "text/event-stream": {"example": 'event: queues\ndata: {"queues": […]}\n\n'}
            },
        },
        **said(503, "too many streams are open"),
    },
)
async def get_stream(
    request: Request,
    last_event_id: Annotated[str | None, Header(description="Of the last refusal seen.")] = None,
) -> StreamingResponse:
    """What changes, as it changes: `queues`, `leases`, `workers`, `risk` and `throughput` carry all
    of it, as the routes of these names do, at once and then whenever it is another; `refusal` is
    one refused write; `trouble` says why nothing can be seen."""
    watch: Watch = request.app.state.watch
    watch.require_room()
    number = _NUMBER.fullmatch(last_event_id or "")
    return StreamingResponse(
        watch.stream(int(number[0]) if number else None),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )
