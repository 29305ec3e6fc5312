"""What is said when a request cannot be answered: a problem body (RFC 9457) that says what to do.

    {"type": "faultline:job_not_found", "title": "…", "status": 404, "detail": "…", …facts}

The one place where Faultline's errors become HTTP statuses. Nothing of a request's body but names
of fields is repeated in an answer, and nothing at all in a log: it may be a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psycopg
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from faultline.errors import (
    DatabaseUnavailable,
    FaultlineError,
    IdempotencyConflict,
    InvalidArgument,
    JobNotFound,
    KeyInFlight,
    LockedOut,
    NotPermitted,
    PayloadTooLarge,
    SchemaMismatch,
    ServerTooOld,
)
from faultline.service.openapi import allowed

AGAIN = {"Retry-After": "1"}

# The first that fits; the rest of Faultline's errors cannot come from here.
_STATUSES: tuple[tuple[type[FaultlineError], int, str], ...] = (
    (PayloadTooLarge, 413, "payload_too_large"),
    (InvalidArgument, 422, "invalid_argument"),
    (IdempotencyConflict, 409, "idempotency_conflict"),
    (KeyInFlight, 409, "key_in_flight"),
    (JobNotFound, 404, "job_not_found"),
    (NotPermitted, 403, "not_permitted"),
    (LockedOut, 503, "locked_out"),
    (DatabaseUnavailable, 503, "database_unavailable"),
    (SchemaMismatch, 503, "schema_mismatch"),
    (ServerTooOld, 503, "server_too_old"),
)
_AGAIN = {"key_in_flight", "locked_out", "database_unavailable", "schema_mismatch"}
_HTTP = {
    404: ("not_found", "there is no such path here: GET /openapi.json lists them"),
    405: ("method_not_allowed", "this path has no such method: GET /openapi.json lists them"),
    400: ("unreadable_body", "the body cannot be read: send JSON in UTF-8"),
}


class Problem(Exception):
    """An answer other than the one that was asked for."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        **facts: Any,
    ) -> None:
        self.status = status
        self.kind = kind
        self.detail = detail
        self.headers = dict(headers or {})
        self.facts = facts
        super().__init__(detail)

    def response(self) -> JSONResponse:
        """As it is sent."""
        body = {
            "type": f"faultline:{self.kind}",
            "title": self.kind.replace("_", " "),
            "status": self.status,
            "detail": self.detail,
            **self.facts,
        }
        return JSONResponse(
            body, self.status, headers=self.headers, media_type="application/problem+json"
        )


def problem_of(error: Exception) -> Problem | None:
    """How the error is said; None if it is a bug of ours."""
    if isinstance(error, Problem):
        return error
    for kind, status, name in _STATUSES:
        if isinstance(error, kind):
            headers = AGAIN if name in _AGAIN else {}
            return Problem(status, name, str(error), headers=headers, **_facts(error))
    if isinstance(error, psycopg.errors.QueryCanceled):
        return Problem(
            504, "took_too_long", "this takes too long to look up: narrow it, with queue= or task="
        )
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return Problem(
            503,
            "read_only_database",
            "the database is a standby and takes no writes: connect to the primary, with "
            "target_session_attrs=read-write and all hosts in the URL",
            headers=AGAIN,
        )
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return Problem(
            503, "database_unavailable", "the database did not answer: try again", headers=AGAIN
        )
    return None


def _facts(error: FaultlineError) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if isinstance(error, IdempotencyConflict):
        facts = {"key": error.key, "job_id": str(error.job_id)}
    elif isinstance(error, JobNotFound):
        facts = {"job_id": str(error.job_id)}
    return facts


def field_errors(errors: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Which fields are wrong and why, without what was in them."""
    return [
        {
            "field": ".".join(str(part) for part in error["loc"][1:]) or str(error["loc"][0]),
            "in": str(error["loc"][0]),
            "message": str(error["msg"]),
        }
        for error in errors
    ]


def invalid_fields(errors: list[dict[str, str]]) -> Problem:
    """One field or several are wrong."""
    wrong = "; ".join(f"{error['field']}: {error['message']}" for error in errors[:3])
    more = f"; and {len(errors) - 3} more" if len(errors) > 3 else ""
    detail = f"nothing was done, because the request is wrong: {wrong}{more}"
    return Problem(422, "invalid_request", detail, errors=errors)


def install(app: FastAPI) -> None:
    """Have the application say its errors so."""

    async def ours(_: Request, error: Exception) -> JSONResponse:
        problem = problem_of(error)
        assert problem is not None
        return problem.response()

    async def validation(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return invalid_fields(field_errors(error.errors())).response()

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        headers = dict(error.headers or {})
        if error.status_code == 405:
            path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
            headers["Allow"] = allowed(app, path) or headers.get("Allow", "")
        named = "body_too_large" if error.status_code == 413 else "refused"
        kind, detail = _HTTP.get(error.status_code, (named, str(error.detail)))
        return Problem(error.status_code, kind, detail, headers=headers).response()

    handlers: dict[Any, Callable[[Request, Exception], Any]] = {
        Problem: ours,
        RequestValidationError: validation,
        HTTPException: http,
        **{kind: ours for kind, _, _ in _STATUSES},
        psycopg.OperationalError: ours,
        psycopg.InterfaceError: ours,
        psycopg.errors.ReadOnlySqlTransaction: ours,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)
