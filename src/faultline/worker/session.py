"""A worker's connection: opened when needed, every call bounded in time, dropped when in doubt.

A call that ran out of time, or whose connection broke, has an *unknown* outcome: `Unavailable` with
`unknown=True`. Whoever called looks up what became of it; nobody here repeats a call.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import psycopg
from psycopg import AsyncConnection, errors

from faultline.call import Call
from faultline.connect import acheck, aconnect, keep_from_children, readable_url, sever
from faultline.direct import AsyncDirect
from faultline.errors import DatabaseUnavailable, LockedOut
from faultline.observer import NOBODY, Observer
from faultline.worker.limit import Limit

T = TypeVar("T")

CONNECT_SECONDS = 10.0
CALM_SECONDS = 0.5  # for a call that is under way when its task is to be cancelled
# Another connection may do better. This one leads to a standby, after a failover; or has forgotten
# what it had prepared; or had prepared what a migrate has changed.
_OF_NO_USE = (
    errors.ReadOnlySqlTransaction,
    errors.InvalidSqlStatementName,
    errors.FeatureNotSupported,
)


class Unavailable(Exception):
    """The database did not do it, now; `unknown`: or it did, and the answer was lost."""

    def __init__(self, cause: BaseException, *, unknown: bool) -> None:
        self.unknown = unknown
        super().__init__(str(cause).partition("\n")[0] or type(cause).__name__)


class Locked(Unavailable):
    """Somebody holds what it needs, and it has not waited for long; nothing was changed."""


@dataclass(slots=True)
class Sendable(Generic[T]):
    """A call that is to be answered: sent, ready to be, or on its way."""

    call: Call[T]
    conn: AsyncConnection[Any]
    seconds: float
    send: Callable[[], None] | None = None  # None: who awaits its answer sends it
    sent: float = 0.0
    timer: Deadline | None = None
    answered: float | None = None  # perhaps before anybody awaits it

    def note(self, answer: T) -> T:
        """It is here."""
        self.answered = time.monotonic()
        return answer


class Session:
    """One connection, used by one task at a time."""

    def __init__(
        self, url: str, schema: str, observer: Observer = NOBODY, limit: Limit | None = None
    ) -> None:
        self._url = url
        self._observer = observer
        self._schema = schema
        self.limit = limit or Limit()  # by when nothing more is waited for
        self._conn: AsyncConnection[Any] | None = None
        self._under_way: Deadline | None = None
        self._sent: Sendable[Any] | None = None
        hosts = str(readable_url(url).get("host") or "").split(",")
        self._connect_seconds = CONNECT_SECONDS * len(hosts) + 5.0  # each has its connect_timeout

    async def connection(self) -> AsyncConnection[Any]:
        """The connection, opened if there is none."""
        if self._conn is not None and not self._conn.closed:
            return self._conn
        by = time.monotonic() + self._connect_seconds
        conn = await self._opened()
        keep_from_children(conn)
        self._under_way = timer = Deadline(conn, by - time.monotonic(), self.limit)
        try:
            self._observer.clock(await acheck(conn, self._schema))
        except BaseException as error:
            await conn.close()
            if timer.has_cut:
                raise TimeoutError("the database did not answer") from error
            raise
        finally:
            self._done(timer)
        self._conn = conn
        return conn

    async def _opened(self) -> AsyncConnection[Any]:
        """Here a task may be cancelled: there is nothing yet that psycopg would ask the server to
        give up."""
        async with asyncio.timeout(None) as waiting:
            by = asyncio.get_running_loop().time() + self._connect_seconds

            def heed() -> None:
                with suppress(RuntimeError):  # it is over already
                    waiting.reschedule(min(by, time.monotonic() + self.limit.left()))

            self.limit.tell(heed)
            try:
                heed()
                return await aconnect(self._url, schema=None, kind=AsyncDirect)
            finally:
                self.limit.forget(heed)

    async def run(self, call: Call[T], seconds: float) -> T:
        """Run the call within so many seconds, or raise Unavailable."""
        if self.limit.is_over:
            raise Unavailable(TimeoutError("there is no time left to ask"), unknown=False)
        try:
            conn = await self.connection()
        except (DatabaseUnavailable, TimeoutError, psycopg.Error) as error:
            raise Unavailable(error, unknown=False) from error
        self._under_way = timer = Deadline(conn, seconds, self.limit)
        return await self._answered(Sendable(call, conn, seconds, None, time.monotonic(), timer))

    async def warm(self, call: Call[Any], seconds: float) -> None:
        """Connect and run a call that does nothing, so that its function is compiled here.

        Raises nothing: what is wrong is reported by the next call, and leases depend on the caller.
        """
        with suppress(Exception):
            await self.run(call, seconds)

    def ready(self, call: Call[T], seconds: float) -> Sendable[T] | None:
        """The call, to be sent at a moment's notice; None: run it."""
        conn = self._conn
        if conn is None or conn.closed:
            return None
        ready = Sendable(call, conn, seconds)
        ready.send = call.then(ready.note).ready(conn)
        return ready if ready.send is not None else None

    def send(self, ready: Sendable[Any]) -> bool:
        """Now, and not only when some task has its turn: then the next thing that is done here is
        to await the `answer`. False: run it."""
        if ready.conn is not self._conn or self._under_way is not None:
            return False
        assert ready.send is not None
        ready.sent = time.monotonic()
        try:
            ready.send()
        except psycopg.Error:  # whoever runs it finds out why
            return False
        self._under_way = ready.timer = Deadline(ready.conn, ready.seconds, self.limit)
        self._sent = ready
        return True

    async def answer(self, ready: Sendable[T]) -> T:
        """As `run`, of what was sent."""
        assert self._sent is ready
        self._sent = None
        return await self._answered(ready)

    async def _answered(self, asked: Sendable[T]) -> T:
        call, conn, timer = asked.call, asked.conn, asked.timer
        assert timer is not None
        failed = True
        try:
            answer = await call.arun(conn, is_sent=asked.send is not None)
            failed = False
            return answer
        except psycopg.Error as error:
            if conn.closed:
                await self.close()
                raise Unavailable(error, unknown=True) from error
            if isinstance(error, _OF_NO_USE):
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
            self._done(timer)
            answered = asked.answered or time.monotonic()
            self._observer.called(call.verb, answered - asked.sent, failed=failed)

    async def calm(self, seconds: float) -> None:
        """Until the call under way has ended: by its answer, or cut off after so many seconds. Who
        is going to cancel its task comes here first, see `Deadline`."""
        if self._under_way is not None:
            await self._under_way.within(seconds)

    async def close(self) -> None:
        """Forget the connection."""
        conn, self._conn = self._conn, None
        if conn is not None:
            with suppress(psycopg.Error, OSError):
                await conn.close()

    def _done(self, timer: Deadline) -> None:
        timer.cancel()
        self._under_way = None


class Deadline:
    """Cuts the connection when its call has not been answered in time.

    Not by cancelling the task: psycopg would then ask the server to cancel, and wait for a server
    that may be frozen. When the answer has arrived and it is this event loop that is late (a
    handler blocked it), it gets as much time again.
    """

    def __init__(
        self, conn: AsyncConnection[Any], seconds: float, limit: Limit | None = None
    ) -> None:
        self._conn = conn
        self._seconds = seconds
        self._limit = limit or Limit()
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Event | None = None  # for who waits for it
        self.has_cut = False
        self._limit.tell(self._heed)
        self._timer = self._loop.call_later(self._limit.left(seconds), self._over, True)

    def cancel(self) -> None:
        """The call has been answered."""
        self._timer.cancel()
        self._limit.forget(self._heed)
        if self._ended is not None:
            self._ended.set()

    async def within(self, seconds: float) -> None:
        """Give it no more than so many seconds from now on, and wait for its end."""
        self._ended = self._ended or asyncio.Event()
        self._sooner(seconds)
        await self._ended.wait()

    def _heed(self) -> None:
        self._sooner(self._limit.left())

    def _sooner(self, seconds: float) -> None:
        if self._loop.time() + seconds < self._timer.when() and not self._timer.cancelled():
            self._timer.cancel()
            self._seconds = seconds
            self._timer = self._loop.call_later(seconds, self._over, True)

    def _over(self, patient: bool) -> None:
        if self._conn.closed:
            return
        if patient and _is_arriving(self._conn):
            self._timer = self._loop.call_later(self._seconds, self._over, False)
        else:
            self.has_cut = True
            sever(self._conn)


def _is_arriving(conn: AsyncConnection[Any]) -> bool:
    """Whether something has come that nobody here has had the time for yet."""
    poll = select.poll()
    poll.register(conn.fileno(), select.POLLIN)
    return (isinstance(conn, AsyncDirect) and conn.is_arriving) or bool(poll.poll(0))
