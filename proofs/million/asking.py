"""Every operation of the service as requests that are hard for it, and how long they take."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg import Connection

from proofs.serving import Caller, Service

STATES = ("queued", "scheduled", "running", "succeeded", "failed", "cancelled", "quarantined")
STREAM = "/api/stream"
BATCH = 1000


@dataclass(frozen=True, slots=True)
class Question:
    """One kind of request; `path` and `body` are told how often it was asked before."""

    operation: str  # as OpenAPI has it: "GET /jobs/{job_id}"
    path: Callable[[int], str]
    body: Callable[[int], Any] = lambda _: None
    expected: tuple[int, ...] = (200,)

    @property
    def name(self) -> str:
        """For people: ids are of no interest."""
        shown = re.sub(r"=[0-9a-f-]{36}", "=…", self.path(0))
        shown = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "{job_id}", shown)
        return f"{self.operation.partition(' ')[0]} {shown}"


@dataclass(frozen=True, slots=True)
class Timed:
    """How long each of several requests took."""

    question: Question
    seconds: list[float]
    wrong: str | None  # the first answer that was not as expected

    @property
    def median_ms(self) -> float:
        """In milliseconds."""
        return 1000 * statistics.median(self.seconds)

    @property
    def worst_ms(self) -> float:
        """In milliseconds."""
        return 1000 * max(self.seconds)


def questions(conn: Connection[Any], schema: str) -> list[Question]:
    """All of them, with jobs and places that are there."""

    def ids(state: str, count: int = 100) -> list[UUID]:
        jobs = f"select id from {schema}.jobs where state = %s order by id limit %s"
        return [row[0] for row in conn.execute(jobs, (state, count))]

    some = {state: ids(state) for state in STATES}
    oldest, newest = (
        conn.execute(f"select id from {schema}.jobs order by id {way} limit 1").fetchone()
        for way in ("", "desc")
    )
    assert oldest is not None
    assert newest is not None
    deep = UUID(int=(oldest[0].int + newest[0].int) // 2)
    refusal = conn.execute(f"select max(id) / 2 from {schema}.refusals").fetchone()
    assert refusal is not None
    return [*_lists(deep), *_looks(some, refusal[0]), *_pages(some, deep), *_changes(some)]


def _lists(deep: UUID) -> Iterator[Question]:
    places = [f"state={state}" for state in STATES]
    narrow = ["queue=queue-1", "task=task-1", "queue=rare", "task=rare", "task=none", "queue=none"]
    both = [f"{place}&{more}" for place in places for more in ("queue=queue-1", "task=rare")]
    for query in ("", *places, *narrow, *both, "queue=queue-2&task=task-1"):
        for more in ("limit=50", f"cursor={deep}", "limit=500"):
            yield _asking("GET /jobs", f"/jobs?{'&'.join(filter(None, (query, more)))}")


def _looks(some: dict[str, list[UUID]], refusal: int) -> Iterator[Question]:
    lists = ("/queue/depth", "/api/workers", "/api/queues", "/api/risk", "/metrics")
    for path in ("/health", "/livez", *lists):
        yield _asking(f"GET {path}", path)
    for query in ("", "?limit=1000"):
        yield _asking("GET /api/leases", f"/api/leases{query}")
    succeeded, failed = some["succeeded"], some["failed"]
    for query in ("", "?limit=1000", f"?cursor={refusal}", f"?job_id={succeeded[7]}"):
        yield _asking("GET /api/refusals", f"/api/refusals{query}")
    yield _asking("GET /api/throughput", "/api/throughput")
    yield _asking(f"GET {STREAM}", STREAM)
    yield Question("GET /jobs/{job_id}", lambda n: f"/jobs/{succeeded[n]}")
    timeline = "GET /api/jobs/{job_id}/timeline"
    yield Question(timeline, lambda n: f"/api/jobs/{failed[n]}/timeline")


def _pages(some: dict[str, list[UUID]], deep: UUID) -> Iterator[Question]:
    """The dashboard's, which OpenAPI does not list. Its check of the invariants reads every table,
    and says so."""
    lists = [f"/jobs?state={state}" for state in STATES] + [f"/jobs?task=rare&cursor={deep}"]
    for path in ("", "/jobs", *lists, "/workers", "/refusals", "/queues", "/health", "/series"):
        yield _asking("GET /dashboard", f"/dashboard{path}")
    failed = some["failed"]
    yield Question("GET /dashboard", lambda n: f"/dashboard/jobs/{failed[n]}")


def _changes(some: dict[str, list[UUID]]) -> Iterator[Question]:
    job = {"task": "charge", "payload": {"order_id": 7}}
    again = {**job, "idempotency_key": "the same"}
    yield Question("POST /jobs", lambda _: "/jobs", lambda _: job, (201,))
    yield Question("POST /jobs", lambda _: "/jobs", lambda _: again, (200, 201))
    batch = {"jobs": [job] * BATCH}
    yield Question("POST /jobs/batch", lambda _: "/jobs/batch", lambda _: batch, (201,))
    for state in ("scheduled", "failed", "quarantined"):
        yield _changing("retry", some[state][: len(some[state]) // 2])
    for state in ("queued", "scheduled", "running", "succeeded"):
        yield _changing("cancel", some[state][len(some[state]) // 2 :])


def _asking(operation: str, path: str) -> Question:
    return Question(operation, lambda _: path)


def _changing(verb: str, jobs: list[UUID]) -> Question:
    """Each time another job."""
    return Question(f"POST /jobs/{{job_id}}/{verb}", lambda n: f"/jobs/{jobs[n]}/{verb}")


def ask(service: Service, question: Question, times: int) -> Timed:
    """Several times, one after the other."""
    caller = service.caller()
    seconds, wrong = [], None
    try:
        for number in range(times):
            if question.operation == f"GET {STREAM}":
                seconds.append(until_all_is_told(service))
                continue
            method, _, _ = question.operation.partition(" ")
            answer = caller(method, question.path(number), question.body(number))
            seconds.append(answer.seconds)
            if answer.status not in question.expected:
                wrong = wrong or f"{answer.status}: {answer.text[:200]}"
    finally:
        caller.close()
    return Timed(question, seconds, wrong)


def until_all_is_told(service: Service) -> float:
    """Seconds from opening a stream until it has said what the risk is, which it says last."""
    caller: Caller = service.caller()
    began = time.monotonic()
    try:
        for line in caller.lines("GET", STREAM):
            if line.startswith("event: risk"):
                break
        return time.monotonic() - began
    finally:
        caller.close()
