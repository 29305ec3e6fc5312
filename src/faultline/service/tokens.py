"""Who may call: a bearer of a token, or, where none is set, this machine only.

    FAULTLINE_API_TOKEN         may do everything
    FAULTLINE_API_READ_TOKEN    may only ask (GET, HEAD)

Judged before anything of the body is read. Without a token a request has to come from loopback, to
a loopback name, and not from another site's page: a browser on this machine would carry those here.
`/health` and `/livez` are open to everybody, for load balancers; of the dashboard, the page that
asks for a token. A browser that has signed in there sends it as a cookie, and may change something
only from a page of this site.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from urllib.parse import SplitResult, urlencode, urlsplit

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from faultline.errors import InvalidArgument
from faultline.service.problem import Problem

MIN_TOKEN_CHARACTERS = 16
MAX_FAILURES = 10
WINDOW_SECONDS = 60.0
MAX_ADDRESSES = 10_000
READING = ("GET", "HEAD")
PROBES = ("/health", "/livez")  # open to everybody
COOKIE = "faultline_token"
SIGN_IN = "/dashboard/sign-in"
_OPEN = (SIGN_IN, "/dashboard/sign-out", "/dashboard/static/")


class Tokens:
    """The two tokens; either may be missing."""

    def __init__(self, token: str | None = None, read_token: str | None = None) -> None:
        for name, given in (("token", token), ("read token", read_token)):
            if given is not None and len(given) < MIN_TOKEN_CHARACTERS:
                raise InvalidArgument(
                    f"the {name} of the API is shorter than {MIN_TOKEN_CHARACTERS} characters: "
                    'make one with python -c "import secrets; print(secrets.token_urlsafe(32))"'
                )
        if token is not None and token == read_token:
            raise InvalidArgument(
                "FAULTLINE_API_TOKEN and FAULTLINE_API_READ_TOKEN are the same: whoever may read "
                "could write too; give them two"
            )
        self._token = _digest(token)
        self._read_token = _digest(read_token)

    def __bool__(self) -> bool:
        return self._token is not None or self._read_token is not None

    def __repr__(self) -> str:
        return f"Tokens({'set' if self else 'none'})"

    def judge(self, given: str) -> tuple[bool, bool]:
        """Whether the bearer may read, and whether it may write. Takes as long for any text."""
        digest = _digest(given) or b""
        writes = hmac.compare_digest(digest, self._token or b"")
        reads = hmac.compare_digest(digest, self._read_token or b"")
        return reads or writes, writes


class Failures:
    """How often each address has presented a wrong token lately; bounded in every way."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._last: OrderedDict[str, bytes | None] = OrderedDict()  # what each presented last

    def wait_seconds(self, address: str) -> float:
        """For how long nothing more is taken from there; 0 if it may go on."""
        count, since = self._counts.get(address, (0, 0.0))
        left = since + WINDOW_SECONDS - self._clock()
        return left if count >= MAX_FAILURES and left > 0 else 0.0

    def add(self, address: str, given: str = "") -> None:
        """Another one. The same one again is no guess: a browser keeps sending an old cookie."""
        digest = _digest(given)
        if self._last.get(address) == digest and given:
            return
        self._last[address] = digest
        if len(self._last) > MAX_ADDRESSES:
            self._last.popitem(last=False)
        count, since = self._counts.pop(address, (0, 0.0))
        now = self._clock()
        fresh = now - since > WINDOW_SECONDS
        self._counts[address] = (1, now) if fresh else (count + 1, since)
        if len(self._counts) > MAX_ADDRESSES:
            self._counts.popitem(last=False)


class Doorkeeper:
    """ASGI middleware: lets a request in, or answers it."""

    def __init__(
        self, app: ASGIApp, tokens: Tokens, failures: Failures, *, trust: bool = False
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._trust = trust
        self._failures = failures

    @staticmethod
    def writes(scope: Scope) -> bool:
        """Whether who asks may change something."""
        return bool(scope.get("faultline_writes", True))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "http" and not self._trust:
            try:
                self._judge(scope)
            except Problem as problem:
                root, path = _paths(scope)
                is_page = path.startswith("/dashboard") and scope["method"] in READING
                if problem.status == 401 and (is_page or path == "/"):
                    wanted = {"next": f"{path}?{scope['query_string'].decode('latin-1')}"}
                    where = f"{root}{SIGN_IN}?{urlencode(wanted)}"
                    await RedirectResponse(where, 303)(scope, receive, send)
                else:
                    await problem.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _judge(self, scope: Scope) -> None:
        _, path = _paths(scope)
        if path in PROBES and scope["method"] in READING:
            return
        headers = Headers(scope=scope)
        if not self._tokens:
            _require_loopback(scope, headers)
            return
        if path.startswith(_OPEN):
            _require_same_site(headers)
            return
        address = scope["client"][0] if scope.get("client") else ""
        if seconds := self._failures.wait_seconds(address):
            wait = math.ceil(seconds)
            raise Problem(
                429,
                "too_many_wrong_tokens",
                f"too many wrong tokens came from this address: wait for {wait} s",
                headers={"Retry-After": str(wait)},
            )
        given = _bearer(headers)
        if not given:
            raise _unauthorised("send a token, as Authorization: Bearer …")
        reads, writes = self._tokens.judge(given)
        if not reads:
            self._failures.add(address, given)
            raise _unauthorised("this is not a token of this service: check FAULTLINE_API_TOKEN")
        scope["faultline_writes"] = writes
        if not writes and scope["method"] not in READING:
            raise Problem(
                403, "read_only_token", "this token may only read: use FAULTLINE_API_TOKEN"
            )


def _paths(scope: Scope) -> tuple[str, str]:
    """Where the service is mounted, and what is asked of it."""
    root = str(scope.get("root_path", ""))
    return root, str(scope["path"]).removeprefix(root)


def _bearer(headers: Headers) -> str:
    """The token; a browser's cookie counts only for what a page of this site asks."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and given:
        return given.strip()
    cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
    if cookie:
        _require_same_site(headers)
    return cookie


def _require_same_site(headers: Headers) -> None:
    origin = headers.get("origin")
    if origin is not None and _address(origin).netloc != headers.get("host", ""):
        raise Problem(
            403, "another_site", "a page of another site may not call this service: set a token"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach this address or name."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _require_loopback(scope: Scope, headers: Headers) -> None:
    client = scope["client"][0] if scope.get("client") else ""
    host = headers.get("host", "")
    name = _address(f"//{host}").hostname or ""
    if not (is_loopback(client) and is_loopback(name)):
        raise Problem(
            403,
            "no_token_is_set",
            "without FAULTLINE_API_TOKEN the service answers this machine only: set it, and send "
            "it as Authorization: Bearer …",
        )
    _require_same_site(headers)


def _address(text: str) -> SplitResult:
    """Its parts; none, if it cannot be read."""
    try:
        return urlsplit(text)
    except ValueError:
        return urlsplit("")


def _unauthorised(detail: str) -> Problem:
    return Problem(401, "unauthorised", detail, headers={"WWW-Authenticate": "Bearer"})


def _digest(text: str | None) -> bytes | None:
    """Of one length, so that comparing says nothing about the length."""
    return None if text is None else hashlib.sha256(text.encode("utf-8", "replace")).digest()
