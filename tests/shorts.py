"""A worker's execution without a worker, and handlers that write down what they see.

Real event loops and real threads; no database, since nothing here asks one.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from faultline import App
from faultline.events import Event
from faultline.jobs import Lease
from faultline.worker.attempt import Attempt
from faultline.worker.endings import Ending
from faultline.worker.execution import Execution

app = App("postgresql://nowhere.invalid/")
seen: list[Any] = []
note: ContextVar[str] = ContextVar("note", default="clean")
gate = threading.Event()
GO: dict[str, asyncio.Event] = {}
TELL: dict[str, Callable[[], object]] = {}


@app.task
async def short(n: int) -> None:
    seen.append((n, asyncio.current_task()))


@app.task
async def busy(n: int) -> None:
    time.sleep(0.002)


@app.task
async def as_busy(n: int) -> None:
    time.sleep(0.002)


@app.task
async def leaves_a_note(n: int) -> None:
    seen.append((n, note.get()))
    note.set("dirty")


@app.task
async def waits(n: int) -> None:
    seen.append((n, asyncio.current_task()))
    await asyncio.wait_for(GO["now"].wait(), 60)


@app.task
async def is_told_and_waits(n: int) -> None:
    """Told by another thread, while it has the loop to itself; and once more, for good measure."""
    TELL["now"]()
    for _ in range(2):
        try:
            await asyncio.wait_for(GO["now"].wait(), 60)
        except asyncio.CancelledError:
            seen.append((n, "cancelled"))


@app.task
async def cancels_itself(n: int) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    task.uncancel()


class Odd:
    def __eq__(self, other: object) -> bool:
        raise ValueError(other)

    __hash__ = None  # type: ignore[assignment]


odd: ContextVar[Odd] = ContextVar("odd")


@app.task
async def leaves_nonsense(n: int) -> None:
    odd.set(Odd())


@app.task
async def fails(n: int) -> None:
    raise ValueError(n)


@app.task
async def answers(n: int) -> int:
    return n


@app.task(timeout_seconds=60)
def in_a_thread(n: int, long: bool = False) -> None:
    seen.append((n, threading.current_thread().name, note.get()))
    note.set("dirty")
    if long:
        gate.wait(60)


class Bench:
    """The execution of a worker with so many places, and what came of its attempts."""

    def __init__(self, places: int = 20, endings: list[Ending] | None = None) -> None:
        seen.clear()
        gate.clear()
        GO["now"] = asyncio.Event()
        self.endings: list[Ending] = [] if endings is None else endings
        self.events: list[Event] = []
        self.execution = Execution(
            "A",
            self.events.append,
            self.endings.append,
            None,
            on_done=self.endings.extend,
            places=places,
        )

    def take(self, task: str, *payloads: dict[str, Any]) -> list[Attempt]:
        attempts = [attempt_of(task, payload) for payload in payloads]
        self.execution.take(attempts)
        return attempts

    def events_of(self, name: str) -> list[Event]:
        return [event for event in self.events if event.event == name]

    async def until(self, count: int) -> list[Ending]:
        """So many have ended."""
        give_up_at = time.monotonic() + 60
        while len(self.endings) < count:
            assert time.monotonic() < give_up_at, (self.endings, seen)
            await asyncio.sleep(0)
        return self.endings


def attempt_of(task: str, payload: dict[str, Any], seconds_ago: float = 0, **facts: Any) -> Attempt:
    """Claimed so long ago; with these facts in its lease."""
    lease = Lease(uuid.uuid4(), 1, 1, 1, 0, 0, 0, 60.0, task, payload, None)
    return Attempt(lease._replace(**facts), app.tasks[task], time.monotonic() - seconds_ago)


def numbered(count: int) -> list[dict[str, Any]]:
    return [{"n": n} for n in range(count)]
