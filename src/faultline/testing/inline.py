"""Inline: whatever an app enqueues on its own connections runs before `enqueue` returns.

A job that joins the caller's transaction does not: it is not there before that commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from uuid import UUID

from faultline.producer import Calls, Producer

# What is done with new jobs: by `enqueue`, and by `aenqueue`.
After = tuple[Callable[[list[UUID]], None], Callable[[list[UUID]], Awaitable[None]]]


@contextmanager
def sending(producer: Producer, after: After | None) -> Iterator[None]:
    """For the duration of a block, let the producer do this, or nothing, with what it sent."""
    plain, aplain = partial(Producer.send, producer), partial(Producer.asend, producer)

    def send(calls: Calls, connection: Any = None) -> list[Any]:
        answers = plain(calls, connection)
        if after is not None and connection is None:
            after[0](_ids(answers))
        return answers

    async def asend(calls: Calls, connection: Any = None) -> list[Any]:
        if after is None or connection is not None:
            return await aplain(calls, connection)
        answers = await asyncio.to_thread(plain, calls)
        await after[1](_ids(answers))
        return answers

    own, ours = vars(producer), {"send": send, "asend": asend}
    before = {name: own[name] for name in ours if name in own}
    own.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del own[name]
        own.update(before)


def _ids(answers: list[Any]) -> list[UUID]:
    """One job a call, or many."""
    found = [answer if isinstance(answer, list) else [answer] for answer in answers]
    return [job_id for ids in found for job_id in ids]
