"""What the scripts of the Python peers share: where they are told to work, and what they note.

A script has four verbs: `prepare` (its tables), `enqueue JOBS` (the peer's bulk API; says on stdout
how many seconds that took), `trickle FIRST COUNT PER_SECOND` (one enqueue after the other; notes
when each was called and had returned; one more goes ahead, numbered before the first, so that the
connections are open) and `work` (the peer's own worker, until it is ended). Runs
in the peer's environment, so it needs nothing but the standard library.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

URL = os.environ["BENCH_URL"]
REDIS = os.environ["BENCH_REDIS"]
FOLDER = Path(os.environ["BENCH_FOLDER"])
CALL = 10_000  # jobs in one call of a bulk API, where it leaves the choice

_first: list[float] = []
_begun: list[int] = []


def first() -> None:
    """In every no-op handler: note when the first of this process began."""
    if not _first:
        _first.append(time.time())
        (FOLDER / f"first.{os.getpid()}").write_text(repr(_first[0]))


def begin(n: int) -> None:
    """In every handler whose pickup is measured, as its first line."""
    began = time.time()
    if not _begun:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        _begun.append(os.open(FOLDER / "begun", flags, 0o600))
    os.write(_begun[0], f"{n} {began!r}\n".encode())


def calls(jobs: int, size: int = CALL) -> Iterator[range]:
    """The numbers of the jobs, call by call."""
    for start in range(0, jobs, size):
        yield range(start, min(jobs, start + size))


def tell(started: float) -> None:
    """How long it took since then, by time.perf_counter."""
    print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)


def trickle(start: int, count: int, per_second: int, enqueue: Callable[[int], Any]) -> None:
    """At this rate; a late one does not wait."""
    enqueue(start - 1)
    began, returned = time.monotonic() + 1 / per_second, []
    for n in range(start, start + count):
        time.sleep(max(0.0, began + (n - start) / per_second - time.monotonic()))
        called = time.time()
        enqueue(n)
        returned.append(f"{n} {called!r} {time.time()!r}\n")
    (FOLDER / f"returned.{start}").write_text("".join(returned))


async def atrickle(
    start: int, count: int, per_second: int, enqueue: Callable[[int], Awaitable[Any]]
) -> None:
    """The same for an async API."""
    await enqueue(start - 1)
    began, returned = time.monotonic() + 1 / per_second, []
    for n in range(start, start + count):
        await asyncio.sleep(max(0.0, began + (n - start) / per_second - time.monotonic()))
        called = time.time()
        await enqueue(n)
        returned.append(f"{n} {called!r} {time.time()!r}\n")
    (FOLDER / f"returned.{start}").write_text("".join(returned))


def main(**verbs: Callable[..., Any]) -> None:
    """Do what the command line says."""
    verb, *numbers = sys.argv[1:]
    done = verbs[verb](*map(int, numbers))
    if asyncio.iscoroutine(done):
        asyncio.run(done)
