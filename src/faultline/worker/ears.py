"""What the database announces, heard on the connection that the next claim goes out on.

So nobody has to be woken between the word and the claim: no other thread of this process, and no
other process of the server's, whose memory has gone cold (decision 19 has the figures). While a
call is awaited psycopg hands over what arrives with its answer; while the worker waits, the event
loop watches the connection itself, for words and for the answer to what a word has sent.

It is a hint: whoever does not hear polls. Behind a pooler LISTEN reaches nobody; there the
reconciler listens, at a URL of its own.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from psycopg import AsyncConnection

from faultline.connect import pooled
from faultline.direct import AsyncDirect
from faultline.errors import FaultlineError
from faultline.worker.limit import Limit
from faultline.worker.session import Deadline, Session
from faultline.worker.sleeper import FEW

CALL_SECONDS = 10.0
MOST = 1_000  # that are believed to have been told: anybody may say anything


class Word(NamedTuple):
    """A queue has a job; of more than four who sleep, each is told how many they are."""

    queue: str
    among: int = 1

    def is_for_me(self) -> bool:
        """Whether to look at once: always, or in four of so many cases."""
        return random.random() * self.among < FEW  # noqa: S311


class Ears:
    """LISTEN on a session's connection, whichever it has."""

    def __init__(
        self,
        session: Session,
        schema: str,
        on_work: Callable[[Word | None], None],
        on_cancel: Callable[[UUID], None],
        on_answer: Callable[[], None],
    ) -> None:
        self._session = session
        self._schema = schema
        self._on_work = on_work
        self._on_cancel = on_cancel
        self._on_answer = on_answer  # to what was sent while it was watched
        self._hearing: AsyncConnection[Any] | None = None
        self._is_heard = False  # on that one
        self._watched: int | None = None  # its file, while it is watched

    @property
    def listening(self) -> bool:
        """Whether notifications arrive."""
        return self._is_heard and self._hearing is not None and not self._hearing.closed

    async def listen(self) -> None:
        """On the session's connection, if it is another one than before; opened, if nobody else has
        use for one: a worker without a free place is still told of cancels."""
        with suppress(psycopg.Error, FaultlineError, TimeoutError):  # to be asked again by a poll
            conn = await self._session.connection()
            if conn is self._hearing or pooled(conn):
                return
            self._hearing, self._is_heard = conn, False  # whatever comes of it: asked for once
            conn.add_notify_handler(lambda heard: self._say(heard.payload))
            await listen(conn, self._schema, self._session.limit)
            self._is_heard = True
            self._on_work(None)  # what was announced before we listened

    @property
    def is_watching(self) -> bool:
        """Whether what comes is heard at once."""
        return self._watched is not None

    def watch(self) -> None:
        """Until `rest`, while nobody uses the connection: what is said is passed on at once."""
        if (conn := self._hearing) is not None and self.listening:
            self._watched = conn.fileno()
            asyncio.get_running_loop().add_reader(self._watched, self._read, conn)
            self._pass_on(conn)  # what came in one piece with the last answer, and was not in it

    def rest(self) -> None:
        """Somebody is going to use the connection."""
        if self._watched is not None:
            asyncio.get_running_loop().remove_reader(self._watched)
            self._watched = None

    def _read(self, conn: AsyncConnection[Any]) -> None:
        try:
            conn.pgconn.consume_input()
        except psycopg.Error:  # it is no more: whoever asks next opens another one
            self.rest()
            self._on_work(None)
        else:
            if isinstance(conn, AsyncDirect) and conn.hear():
                self._on_answer()
            self._pass_on(conn)

    def _pass_on(self, conn: AsyncConnection[Any]) -> None:
        while (heard := conn.pgconn.notifies()) is not None:
            self._say(heard.extra.decode(errors="replace"))

    def _say(self, payload: str) -> None:
        pass_on(payload, self._on_work, self._on_cancel)


async def listen(conn: AsyncConnection[Any], schema: str, limit: Limit) -> None:
    """Hear what is announced for this installation, on this connection."""
    timer = Deadline(conn, CALL_SECONDS, limit)
    try:
        await conn.execute(f"listen {schema}")
    finally:
        timer.cancel()


def pass_on(
    payload: str, on_work: Callable[[Word], None], on_cancel: Callable[[UUID], None]
) -> None:
    """The word is the name of a queue that has a job, perhaps to so many, or that a job is to be
    cancelled; but a queue may be called "cancel me", or "among 7 dwarfs"."""
    verb, _, rest = payload.partition(" ")
    with suppress(ValueError):
        if verb == "cancel":
            on_cancel(UUID(rest))
        elif verb == "among":
            among, _, queue = rest.partition(" ")
            on_work(Word(queue, min(int(among), MOST)))
    on_work(Word(payload))
