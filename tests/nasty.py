"""Handlers that end in every way a handler can, for test_worker_handlers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from faultline import App, Cancel, Context

app = App()
once = app.task(max_attempts=1)


class CannotBeShown(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


def raising(name: str, make: Callable[[], BaseException]) -> None:
    """Two tasks that raise it: one async, one sync."""

    async def on_the_loop() -> None:
        raise make()

    def in_a_thread() -> None:
        raise make()

    app.task(name=name, max_attempts=1)(on_the_loop)
    app.task(name=f"{name}_sync", max_attempts=1)(in_a_thread)


def returning(name: str, make: Callable[[], Any]) -> None:
    def handler() -> Any:
        return make()

    app.task(name=name, max_attempts=1)(handler)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


RAISED: dict[str, Callable[[], BaseException]] = {
    "cannot_be_shown": CannotBeShown,
    "stop_iteration": StopIteration,
    "stop_async_iteration": StopAsyncIteration,
    "generator_exit": GeneratorExit,
    "keyboard_interrupt": KeyboardInterrupt,
    "system_exit": lambda: SystemExit(3),
    "cancelled_error": asyncio.CancelledError,
    "group": lambda: BaseExceptionGroup("several", [ValueError("a"), KeyboardInterrupt()]),
    "odd_text": lambda: ValueError("\ud800 \0"),
}
RETURNED: dict[str, Callable[[], Any]] = {
    "an_object": object,
    "a_surrogate": lambda: "\ud800",
    "a_nul": lambda: {"a": "\0"},
    "a_nul_key": lambda: {"\0": 1},
    "not_a_number": lambda: float("nan"),
    "too_many_digits": lambda: 10**5000,
    "too_deep": lambda: nested(100_000),
    "too_large": lambda: "x" * 2_000_000,
}
for given, error in RAISED.items():
    raising(given, error)
for given, value in RETURNED.items():
    returning(given, value)


@once
async def cancels_with_odd_text() -> None:
    raise Cancel("not\0 now \ud800")


@once
async def cancels_its_own_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(3600)


@once
async def stops_the_loop() -> str:
    asyncio.get_running_loop().stop()
    return "done"


@once
def reports_without_end(ctx: Context) -> str:
    for number in range(20_000):
        ctx.progress(number)
    return "done"


@app.task(timeout_seconds=0.2, max_attempts=1)
async def ignores_its_cancellation() -> None:
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            sys.stderr.write("ignored\n")
