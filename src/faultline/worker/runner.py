"""An event loop for a worker's own process: as asyncio.run, but no handler can hold it up.

asyncio.run waits at the end for every task, also for a handler that ignores its cancellation, and
it ends when a handler calls loop.stop().
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from faultline.worker.forks import guarded
from faultline.worker.outage import nothing

ALLOCATIONS = 10_000  # between two collections of young objects


def run_to_end(main: Coroutine[Any, Any, int]) -> int:
    """Run it until it returns; what is left then goes down with the loop."""
    _collect_less_often()
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        with guarded(loop, is_process=True):
            task = loop.create_task(main)
            while not task.done():
                try:
                    loop.run_until_complete(task)
                except RuntimeError:
                    if task.done():
                        raise
            return task.result()
    finally:
        loop.set_exception_handler(lambda *_: None)  # of tasks that are left behind
        asyncio.set_event_loop(None)
        loop.close()


def _collect_less_often() -> None:
    """A batch of jobs is thousands of objects, and none of them is in a cycle: looking for some
    every 700 objects costs as much as anything else that is done for a job."""
    first, *others = gc.get_threshold()
    if 0 < first < ALLOCATIONS:
        gc.freeze()  # what was imported stays
        gc.set_threshold(ALLOCATIONS, *others)


def leave(status: int, last: Callable[[], None] = nothing) -> int:
    """End the process now, if threads that handlers began would keep it, after this last call: what
    was registered to be done at the end is not; else just the status."""
    others = [t for t in threading.enumerate() if t is not threading.main_thread()]
    if any(not thread.daemon for thread in others):
        last()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)
    return status
