"""What the service promises, as GET /openapi.json: what every route may answer besides its own.

A route declares what only it can say (`said`); who may call, what a body has to be and what happens
while the database is away holds for all of them, and is added here.
"""

from __future__ import annotations

import re
from typing import Any

from fastapi import FastAPI

from faultline.service.models import ProblemBody

_PROBLEM = "application/problem+json"
_NAME = "Problem"

_GUARDED = {
    401: "no token was sent, or one that is not known",
    403: "this token may only read, or the service's login lacks a role; detail has the grant",
    429: "too many wrong tokens came from this address",
    503: "the database is away, takes no writes, or its schema does not fit; detail says why",
    504: "the database took too long to answer",
}
_WITH_BODY = {400: "the body is not JSON in UTF-8", 413: "the body or a payload is too large"}
_WRONG = "a field is wrong; `errors` says which"

Responses = dict[int | str, dict[str, Any]]


def said(status: int, what: str) -> Responses:
    """A problem that a route may answer with."""
    example = {"type": "faultline:…", "title": "…", "status": status, "detail": what}
    schema = {"$ref": f"#/components/schemas/{_NAME}"}
    return {
        status: {
            "description": what,
            "content": {_PROBLEM: {"schema": schema, "example": example}},
        }
    }


def describe(web: FastAPI) -> None:
    """Have the application describe itself with all that it answers."""
    usual = web.openapi

    def openapi() -> dict[str, Any]:
        if web.openapi_schema is None:
            web.openapi_schema = _completed(usual())
        return web.openapi_schema

    web.openapi = openapi  # type: ignore[method-assign]  # as FastAPI's documents have it


def allowed(web: FastAPI, path: str) -> str:
    """The methods of a path; the router names only those of the first route that it meets."""
    paths = web.openapi()["paths"]
    fitting = [path] if path in paths else [known for known in paths if _fits(path, known)]
    return ", ".join(sorted({method.upper() for known in fitting for method in paths[known]}))


def _fits(path: str, template: str) -> bool:
    parts = re.split(r"\{\w+\}", template)
    return re.fullmatch("[^/]+".join(map(re.escape, parts)), path) is not None


def _completed(spec: dict[str, Any]) -> dict[str, Any]:
    schemas = spec.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):  # FastAPI's own, which we never say
        schemas.pop(unused, None)
    body = ProblemBody.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= {**body.pop("$defs", {}), _NAME: body}
    for route in (route for methods in spec["paths"].values() for route in methods.values()):
        _complete(route)
    return spec


def _complete(route: dict[str, Any]) -> None:
    answers: dict[str, Any] = route["responses"]
    more = dict(_GUARDED) if route.get("security") else {}
    if "requestBody" in route:
        more |= _WITH_BODY
    for status, what in more.items():
        answers.setdefault(str(status), said(status, what)[status])
    if _PROBLEM not in answers.get("422", {}).get("content", {_PROBLEM: {}}):
        answers["422"] = said(422, _WRONG)[422]
