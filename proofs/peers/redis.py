"""A Redis of its own for a peer that needs one; it keeps nothing."""

from __future__ import annotations

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


@contextmanager
def redis(folder: Path) -> Iterator[str]:
    """A Redis of its own on loopback that keeps nothing."""
    program = shutil.which("redis-server")
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
