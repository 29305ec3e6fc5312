"""A handler whose lease may be lost before it has begun is never begun.

Method: an attempt whose claim was sent longer ago than its lease lasts, as in a process that was
stopped between the two, in the hands of the part of the worker that begins handlers.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from faultline import App
from faultline.events import Event
from faultline.jobs import Lease
from faultline.worker.attempt import Attempt
from faultline.worker.endings import Ending, Gone, Released
from faultline.worker.execution import Execution

app = App("postgresql://nowhere.invalid/")
began: list[str] = []


@app.task
def in_a_thread() -> None:
    began.append("in_a_thread")


@app.task
async def in_the_loop() -> None:
    began.append("in_the_loop")


@app.task
async def suspends() -> None:
    began.append("suspends")
    await asyncio.sleep(0)


@dataclass
class Money:
    """Of the user's own: while it is made, its attempt is as if its process had been stopped."""

    euros: int

    def __post_init__(self) -> None:
        while_made[-1]()


while_made: list[Callable[[], object]] = []


@app.task
async def pays(money: Money) -> None:
    began.append(f"pays {money}")


async def run(
    task: str, seconds_ago: float, payload: dict[str, Any] | None = None, stop: str = ""
) -> tuple[Ending, list[Event]]:
    lease = Lease(uuid.uuid4(), 1, 1, 1, 0, 0, 0, 60.0, task, payload or {}, None)
    attempt = Attempt(lease, app.tasks[task], time.monotonic() - seconds_ago)
    if stop == "for long":
        while_made.append(lambda: setattr(attempt, "deadline", time.monotonic()))  # it is now
    elif stop:
        while_made.append(lambda: attempt.tell("refused"))
    events: list[Event] = []
    ended: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
    execution = Execution("A", events.append, ended.set_result, None)
    execution.take([attempt])
    ending = await asyncio.wait_for(ended, 60)
    execution.stop()
    return ending, events


@pytest.mark.parametrize("task", ["in_a_thread", "in_the_loop"])
def test_a_handler_whose_lease_may_be_lost_already_is_not_begun(task: str) -> None:
    began.clear()
    ending, events = asyncio.run(run(task, seconds_ago=300))
    assert began == []
    assert isinstance(ending, Released), "handed back, in case it is still there"
    assert "lease_lost" in [event.event for event in events]
    ending, events = asyncio.run(run(task, seconds_ago=0))
    assert began == [task]
    assert "lease_lost" not in [event.event for event in events]


@pytest.mark.parametrize("stop", ["for long", "and its lease is refused"])
def test_a_handler_whose_lease_is_lost_while_its_arguments_are_made_is_not_begun(stop: str) -> None:
    began.clear()
    ending, _ = asyncio.run(run("pays", 0, {"money": {"euros": 7}}, stop))
    assert began == []
    assert isinstance(ending, Released if stop == "for long" else Gone)


@pytest.mark.parametrize("task", ["in_a_thread", "in_the_loop", "suspends"])
def test_nobody_hears_of_a_start_that_does_not_follow(task: str) -> None:
    """Of a task that is new to the worker, and of one that it knows: then short sync ones share a
    thread, and those that suspend have a task each."""

    async def scene() -> list[list[str]]:
        events: list[Event] = []
        endings: asyncio.Queue[Ending] = asyncio.Queue()
        execution = Execution("A", events.append, endings.put_nowait, None)
        heard = []
        for seconds_ago in (300, 0, 300):
            lease = Lease(uuid.uuid4(), 1, 1, 1, 0, 0, 0, 60.0, task, {}, None)
            execution.take([Attempt(lease, app.tasks[task], time.monotonic() - seconds_ago)])
            await asyncio.wait_for(endings.get(), 60)
            heard.append([event.event for event in events])
            events.clear()
        execution.stop()
        return heard

    assert asyncio.run(scene()) == [["lease_lost"], ["execution_started"], ["lease_lost"]]
