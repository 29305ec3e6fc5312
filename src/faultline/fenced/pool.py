"""A worker's connections for fenced transactions: kept between jobs, each used by one at a time.

One pool for handlers in threads and one for those on the worker's event loop, each opened when it
is first needed. A handler that runs an event loop of its own gets a connection for that once.
"""

from __future__ import annotations

import asyncio
import select
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

from faultline.call import Call
from faultline.connect import (
    abort,
    acheck,
    aconnect,
    check,
    connect,
    conninfo,
    keep_from_children,
    pooled,
)
from faultline.errors import DatabaseUnavailable
from faultline.fenced.connection import AsyncLent, Lent

T = TypeVar("T")

WAIT_SECONDS = 30.0  # for a connection
# In so many parts: while the database is away psycopg_pool tries ever more rarely, after a minute's
# outage once a minute; it begins anew for whoever asks after it has given up.
WAITS = 10
_READ_ONLY = "set default_transaction_read_only = on"  # for whatever does not say otherwise
IDLE_SECONDS = 60.0  # after which one that nobody uses is closed


class Pool:
    """Connections to one installation, up to `size` for threads and as many for the event loop."""

    def __init__(self, url: str, schema: str, size: int) -> None:
        self.url = url
        self._schema = schema
        self._size = size
        self._home: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._sync: ConnectionPool[Lent] | None = None
        self._async: AsyncConnectionPool[AsyncLent] | None = None

    def at_home(self) -> None:
        """The running event loop is the one whose connections are kept."""
        self._home = asyncio.get_running_loop()

    def take(self) -> Lent:
        """A connection in autocommit mode; to be given back."""
        with self._lock:
            self._refuse_if_closed()
            if self._sync is None:
                self._sync = ConnectionPool(
                    connection_class=Lent, configure=self._configure, **self._options(), open=True
                )
            pool = self._sync
        for _ in range(WAITS):
            with suppress(PoolTimeout):
                while _is_dead(conn := pool.getconn()):
                    conn.close()
                    pool.putconn(conn)
                return conn
        raise self._none_left()

    def give(self, conn: Lent) -> None:
        """Give it back; a broken one is replaced."""
        conn.row_factory = tuple_row  # a handler may have set its own
        if _is_at_work(conn):
            abort(conn)
            conn.close()
        assert self._sync is not None
        self._sync.putconn(conn)

    async def atake(self) -> AsyncLent:
        """As `take`, for asyncio."""
        if asyncio.get_running_loop() is not self._home:
            once = await aconnect(self.url, schema=None, kind=AsyncLent)
            assert isinstance(once, AsyncLent)
            try:
                await self._aconfigure(once)
            except BaseException:
                await once.close()
                raise
            return once
        self._refuse_if_closed()
        if self._async is None:
            self._async = AsyncConnectionPool(
                connection_class=AsyncLent,
                configure=self._aconfigure,
                **self._options(),
                open=False,
            )
            await self._async.open()
        for _ in range(WAITS):
            with suppress(PoolTimeout):
                while _is_dead(conn := await self._async.getconn()):
                    await conn.close()
                    await self._async.putconn(conn)
                return conn
        raise self._none_left()

    async def agive(self, conn: AsyncLent) -> None:
        """As `give`, for asyncio."""
        conn.row_factory = tuple_row
        if _is_at_work(conn):
            abort(conn)
            await conn.close()
        if self._async is not None and self._is_at_home():
            await self._async.putconn(conn)
        else:
            await conn.close()

    def _is_at_home(self) -> bool:
        """Not at the end of the process: a block that is still open then has no loop at all."""
        with suppress(RuntimeError):
            return asyncio.get_running_loop() is self._home
        return False

    def ask(self, call: Call[T]) -> T | None:
        """Run the call on a connection for this once; None if that is not possible now."""
        with suppress(DatabaseUnavailable, psycopg.Error), connect(self.url, schema=None) as conn:
            return call.run(conn)
        return None

    async def aask(self, call: Call[T]) -> T | None:
        """As `ask`, for asyncio."""
        with suppress(DatabaseUnavailable, psycopg.Error):
            async with await aconnect(self.url, schema=None) as conn:
                return await call.arun(conn)
        return None

    async def aclose(self, seconds: float = 2.0) -> None:
        """Close both, on the home loop, and give those that are being opened so many seconds; what
        is in use is closed when it is given back."""
        with self._lock:
            self._closed = True
        closing: list[Coroutine[Any, Any, None]] = []
        if self._sync is not None:
            closing.append(asyncio.to_thread(self._sync.close, seconds))
        if self._async is not None:
            closing.append(self._async.close(seconds))
        await asyncio.gather(*closing)

    def _refuse_if_closed(self) -> None:
        """Of a handler that was left behind: nobody would close what it opens."""
        if self._closed:
            raise DatabaseUnavailable("the worker has ended, and its connections with it")

    def _options(self) -> dict[str, Any]:
        return {
            "conninfo": conninfo(self.url),
            "kwargs": {"autocommit": True},
            "min_size": 0,
            "max_size": self._size,
            "timeout": WAIT_SECONDS / WAITS,
            "reconnect_timeout": WAIT_SECONDS / WAITS,
            "max_idle": IDLE_SECONDS,
            "num_workers": 1,
            "name": "faultline-fenced",
        }

    def _configure(self, conn: Connection[Any]) -> None:
        """A statement outside a block of ours, after a COMMIT that the handler sent itself, would
        be fenced by nobody: it cannot write. Behind a pooler others would get that setting."""
        keep_from_children(conn)
        check(conn, self._schema)
        if not pooled(conn):
            conn.execute(_READ_ONLY)
            conn.read_only = False

    async def _aconfigure(self, conn: AsyncConnection[Any]) -> None:
        keep_from_children(conn)
        await acheck(conn, self._schema)
        if not pooled(conn):
            await conn.execute(_READ_ONLY)
            await conn.set_read_only(False)

    def _none_left(self) -> DatabaseUnavailable:
        return DatabaseUnavailable(
            f"no connection for a fenced transaction within {WAIT_SECONDS:g} s: all {self._size} "
            "are in use, or the database is away; a worker has as many as its --concurrency, at "
            "most 20 unless --transactions says otherwise"
        )


def _is_dead(conn: Connection[Any] | AsyncConnection[Any]) -> bool:
    """Whether the server has closed it: then there is something to read, its end. Asking the server
    would cost every transaction a round trip."""
    if conn.closed:  # by a handler that has kept it
        return True
    poll = select.poll()
    poll.register(conn.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _is_at_work(conn: Connection[Any] | AsyncConnection[Any]) -> bool:
    """Whether the server may still be busy for it, because a handler was cancelled twice (psycopg
    before 3.3 leaves it so); or its pipeline was left open, in which the next one's COMMIT would
    never be sent."""
    at_work = conn.info.transaction_status == TransactionStatus.ACTIVE
    return at_work or conn.pgconn.pipeline_status != PipelineStatus.OFF
