"""GET /metrics: what this process has done, and what only the database knows.

The database's numbers are here and in no worker: any number of workers would tell the same, and ask
for it. They are looked at once for all who scrape within a second; the invariants, beside and once
in ten minutes. A database that is away costs the scrape nothing but these: it is answered with
`faultline_database_up 0`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse, Response
from psycopg import Connection

from faultline import __version__, conditions
from faultline.access import Access
from faultline.errors import FaultlineError, NotPermitted
from faultline.observing import observe
from faultline.reading import Reading, Record
from faultline.risk import Limits, Risk, assess
from faultline.service.health import Health
from faultline.service.invariants import Checked, Invariants
from faultline.service.openapi import said
from faultline.service.problem import Problem
from faultline.telemetry import catalogue as metrics
from faultline.telemetry.catalogue import OTHER, Metric
from faultline.telemetry.sums import Sums

GOOD_FOR_SECONDS = 1.0
MAX_QUEUES = 200  # with lines of their own, the first by name; the others share one
_STATES = ("queued", "scheduled", "running", "quarantined")
_LEVELS = {"low": 0, "medium": 1, "high": 2}

router = APIRouter(tags=["metrics"])
log = logging.getLogger("faultline.service")


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses={
        200: {"description": "Prometheus' text format.", "content": {"text/plain": {}}},
        **said(501, "prometheus_client is not installed"),
    },
)
async def get_metrics(request: Request) -> Response:
    """For Prometheus: what this process did, and what only the database knows. Answers also while
    the database is away."""
    try:
        from prometheus_client import generate_latest
        from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

        from faultline.telemetry.exposition import Beside, Exposition
    except ModuleNotFoundError as error:
        raise Problem(
            501, "no_metrics", "install prometheus_client: pip install 'faultline-queue[metrics]'"
        ) from error
    gauges: Gauges = request.app.state.gauges
    sums = await gauges.look()
    sums.merge(gauges.access.app.telemetry.tally.snapshot())
    text = generate_latest(Beside(Exposition(lambda: sums)))
    return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)


class Gauges:
    """What the database says, at most so old."""

    def __init__(
        self, access: Access, health: Health, limits: Limits, invariants: Invariants
    ) -> None:
        self.access = access
        self._invariants = invariants
        self._health = health
        self._limits = limits
        self._lock = threading.Lock()
        self._until = 0.0
        self._last = Sums()

    async def look(self) -> Sums:
        """The database's numbers; only that it is away, if so. Health is asked first, since it does
        not wait for a connection of the pool."""
        found = _known()
        if await self._health.wrong() is None:
            self._invariants.begin()
            found.merge(await run_in_threadpool(self._recent))
        _invariants(found, self._invariants.last)
        return found

    def _recent(self) -> Sums:
        with self._lock:  # who comes while somebody looks waits for what he sees
            if time.monotonic() >= self._until:
                self._last = self._seen()
                self._until = time.monotonic() + GOOD_FOR_SECONDS
            return self._last

    def _seen(self) -> Sums:
        sums = Sums()
        try:
            _installation(sums, *self.access.read(_read))
            _server(sums, *self.access.server(self._server))
            _risk(sums, assess(observe(self.access, self._limits), self._limits))
        except NotPermitted:  # a login that may only enqueue: it is not away
            _set(sums, metrics.DATABASE_UP, 1)
            return sums
        except Exception as error:  # whatever it is: the process's own numbers are still worth it
            known = isinstance(error, FaultlineError)
            log.warning("metrics: %s", error if known else type(error).__name__)
            return Sums()
        _set(sums, metrics.DATABASE_UP, 1)
        return sums

    def _server(self, conn: Connection[Any]) -> tuple[Any, ...]:
        schema = self.access.app.schema
        return (
            conditions.counters(conn, schema),
            conditions.dead_rows(conn, schema),
            conditions.sizes(conn, schema),
            conditions.pins(conn, 0.0),
            conditions.standbys(conn),
        )


def _read(reading: Reading, conn: Connection[Any]) -> tuple[Any, ...]:
    return (
        reading.depths(conn),
        reading.waiting(conn),
        reading.workers(conn),
        reading.upkeep(conn),
        reading.version(conn),
    )


def _set(sums: Sums, metric: Metric, number: float, *labels: str) -> None:
    sums.gauges[(metric.name, *labels)] = float(number)


def _add(sums: Sums, metric: Metric, number: float, *labels: str) -> None:
    key = (metric.name, *labels)
    sums.gauges[key] = sums.gauges.get(key, 0.0) + float(number)


def _most(sums: Sums, metric: Metric, number: float, *labels: str) -> None:
    key = (metric.name, *labels)
    sums.gauges[key] = max(sums.gauges.get(key, 0.0), float(number))


def _known() -> Sums:
    """What can be said without the database."""
    sums = Sums()
    _set(sums, metrics.DATABASE_UP, 0)
    _set(sums, metrics.BUILD, 1, __version__)
    return sums


def _installation(
    sums: Sums,
    depths: Sequence[Record],
    waiting: Sequence[Record],
    workers: Sequence[Record],
    upkeep: Mapping[str, Any],
    version: int,
) -> None:
    oldest = {row["queue"]: row["oldest_seconds"] for row in waiting}
    for number, row in enumerate(depths):
        queue = row["queue"] if number < MAX_QUEUES else OTHER
        for state in _STATES:
            _add(sums, metrics.DEPTH, row[state], queue, state)
        _most(sums, metrics.CAPPED, row["capped"], queue)
        _most(sums, metrics.PAUSED, row["paused"], queue)
        _most(sums, metrics.OLDEST, oldest.get(row["queue"]) or 0.0, queue)
    silent = sum(float(w["silent_seconds"]) > Limits().silent_seconds for w in workers)
    _set(sums, metrics.WORKERS, len(workers) - silent, "active")
    _set(sums, metrics.WORKERS, silent, "silent")
    _set(sums, metrics.LEASES, upkeep["live_leases"], "live")
    _set(sums, metrics.LEASES, upkeep["expired_leases"], "expired")
    _set(sums, metrics.OVERDUE, upkeep["scheduled_overdue_seconds"] or 0.0)
    _set(sums, metrics.BEHIND, upkeep["retention_behind_seconds"] or 0.0)
    _set(sums, metrics.SCHEMA_VERSION, version)


def _server(
    sums: Sums,
    counters: conditions.Counters,
    tables: Sequence[conditions.DeadRows],
    sizes: Mapping[str, int],
    pins: Sequence[conditions.Pin],
    standbys: conditions.Standbys,
) -> None:
    sums.count(metrics.REFUSALS, counters.refused)
    for table in tables:
        _set(sums, metrics.DEAD_ROWS, table.dead, table.table)
        _set(sums, metrics.LIVE_ROWS, table.live, table.table)
    for name, size in sizes.items():
        _set(sums, metrics.BYTES, size, name)
    _set(sums, metrics.PINNED, max((pin.seconds or 0.0 for pin in pins), default=0.0))
    asynchronous = standbys.count - standbys.synchronous
    _set(sums, metrics.STANDBYS, standbys.synchronous, "synchronous")
    _set(sums, metrics.STANDBYS, asynchronous, "asynchronous")


def _invariants(sums: Sums, last: Checked | None) -> None:
    """Told also while the database is away: what was broken is not mended by that."""
    if last is None:
        return
    _set(sums, metrics.CHECKED, last.at)
    for name, number in last.broken.items():
        _set(sums, metrics.VIOLATIONS, number, name)


def _risk(sums: Sums, risk: Risk) -> None:
    _set(sums, metrics.RISK, _LEVELS[risk.stale_risk])
    _set(sums, metrics.SCORE, risk.score)
