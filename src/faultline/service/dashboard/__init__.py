"""The dashboard: pages for a person on call, made on the server, kept fresh by its stream.

    rendering    templates, and how values are shown
    pages        what each page shows
    timeline     the life of a job as a drawing (pure)
    actions      what the buttons do
    session      signing in
    stalling     stopping workers on purpose, in development

A page is whole without scripts; with them its parts (`data-live`) are asked for again whenever the
stream says that something has changed. Nothing is loaded from elsewhere.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Callable
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from faultline.errors import InvalidArgument
from faultline.listing import Wanted
from faultline.service.dashboard import actions, pages, session
from faultline.service.dashboard.rendering import HEADERS, rendered, static_files
from faultline.service.dashboard.troubles import Page
from faultline.service.jobs import Here
from faultline.service.problem import Problem
from faultline.service.watch import Watch
from faultline.states import State

router = APIRouter(include_in_schema=False, route_class=Page)
Cursor = Annotated[UUID | None, Query()]


def page(request: Request, template: str, values: dict[str, Any], part: str | None) -> Response:
    """The page; or, for its own script, one part of it."""
    common = {
        "root": request.scope.get("root_path", ""),
        "may_change": session.may_change(request),
        "signed_in": bool(request.app.state.tokens),
        "part": part,
        "here": template.removesuffix(".html"),
    }
    return HTMLResponse(rendered(template, **common, **values), headers=HEADERS)


@router.get("/")
def home(request: Request) -> Response:
    """Whoever opens the service in a browser wants this."""
    return RedirectResponse(f"{request.scope.get('root_path', '')}/dashboard", 303)


@router.get("/dashboard")
def get_overview(here: Here, request: Request, part: str | None = None) -> Response:
    """Is all well?"""
    watch: Watch = request.app.state.watch
    values = pages.overview(here, request.app.state.limits)
    values["rates"] = watch.rates(60).per_second
    return page(request, "overview.html", values, part)


@router.get("/dashboard/series")
def get_series(request: Request) -> Response:
    """The last ten minutes, for the chart."""
    watch: Watch = request.app.state.watch
    return JSONResponse(watch.series(), headers={"Cache-Control": "no-store"})


@router.get("/dashboard/jobs")
def get_jobs(
    here: Here,
    request: Request,
    state: Annotated[str, Query(max_length=20)] = "",
    queue: Annotated[str, Query(max_length=128)] = "",
    task: Annotated[str, Query(max_length=255)] = "",
    cursor: Cursor = None,
    find: Annotated[str, Query(max_length=100)] = "",
    part: str | None = None,
) -> Response:
    """Jobs that match."""
    if find.strip():
        try:
            address = f"{request.scope.get('root_path', '')}/dashboard/jobs/{UUID(find.strip())}"
            return RedirectResponse(address, 303)
        except ValueError:
            raise InvalidArgument(
                "this is not the id of a job: paste it whole; point at a short one to see all of it"
            ) from None
    if state and state not in list(State):
        raise InvalidArgument(f"there is no such state: {', '.join(State)}")
    wanted = Wanted(state or None, queue or None, task or None)
    return page(request, "jobs.html", pages.jobs(here, wanted, cursor), part)


@router.get("/dashboard/jobs/{job_id}")
def get_job(job_id: UUID, here: Here, request: Request, part: str | None = None) -> Response:
    """One job, and its timeline."""
    return page(request, "job.html", pages.job(here, job_id), part)


@router.get("/dashboard/workers")
def get_workers(here: Here, request: Request, part: str | None = None) -> Response:
    """Who is there."""
    values = pages.workers(here, request.app.state.limits)
    stalling = request.app.state.stalling
    values["host"] = stalling.host if stalling is not None else None
    values["stalled"] = stalling.stalled() if stalling is not None else {}
    return page(request, "workers.html", values, part)


@router.get("/dashboard/refusals")
def get_refusals(
    here: Here,
    request: Request,
    cursor: Annotated[int | None, Query(ge=0, le=2**63 - 1)] = None,
    part: str | None = None,
) -> Response:
    """What was refused."""
    return page(request, "refusals.html", pages.refusals(here, cursor), part)


@router.get("/dashboard/queues")
def get_queues(here: Here, request: Request, part: str | None = None) -> Response:
    """What waits where."""
    return page(request, "queues.html", pages.queues(here), part)


@router.get("/dashboard/health")
def get_health(
    here: Here, request: Request, check: bool = False, part: str | None = None
) -> Response:
    """The installation itself."""
    invariants = request.app.state.invariants if check else None
    values = pages.health(here, request.app.state.limits, invariants)
    return page(request, "health.html", values, part)


# ── what changes something ───────────────────────────────────────────────────────────────────────

changes = APIRouter(include_in_schema=False)


async def _done(request: Request, act: Callable[[dict[str, list[str]]], str]) -> Response:
    """Do it, and say what was done."""
    fields = await session.form(request)
    said = await run_in_threadpool(act, fields)
    return HTMLResponse(rendered("said.html", said=said), headers=HEADERS)


@changes.post("/dashboard/jobs")
async def post_jobs(here: Here, request: Request) -> Response:
    """Retry or cancel: the jobs that were ticked, or all that match."""
    return await _done(request, lambda fields: actions.change_jobs(here, fields))


@changes.post("/dashboard/queues")
async def post_queues(here: Here, request: Request) -> Response:
    """Pause or resume a queue."""
    return await _done(request, lambda fields: actions.change_queue(here, fields))


@changes.post("/dashboard/workers")
async def post_workers(request: Request) -> Response:
    """Stall a worker that was started for this purpose, or let it go on."""
    stalling = request.app.state.stalling
    return await _done(request, lambda fields: actions.change_worker(stalling, fields))


# ── what needs no token ──────────────────────────────────────────────────────────────────────────


@router.get("/dashboard/sign-in")
def get_sign_in(request: Request) -> Response:
    """Asks for a token."""
    return session.sign_in_page(request)


@router.post("/dashboard/sign-in")
async def post_sign_in(request: Request) -> Response:
    """A right one lets in."""
    return await session.sign_in(request)


@router.post("/dashboard/sign-out")
def post_sign_out(request: Request) -> Response:
    """Lets out."""
    return session.sign_out(request)


@router.get("/dashboard/static/{name}")
def get_static(name: str) -> Response:
    """A file of the page's own."""
    content = static_files().get(name)
    if content is None:
        raise Problem(404, "not_found", "there is no such file here")
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Response(content, media_type=kind, headers={"Cache-Control": "max-age=3600"})


@router.get("/dashboard/{path:path}")
def get_nothing(path: str) -> Response:  # noqa: ARG001
    """Whatever else is asked for."""
    raise Problem(404, "not_found", "there is no such page")
