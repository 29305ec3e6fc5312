"""What a person gets who asked for a page that cannot be made: a page that says why."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from faultline.service.dashboard.rendering import HEADERS, rendered
from faultline.service.problem import Problem, problem_of

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class Page(APIRoute):
    """A route whose troubles are pages too; those of a script's own requests stay as they are."""

    def get_route_handler(self) -> Handler:
        """The usual one, with this around it."""
        usual = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await usual(request)
            except Exception as error:
                wrong = isinstance(error, RequestValidationError)
                problem = _WRONG if wrong else problem_of(error)
                if problem is None or "text/html" not in request.headers.get("accept", ""):
                    raise
                return _page(request, problem)

        return handle


_WRONG = Problem(422, "invalid_request", "the address of this page is not right: begin anew")


def _page(request: Request, problem: Problem) -> Response:
    values = {
        "root": request.scope.get("root_path", ""),
        "signed_in": bool(request.app.state.tokens),
        "here": "",
        "part": request.query_params.get("part"),
        "problem": problem,
    }
    headers = {**HEADERS, **problem.headers}
    return HTMLResponse(rendered("trouble.html", **values), problem.status, headers)
