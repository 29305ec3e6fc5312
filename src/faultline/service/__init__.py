"""The service: jobs over HTTP, and a look at leases, workers, refusals and risk.

    from faultline.service import service

    web.mount("/faultline", service(app, token=settings.faultline_token))

`faultline api` and `faultline inspector serve` run the same. Needs the extra `web` (FastAPI).

    jobs         enqueue, look, list, retry, cancel, depth, health
    inspector    leases, workers, risk, refusals, timelines, throughput, the stream of changes
    orders       what was asked for, as verbs
    watch        one look a second for all who watch
    dashboard    all of it as pages, for a person on call
    metrics      for Prometheus: what this process did, and what only the database knows
    invariants   whether they hold, as last checked
    tokens       who may call; requests, problem, openapi: what is common to all answers

Nothing here decides about a job: it calls the verbs and reads the views, as anybody may.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Security
from fastapi.security import HTTPBearer

from faultline import __version__
from faultline.access import Access
from faultline.risk import Limits
from faultline.service import dashboard, inspector, jobs, metrics
from faultline.service.health import Health
from faultline.service.invariants import Invariants
from faultline.service.openapi import describe
from faultline.service.problem import install
from faultline.service.requests import Bounded, Recorded
from faultline.service.tokens import Doorkeeper, Failures, Tokens
from faultline.service.watch import Watch

if TYPE_CHECKING:
    from faultline.app import App
    from faultline.service.dashboard.stalling import Stalling

MAX_BODY_BYTES = 8 << 20

_DESCRIPTION = """Jobs over HTTP: enqueue them once, follow them, and see what endangers their
leases. Errors are problem bodies (RFC 9457) whose `detail` says what to do."""


@asynccontextmanager
async def _connected(web: FastAPI) -> AsyncIterator[None]:
    """Connect before the first request. An application that this one is mounted in skips it."""
    await web.state.access.aopen()
    yield


_bearer = HTTPBearer(
    auto_error=False,
    description="FAULTLINE_API_TOKEN; FAULTLINE_API_READ_TOKEN is enough for GET. Not needed on "
    "loopback where neither is set.",
)


def service(
    app: App,
    *,
    token: str | None = None,
    read_token: str | None = None,
    trust: bool = False,
    enqueue: bool = True,
    change: bool = True,
    limits: Limits | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    stalling: Stalling | None = None,
) -> FastAPI:
    """An ASGI application on the app's database: to be served, or mounted in one of yours.

    Without a token it answers requests from this machine only. `trust`: the application around it
    has judged who may call. `enqueue`: with POST /jobs; `change`: with retry and cancel. `limits`:
    from when on something counts for the risk. `stalling`: workers that the dashboard may stop, to
    show what happens then.
    """
    web = FastAPI(
        title="Faultline",
        version=__version__,
        description=_DESCRIPTION,
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        lifespan=_connected,
    )
    web.state.access = Access(app)
    web.state.health = Health(app)
    web.state.limits = limits or Limits()
    web.state.watch = Watch(web.state.access, web.state.limits)
    web.state.invariants = Invariants(web.state.access)
    web.state.gauges = metrics.Gauges(
        web.state.access, web.state.health, web.state.limits, web.state.invariants
    )
    web.state.tokens = Tokens(token, read_token)
    web.state.failures = Failures()
    web.state.change = change
    web.state.stalling = stalling
    install(web)
    web.include_router(jobs.health)
    guarded: dict[str, Any] = {"dependencies": [Security(_bearer)]}
    if enqueue:
        web.include_router(jobs.writing, **guarded)
    if change:
        web.include_router(jobs.changing, **guarded)
        web.include_router(dashboard.changes)
    web.include_router(jobs.reading, **guarded)
    web.include_router(inspector.router, **guarded)
    web.include_router(metrics.router, **guarded)
    web.include_router(dashboard.router)
    describe(web)
    # The last one added is the outermost.
    web.add_middleware(Bounded, max_bytes=max_body_bytes)
    web.add_middleware(
        Doorkeeper, tokens=web.state.tokens, failures=web.state.failures, trust=trust
    )
    web.add_middleware(Recorded, tally=app.telemetry.tally)
    return web
