"""How a handler is called: with its context if it takes one, in a transaction if it asks for one,
and only while its lease is alive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from faultline.errors import InvalidArgument
from faultline.worker.attempt import Attempt
from faultline.worker.endings import Unstorable


class NeverBegan(Exception):
    """The lease may be lost already: this process was stopped between the claim and the start."""


def insist_in_time(attempt: Attempt) -> None:
    """Asked at the last moment: in the handler's own thread, or in the first step of its task."""
    if time.monotonic() >= attempt.deadline:
        raise NeverBegan
    if attempt.told is not None:
        raise asyncio.CancelledError


def cancel(attempt: Attempt) -> None:
    """Cancel its task, once; one that has not made its first step looks for itself."""
    if attempt.entered and not attempt.done and attempt.running is not None:
        attempt.entered = False  # who had just suspended may be told from two sides
        attempt.running.cancel()


def call_of(attempt: Attempt) -> Callable[..., Any]:
    """What is to be called with the arguments of the job."""
    task = attempt.task
    assert task is not None
    if task.transactional:
        wrap = _in_atransaction if task.is_async else _in_transaction
        call = wrap(task.handler, attempt.context)
    elif task.wants_context:
        call = partial(task.handler, attempt.context)
    else:
        call = task.handler
    return call if attempt.trace is None else _followed(attempt, call)


def _followed(attempt: Attempt, call: Callable[..., Any]) -> Callable[..., Any]:
    """The same, and what its observer puts around it."""
    assert attempt.task is not None
    assert attempt.trace is not None
    trace = attempt.trace

    def followed(**arguments: Any) -> Any:
        with trace.running(attempt):
            return call(**arguments)

    async def afollowed(**arguments: Any) -> Any:
        with trace.running(attempt):
            return await call(**arguments)

    return afollowed if attempt.task.is_async else followed


def _in_transaction(handler: Callable[..., Any], context: Any) -> Callable[..., Any]:
    """The whole handler as one fenced transaction, which ends the job."""

    def call(**arguments: Any) -> Any:
        with context.transaction() as context._tx:
            result = handler(context, **arguments)
            _complete(context, result)
        return result

    return call


def _in_atransaction(handler: Callable[..., Any], context: Any) -> Callable[..., Any]:
    async def call(**arguments: Any) -> Any:
        async with context.transaction() as context._tx:
            result = await handler(context, **arguments)
            _complete(context, result)
        return result

    return call


def _complete(context: Any, result: Any) -> None:
    try:
        context._tx.complete(result)
    except InvalidArgument as error:
        raise Unstorable from error
