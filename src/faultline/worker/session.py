"""A worker's connection: opened when needed, every call bounded in time, dropped when in doubt.

A call that ran out of time, or whose connection broke, has an *unknown* outcome: `Unavailable` with
`unknown=True`. Whoever called looks up what became of it; nobody here repeats a call.
"""

from __future__ import annotations

import asyncio
import select
import time
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection, errors

from faultline.call import Call
from faultline.connect import aconnect, readable_url, sever
from faultline.errors import DatabaseUnavailable, LockedOut
from faultline.observer import NOBODY, Observer

T = TypeVar("T")

CONNECT_SECONDS = 10.0


class Unavailable(Exception):
    """The database did not do it, now; `unknown`: or it did, and the answer was lost."""

    def __init__(self, cause: BaseException, *, unknown: bool) -> None:
        self.unknown = unknown
        super().__init__(str(cause).partition("\n")[0] or type(cause).__name__)


class Locked(Unavailable):
    """Somebody holds what it needs, and it has not waited for long; nothing was changed."""


class Session:
    """One connection, used by one task at a time."""

    def __init__(self, url: str, schema: str, observer: Observer = NOBODY) -> None:
        self._url = url
        self._observer = observer
        self._schema = schema
        self._conn: AsyncConnection[Any] | None = None
        hosts = str(readable_url(url).get("host") or "").split(",")
        self._connect_seconds = CONNECT_SECONDS * len(hosts) + 5.0  # each has its connect_timeout

    async def connection(self) -> AsyncConnection[Any]:
        """The connection, opened if there is none."""
        if self._conn is not None and not self._conn.closed:
            return self._conn
        opening = aconnect(self._url, schema=self._schema, on_clock=self._observer.clock)
        opened = await asyncio.wait_for(opening, self._connect_seconds)
        self._conn = opened
        return opened

    async def run(self, call: Call[T], seconds: float) -> T:
        """Run the call within so many seconds, or raise Unavailable."""
        try:
            conn = await self.connection()
        except (DatabaseUnavailable, TimeoutError, psycopg.Error) as error:
            raise Unavailable(error, unknown=False) from error
        timer = Deadline(conn, seconds)
        sent, failed = time.monotonic(), True
        try:
            answer = await call.arun(conn)
            failed = False
            return answer
        except psycopg.Error as error:
            if conn.closed:
                await self.close()
                raise Unavailable(error, unknown=True) from error
            if isinstance(error, errors.ReadOnlySqlTransaction):  # a standby, after a failover
                await self.close()
                raise Unavailable(error, unknown=False) from error
            too_large = isinstance(error, errors.ProgramLimitExceeded)
            if isinstance(error, psycopg.OperationalError) and not too_large:
                # A full disk, a deadlock, …: rolled back, and perhaps better later.
                raise Unavailable(error, unknown=False) from error
            raise
        except LockedOut as error:
            raise Locked(error, unknown=False) from error
        finally:
            timer.cancel()
            self._observer.called(call.verb, time.monotonic() - sent, failed=failed)

    async def close(self) -> None:
        """Forget the connection."""
        conn, self._conn = self._conn, None
        if conn is not None:
            with suppress(psycopg.Error, OSError):
                await conn.close()


class Deadline:
    """Cuts the connection when its call has not been answered in time.

    Not by cancelling the task: psycopg would then ask the server to cancel, and wait for a server
    that may be frozen. When the answer has arrived and it is this event loop that is late (a
    handler blocked it), it gets as much time again.
    """

    def __init__(self, conn: AsyncConnection[Any], seconds: float) -> None:
        self._conn = conn
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self._over, True)

    def cancel(self) -> None:
        """The call has been answered."""
        self._timer.cancel()

    def _over(self, patient: bool) -> None:
        if self._conn.closed:
            return
        if patient and _readable(self._conn.fileno()):
            self._timer = self._loop.call_later(self._seconds, self._over, False)
        else:
            sever(self._conn)


def _readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
