"""The service as a process of its own: where it listens, how it logs, how it ends."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI

from faultline.errors import InvalidArgument
from faultline.log import printable
from faultline.service.tokens import is_loopback

log = logging.getLogger("faultline.service")

BESIDE_SECONDS = 5.0  # for what is being answered, at the end


def require_token(host: str, has_token: bool) -> None:
    """Nobody but this machine may reach a service without a token."""
    if not has_token and not is_loopback(host):
        raise InvalidArgument(
            f"listening on {host} lets others in: set FAULTLINE_API_TOKEN first, e.g. to what "
            'python -c "import secrets; print(secrets.token_urlsafe(32))" says, or listen on '
            "127.0.0.1"
        )


def serve(web: FastAPI, host: str, port: int, *, grace_seconds: float = 10.0) -> None:
    """Answer requests until SIGTERM or Ctrl-C; those under way may finish within the grace."""
    listening = listen(host, port)
    _log_to_stdout()
    config = uvicorn.Config(
        web,
        log_config=None,
        access_log=False,  # ours has no query strings
        server_header=False,
        timeout_graceful_shutdown=max(1, round(grace_seconds)),
        ws="none",
    )
    with listening:
        _Server(config, web).run([listening])


@contextmanager
def beside(web: FastAPI, listening: socket.socket) -> Iterator[str]:
    """Answer requests in a thread, beside whatever else this process does; gives the address."""
    host, port = listening.getsockname()[:2]
    config = uvicorn.Config(web, log_config=None, server_header=False, ws="none", log_level=50)
    server = uvicorn.Server(config)
    thread = threading.Thread(
        target=server.run, args=([listening],), name="faultline-dashboard", daemon=True
    )
    thread.start()
    try:
        yield f"http://{host}:{port}"
    finally:
        web.state.watch.close()
        server.should_exit = True
        thread.join(BESIDE_SECONDS)
        web.state.access.close()
        listening.close()


def listen(host: str, port: int) -> socket.socket:
    """Take the port; who connects waits until somebody serves."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=2048)
        # asyncio does so only for sockets that name their protocol, which those accepted from this
        # one do not. Without, an answer waits for the client's acknowledgement: 50 ms instead of 5.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except (OSError, OverflowError) as error:
        raise InvalidArgument(
            f"cannot listen on {host} port {port} ({error}): take another with --port, or end "
            "whoever has it"
        ) from error


class _Server(uvicorn.Server):
    """Ends streams when it is asked to end, and then with status 0, as a worker does."""

    def __init__(self, config: uvicorn.Config, web: FastAPI) -> None:
        super().__init__(config)
        self._web = web

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's
        """The first signal lets requests finish, a second one does not."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """A stream has no end of its own: whoever waits for it would wait for ever."""
        self._web.state.watch.close()
        await super().shutdown(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Say where, once it listens."""
        await super().startup(sockets)
        if self.started and sockets:
            host, port = sockets[0].getsockname()[:2]
            log.info("serves http://%s:%s", f"[{host}]" if ":" in host else host, port)


class _OneLine(logging.Formatter):
    """A record is a line, whatever is in it."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def _log_to_stdout() -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_OneLine("%(asctime)s  %(levelname)-7s  %(message)s", "%H:%M:%S"))
    for name, level in (("faultline.service", logging.INFO), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False
