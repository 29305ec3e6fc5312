"""One implementation for `with` and `async with`: a generator says what to do next, in functions
without arguments; a driver calls them, and for asyncio awaits what they give."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
Steps: TypeAlias = Generator[Callable[[], Any], Any, T]


def drive(steps: Steps[T]) -> T:
    """Do what the steps say; answers with what they return."""
    try:
        act = next(steps)
        while True:
            try:
                answer = act()
            except BaseException as error:
                act = steps.throw(error)
            else:
                act = steps.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def adrive(steps: Steps[T]) -> T:
    """As `drive`, for asyncio."""
    try:
        act = next(steps)
        while True:
            try:
                answer = await act()
            except BaseException as error:
                act = steps.throw(error)
            else:
                act = steps.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """To its end, also when this task is cancelled meanwhile: then raises CancelledError at the
    end, unless the work itself failed.

    A COMMIT that is broken off has an outcome that nobody knows.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    answer = task.result()
    if cancelled is not None:
        raise cancelled
    return answer
