"""Signing in with a token: a browser cannot send one with a link, so that it gets a cookie.

The cookie is the token, for this site and nobody's scripts; where none is set there is nothing to
sign in to. It comes with a link from elsewhere, so that one in a chat leads where it says; a change
asked for with it has to come from a page of this site.
"""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from faultline.service.dashboard.rendering import HEADERS, rendered
from faultline.service.tokens import COOKIE, SIGN_IN, Doorkeeper, Tokens

MAX_FORM_BYTES = 200_000


async def form(request: Request) -> dict[str, list[str]]:
    """The fields of a form; a few kilobytes of ids at most."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM_BYTES:
            raise HTTPException(413, "these are too many at once: choose fewer")
    return parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)


def sign_in_page(request: Request, wrong: str | None = None) -> Response:
    """Asks for a token."""
    values = {"root": request.scope.get("root_path", ""), "wrong": wrong, "next": _next(request)}
    status = 401 if wrong else 200
    return HTMLResponse(rendered("sign_in.html", **values), status, HEADERS)


def _next(request: Request) -> str:
    """Where whoever signs in wanted to go: a page of this dashboard, or the first one."""
    wanted = request.query_params.get("next", "")
    is_ours = wanted.startswith("/dashboard") and not wanted.startswith(SIGN_IN)
    return wanted if is_ours and "\\" not in wanted else "/dashboard"


async def sign_in(request: Request) -> Response:
    """A right token becomes a cookie, a wrong one counts against the address."""
    tokens: Tokens = request.app.state.tokens
    given = (await form(request)).get("token", [""])[0].strip()
    address = request.client.host if request.client else ""
    failures = request.app.state.failures
    if failures.wait_seconds(address):
        return sign_in_page(request, "too many wrong tokens: wait for a minute")
    reads, _ = tokens.judge(given)
    if not reads:
        failures.add(address, given)
        return sign_in_page(request, "this is not a token of this service")
    root = request.scope.get("root_path", "")
    answer = RedirectResponse(f"{root}{_next(request)}", 303)
    answer.set_cookie(
        COOKIE,
        given,
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
        path=root or "/",
    )
    return answer


def sign_out(request: Request) -> Response:
    """Forget the cookie."""
    root = request.scope.get("root_path", "")
    answer = RedirectResponse(f"{root}/dashboard/sign-in", 303)
    answer.delete_cookie(COOKIE, path=root or "/")
    return answer


def may_change(request: Request) -> bool:
    """Whether this viewer may act, and this service serves actions."""
    return bool(request.app.state.change) and Doorkeeper.writes(request.scope)
