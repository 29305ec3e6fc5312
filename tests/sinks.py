"""Real sinks for the tests of effects: a Redis, moto's S3, and many attempts that write at once."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest

from faultline import Context, StaleLease
from proofs.peers.redis import any_server
from tests.ports import answers, free_port
from tests.stage import DEADLINE_SECONDS, until

HUGE = 2**61  # HUGE and HUGE + 1 are the same double
THREADS = 8

# One request after the other: moto looks at an object and then puts it, which in two threads would
# be two things, and shows a new object for a moment without its metadata.
MOTO = """
import sys
from moto.moto_server import werkzeug_app as moto
from werkzeug.serving import run_simple
app = moto.DomainDispatcherApplication(moto.create_backend_app)
run_simple("127.0.0.1", int(sys.argv[1]), app, threaded=False,
           request_handler=moto.MotoRequestHandler)
"""


needs_redis = pytest.mark.skipif(any_server() is None, reason="there is no Redis server")


@contextmanager
def redis_server(*options: str) -> Iterator[str]:
    """The URL of a Redis that keeps nothing, until the block ends."""
    binary = any_server()
    assert binary is not None
    with tempfile.TemporaryDirectory(prefix="redis-") as folder:
        port = str(free_port())
        command = [binary, "--port", port, "--bind", "127.0.0.1", "--dir", folder, "--save", ""]
        with _running([*command, *options], int(port)):
            yield f"redis://127.0.0.1:{port}"


@contextmanager
def s3_server() -> Iterator[str]:
    """The URL of an empty S3, until the block ends."""
    port = free_port()
    with _running([sys.executable, "-c", MOTO, str(port)], port):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def _running(command: list[str], port: int) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: answers(port) or process.poll() is not None, f"{command[0]} answers")
        assert process.poll() is None, f"{command[0]} has ended with {process.returncode}"
        yield
    finally:
        process.terminate()
        process.wait(DEADLINE_SECONDS)


# ── attempts ─────────────────────────────────────────────────────────────────────────────────────


def attempts(*tokens: int) -> list[Context]:
    """Attempts of one job, as their handlers would have them."""
    job_id = uuid.uuid4()
    return [Context(job_id, token) for token in tokens]


def race(write: Callable[[Context], Any], job_id: UUID, tokens: int) -> list[int]:
    """Many attempts of one job write at once; answers with the tokens that passed, sorted.

    Each meets those just before and after it: far apart, nearly all would be refused.
    """
    shuffled = sorted(
        range(HUGE, HUGE + tokens), key=lambda token: token - HUGE + 20 * random.random()
    )
    start = threading.Barrier(THREADS)
    passed: list[int] = []
    refused: list[StaleLease] = []

    def work(mine: list[int]) -> None:
        start.wait(DEADLINE_SECONDS)
        for token in mine:
            try:
                write(Context(job_id, token))
                passed.append(token)
            except StaleLease as stale:
                refused.append(stale)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, [shuffled[thread::THREADS] for thread in range(THREADS)]))
    for stale in refused:
        assert (stale.job_id, stale.reason) == (job_id, "token_mismatch")
        assert stale.current_token is not None
        assert stale.current_token > stale.token
    assert max(passed) == HUGE + tokens - 1, "the newest attempt was refused"
    assert len(passed) + len(refused) == tokens
    return sorted(passed)
