"""Routes of a producer: enqueue, look, list, retry, cancel, how much waits, is all well.

Thin: a request becomes one verb or one question, its answer one body.
"""

from __future__ import annotations

import json
from typing import Annotated, Any
from uuid import UUID

from fastapi import (
    APIRouter,
    Body,
    Depends,
    Header,
    HTTPException,
    Query,
    Request,
    Response,
    status,
)
from fastapi.responses import JSONResponse

from faultline import __version__
from faultline.access import Access
from faultline.errors import JobNotFound
from faultline.listing import Wanted
from faultline.script import SCHEMA_VERSION
from faultline.service import models
from faultline.service.health import Health
from faultline.service.openapi import said
from faultline.service.orders import enqueue_all, enqueue_one
from faultline.service.pages import page_of_jobs
from faultline.service.problem import Problem, invalid_fields
from faultline.states import State

MAX_PAGE = 500
_JSON = sorted(models.Job.model_fields.keys() - models.Overview.model_fields.keys())

health = APIRouter(tags=["health"])
reading = APIRouter(tags=["jobs"])
writing = APIRouter(tags=["jobs"])
changing = APIRouter(tags=["jobs"])


async def _access(request: Request) -> Access:
    access: Access = request.app.state.access
    return access


Here = Annotated[Access, Depends(_access)]


@health.head("/livez", include_in_schema=False)
@health.get("/livez")
async def get_livez() -> models.Alive:
    """That this process answers; the database is not asked. Needs no token."""
    return models.Alive()


@health.head("/health", include_in_schema=False)
@health.get(
    "/health",
    responses=said(503, "the database is away, or its schema does not fit; detail says why"),
)
async def get_health(request: Request) -> models.Health:
    """Whether jobs can be taken: the database answers and its schema fits. Needs no token."""
    here: Health = request.app.state.health
    await here.check()
    return models.Health(status="ok", version=__version__, schema_version=SCHEMA_VERSION)


@writing.post(
    "/jobs",
    status_code=status.HTTP_201_CREATED,
    responses={
        200: {"description": "The key was used before: the first job.", "model": models.Accepted},
        **said(409, "the key was used with another payload; nothing was enqueued"),
    },
)
def post_job(
    job: models.NewJob,
    here: Here,
    request: Request,
    response: Response,
    idempotency_key: Annotated[
        str | None, Header(max_length=257, description="As the field idempotency_key.")
    ] = None,
) -> models.Accepted:
    """Enqueue one job. Send a key, and send it again until there is an answer: it is one job."""
    if idempotency_key is not None:
        job = _with_key(job, idempotency_key)
    with here.app.telemetry.tracing.asked(request.headers):
        job_id, created = enqueue_one(here, job)
    response.headers["Location"] = f"{request.scope.get('root_path', '')}/jobs/{job_id}"
    if not created:
        response.status_code = status.HTTP_200_OK
    return models.Accepted(id=job_id, created=created)


@writing.post(
    "/jobs/batch",
    status_code=status.HTTP_201_CREATED,
    responses={
        200: {"description": "All keys were used before.", "model": models.AcceptedBatch},
        **said(409, "a key was used with another payload; nothing was enqueued"),
        **said(422, "a field is wrong; `errors` says which, as in jobs.3.queue"),
    },
)
def post_batch(
    batch: models.Batch,
    here: Here,
    request: Request,
    response: Response,
    idempotency_key: Annotated[str | None, Header(include_in_schema=False)] = None,
) -> models.AcceptedBatch:
    """Enqueue many jobs, all or none. Each may have an idempotency_key of its own."""
    if idempotency_key is not None:
        raise _wrong_key("header", "names one job: give each job of a batch its own, as a field")
    with here.app.telemetry.tracing.asked(request.headers):
        accepted = enqueue_all(here, batch.jobs)
    if not any(created for _, created in accepted):
        response.status_code = status.HTTP_200_OK
    return models.AcceptedBatch(
        jobs=[models.Accepted(id=job_id, created=created) for job_id, created in accepted]
    )


@writing.get("/jobs/batch", include_in_schema=False)
def get_batch() -> None:
    """So that it is not taken for a job of this name."""
    raise HTTPException(status.HTTP_405_METHOD_NOT_ALLOWED)


@reading.get("/jobs", response_model=models.Jobs)
def get_jobs(
    here: Here,
    state: Annotated[State | None, Query(description="Only jobs in this state.")] = None,
    queue: Annotated[
        str | None, Query(max_length=128, pattern=models.NO_NUL, description="Only of this queue.")
    ] = None,
    task: Annotated[
        str | None, Query(max_length=255, pattern=models.NO_NUL, description="Only of this task.")
    ] = None,
    cursor: Annotated[UUID | None, Query(description="next_cursor of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
) -> JSONResponse:
    """Jobs, the newest first, page by page. Nothing is counted, and nothing is skipped or shown
    twice when jobs come and go between two pages. A page may be shorter than its limit, and even
    empty, while there is a next_cursor: one request looks only for so long."""
    return shown(page_of_jobs(here, Wanted(state, queue, task), cursor, limit))


@reading.get(
    "/jobs/{job_id}", response_model=models.Job, responses=said(404, "there is no such job")
)
def get_job(job_id: UUID, here: Here) -> JSONResponse:
    """One job: where it stands, its payload, its result or error."""
    row = here.read(lambda reading, conn: reading.job(conn, job_id))
    if row is None:
        raise JobNotFound(job_id)
    overview = models.Overview(**row).model_dump(mode="json")
    return JSONResponse(overview | {name: _plain(row[name]) for name in _JSON})


@reading.get("/queue/depth", response_model=models.Depths, tags=["queues"])
def get_depth(here: Here) -> JSONResponse:
    """How much waits where. Counts no further than 10,000 jobs of a queue and priority, so that it
    can be asked every second; `capped` says that there are more."""
    rows = here.read(lambda reading, conn: reading.depths(conn))
    sums = {
        name: sum(row[name] for row in rows)
        for name in ("queued", "running", "scheduled", "quarantined")
    }
    queues = [models.Depth(**row) for row in rows]
    return shown(models.Depths(queues=queues, capped=any(q.capped for q in queues), **sums))


@changing.post(
    "/jobs/{job_id}/retry",
    responses={
        **said(404, "there is no such job"),
        **said(409, "the job is neither scheduled, failed nor quarantined"),
    },
)
def post_retry(job_id: UUID, here: Here) -> models.Changed:
    """Try a job again, now: a scheduled one is due, a failed or quarantined one is requeued."""
    due, requeued = here.retry([job_id], "retried over HTTP")
    if due:
        return models.Changed(id=job_id, outcome="due")
    if requeued:
        return models.Changed(id=job_id, outcome="requeued")
    found = here.act("operator", here.producer.verbs.status(job_id))
    if found is None:
        raise JobNotFound(job_id)
    raise Problem(
        409,
        "wrong_state",
        f"job {job_id} is {found.state}: retry is for jobs that are scheduled, failed or "
        "quarantined",
        job_id=str(job_id),
        state=found.state,
    )


@changing.post("/jobs/{job_id}/cancel", responses=said(404, "there is no such job"))
def post_cancel(
    job_id: UUID, here: Here, body: Annotated[models.Reason | None, Body()] = None
) -> models.Changed:
    """End a waiting job, or ask a running one to stop. Again is harmless."""
    reason = body.reason if body is not None else None
    for job in here.act("operator", here.producer.verbs.cancel([job_id], reason)):
        return models.Changed(id=job_id, outcome=job.verdict)
    raise JobNotFound(job_id)


def shown(body: Any) -> JSONResponse:
    """The body, written once: what comes from our own views need not be checked again."""
    return JSONResponse(body.model_dump(mode="json"))


def _plain(value: Any) -> Any:
    """What a job carries, unless it is nested too deeply: pydantic gives up at 255."""
    try:
        json.dumps(value)
    except RecursionError:
        return {"unreadable": "it is nested too deeply"}
    return value


def _with_key(job: models.NewJob, header: str) -> models.NewJob:
    """The header's key; the IETF's draft has it in quotes."""
    key = header[1:-1] if header[:1] == header[-1:] == '"' and len(header) > 1 else header
    if not 1 <= len(key) <= 255:
        raise _wrong_key("header", "has 1 to 255 characters")
    if job.idempotency_key not in (None, key):
        raise _wrong_key("header", "is not the same as the field idempotency_key: send one")
    return job.model_copy(update={"idempotency_key": key})


def _wrong_key(where: str, message: str) -> Problem:
    return invalid_fields([{"field": "idempotency-key", "in": where, "message": message}])
