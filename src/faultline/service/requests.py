"""Around every request: a limit on its body, one line in the log, and no error that gets away. It
is counted too.

The line has the method, the route (as declared, not as asked for), the status and the time: neither
a payload nor a token can be in it. A bug of ours is logged by its kind and place; its message may
quote what was sent.
"""

from __future__ import annotations

import logging
import time
import traceback

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from faultline.service.problem import Problem, problem_of
from faultline.service.tokens import PROBES
from faultline.telemetry.tally import Tally

MAX_DISCARDED_BYTES = 64 << 20
CUT_OFF = 499  # as others count a request whose client has gone

log = logging.getLogger("faultline.service")


class Bounded:
    """ASGI middleware: no body of more than so many bytes."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if _announced(scope) > self._max_bytes:
            await _discard(receive, MAX_DISCARDED_BYTES)
            await self._too_large().response()(scope, receive, send)
            return
        taken = 0

        async def bounded() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._max_bytes:
                # FastAPI lets this kind pass while it reads a body, and no other.
                raise HTTPException(413, self._too_large().detail)
            return message

        await self._app(scope, bounded, send)

    def _too_large(self) -> Problem:
        return Problem(
            413,
            "body_too_large",
            f"the body has more than {self._max_bytes:,} bytes: store what is large elsewhere and "
            "enqueue a reference, or send smaller batches",
            headers={"Connection": "close"},  # the rest of it is not read
        )


async def _discard(receive: Receive, max_bytes: int) -> None:
    """Read the body and forget it: most clients look for an answer only when they have sent all,
    and would see a broken connection instead of it."""
    taken, more = 0, True
    while more and taken < max_bytes:
        message = await receive()
        taken += len(message.get("body", b""))
        more = bool(message.get("more_body", False))


def _announced(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0


class Recorded:
    """ASGI middleware, the outermost: logs each request, and answers for our own bugs."""

    def __init__(self, app: ASGIApp, tally: Tally) -> None:
        self._app = app
        self._tally = tally

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 0
        began = time.monotonic()

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            problem = problem_of(error) or _bug(error)
            if status:  # half an answer is on its way: the connection has to end
                raise ConnectionAbortedError("the answer could not be finished") from None
            await problem.response()(scope, receive, watched)
        finally:
            route = getattr(scope.get("route"), "path", "-")
            took = time.monotonic() - began
            self._tally.requested(route, scope["method"], status or CUT_OFF, took)
            # A load balancer that asks every second would fill the log with good news.
            is_good_news = route in PROBES and status == 200
            level = logging.DEBUG if is_good_news else logging.INFO
            said = (scope["method"], route, status or "cut off", 1000 * took)
            log.log(level, "%s %s %s %.0f ms", *said)


def _bug(error: Exception) -> Problem:
    frames = traceback.extract_tb(error.__traceback__)
    places = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames[-6:]))
    log.error("unexpected %s in %s", type(error).__name__, places)
    return Problem(
        500,
        "unexpected_error",
        f"this should not happen ({type(error).__name__}): please tell us what was asked, and what "
        "the service's log says",
    )
