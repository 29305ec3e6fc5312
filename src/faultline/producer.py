"""Where a producer's calls run: on the app's own connections, or on the caller's (`caller`).

Own connections come from one small pool, opened on first use or by `open`. A call whose connection
breaks is sent again, since the ids in it make that harmless.

The async twins run the same calls in threads: one pool serves every event loop, and none is left
open when a loop ends. An async pool is not quicker (enqueues/s, medians of 10 alternated rounds on
a busy machine: one after the other 538 in threads and 496 async, within the noise; 500 at once
1,714 and 1,172).
"""

from __future__ import annotations

import atexit
import os
import random
import threading
import time
import weakref
from collections.abc import Callable
from contextvars import copy_context
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from faultline import caller
from faultline.errors import DatabaseUnavailable, LockedOut
from faultline.ids import Ids
from faultline.observer import NOBODY, Observer

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor
    from uuid import UUID

    from psycopg import Connection
    from psycopg_pool import ConnectionPool

    from faultline.call import Call
    from faultline.protocol import Protocol as Verbs

T = TypeVar("T")
Answer_co = TypeVar("Answer_co", covariant=True)
Calls = Callable[["Producer"], "list[Call[Any]]"]

MAX_CONNECTIONS = 4
MAX_RETRIES = 3
WAIT_SECONDS = 10.0  # for a connection, while the server is away
_FIRST_PAUSE_SECONDS = 0.05
# The transaction lost against another, and the server said so; or the connection is gone. In both
# cases the same call may be sent again.
_LOST = ("40001", "40P01")
_AGAIN = ("08", "57P01", "57P02", "57P03", "57P05", *_LOST)


class Runnable(Protocol[Answer_co]):
    """What can be run on a connection: a verb, or several statements that may be sent again."""

    def run(self, conn: Connection[Any]) -> Answer_co:
        """The answer."""
        ...


class Producer:
    """The connections of one app, and the ids of its jobs."""

    def __init__(
        self,
        url: Callable[[], str],
        schema: Callable[[], str],
        *,
        max_connections: int = MAX_CONNECTIONS,
        wait_seconds: float = WAIT_SECONDS,
        observer: Callable[[], Observer] = lambda: NOBODY,
    ) -> None:
        self._url = url
        self._schema = schema
        self._max_connections = max_connections
        self._wait_seconds = wait_seconds
        self._observer = observer
        self.ids = Ids()
        self.forget()
        _producers.add(self)

    def forget(self) -> None:
        """Begin anew; after a fork the sockets are the parent's, and the locks nobody's."""
        self._lock = threading.Lock()
        self._pool: ConnectionPool[Connection[Any]] | None = None
        self._threads: ThreadPoolExecutor | None = None

    def open(self) -> None:
        """Import what a call uses and open its connection; do nothing if one is open."""
        import concurrent.futures.thread  # noqa: F401  # for `asend`

        import faultline.protocol  # noqa: F401  # for `verbs`

        self.observer.headers()  # imports `spans`, if the application has OpenTelemetry
        if not self._opened().get_stats()["pool_size"]:
            self.run(_Nothing())

    async def aopen(self) -> None:
        """As `open`, for asyncio."""
        await self._in_thread(self.open)

    @property
    def observer(self) -> Observer:
        """Who is told of what is sent."""
        return self._observer()

    @cached_property
    def verbs(self) -> Verbs:
        """The verbs of the app's installation."""
        from faultline.protocol import Protocol

        return Protocol(self._schema())

    def new_id(self) -> UUID:
        """An id for a job, by the database's clock."""
        self._opened()
        return self.ids()

    def send(self, calls: Calls, connection: Any = None) -> list[Any]:
        """Make the calls and run them as one, on own connections or on the caller's."""
        if connection is not None:
            return caller.run(connection, made) if (made := calls(self)) else []
        self._opened()  # first: then the database's clock is known, and the ids are by it
        made = calls(self)
        return [self.run(made[0])] if len(made) == 1 else self._together(made)

    async def asend(self, calls: Calls, connection: Any = None) -> list[Any]:
        """As `send`, for asyncio."""
        if connection is not None:
            return await caller.arun(connection, made) if (made := calls(self)) else []
        return await self._in_thread(self.send, calls)

    def _together(self, calls: list[Call[Any]]) -> list[Any]:
        from faultline.call import together

        return self.run(together(calls)) if calls else []

    def run(self, call: Runnable[T]) -> T:
        """Run the call and commit it."""
        pause = _FIRST_PAUSE_SECONDS
        answered = True
        for retries_left in range(MAX_RETRIES, -1, -1):
            pool = self._opened()
            try:
                conn = pool.getconn(self._wait_seconds)
                try:
                    return self._timed(call, conn)
                finally:
                    pool.putconn(conn)
            except Exception as error:
                self._explain_timeout(error)
                if not _may_be_sent_again(error):
                    raise
                answered = answered and _lost_to_another(error)
                if not retries_left and answered:
                    raise LockedOut(getattr(call, "verb", ""), MAX_RETRIES + 1) from error
                if not retries_left:
                    raise _unanswered(error) from error
            time.sleep(pause * (0.5 + random.random()))  # noqa: S311  # a jitter, not a secret
            pool.check()  # if one connection broke, so have the others
            pause *= 2
        raise AssertionError("the last try returns or raises")

    def _timed(self, call: Runnable[T], conn: Connection[Any]) -> T:
        sent, failed = time.monotonic(), True
        try:
            answer = call.run(conn)
            failed = False
            return answer
        finally:
            if (verb := getattr(call, "verb", None)) is not None:
                self.observer.called(verb, time.monotonic() - sent, failed=failed)

    async def arun(self, call: Runnable[T]) -> T:
        """As `run`, for asyncio."""
        return await self._in_thread(self.run, call)

    def close(self) -> None:
        """Let go of the connections; the next call opens new ones."""
        with self._lock:
            pool, self._pool = self._pool, None
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)
        if pool is not None:
            pool.close()

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._max_connections, "faultline-producer")
            threads = self._threads
        loop, run = asyncio.get_running_loop(), copy_context().run  # a trace goes on over there
        return await loop.run_in_executor(threads, run, function, *arguments)

    def _opened(self) -> ConnectionPool[Connection[Any]]:
        if (pool := self._pool) is not None:
            return pool
        from psycopg_pool import ConnectionPool

        from faultline.connect import connect, conninfo
        from faultline.direct import Direct

        with self._lock:
            if self._pool is None:
                # Once directly: the pool would hide why it cannot connect behind a timeout.
                with connect(self._url(), schema=None) as conn:
                    self._configure(conn)
                self._pool = ConnectionPool(
                    conninfo(self._url()),
                    connection_class=Direct,
                    kwargs={"autocommit": True},
                    min_size=0,
                    max_size=self._max_connections,
                    configure=self._configure,
                    num_workers=1,
                    reconnect_timeout=self._wait_seconds,
                    name="faultline-producer",
                    open=True,
                )
            return self._pool

    def _configure(self, conn: Connection[Any]) -> None:
        from faultline.connect import check, keep_from_children

        keep_from_children(conn)
        self.ids.correct(check(conn, self._schema()))

    def _explain_timeout(self, error: Exception) -> None:
        from psycopg_pool import PoolTimeout

        from faultline.connect import connect

        if isinstance(error, PoolTimeout):
            connect(self._url(), schema=self._schema()).close()  # raises, if it is the server
            raise DatabaseUnavailable(
                f"all {self._max_connections} connections of this app were in use for "
                f"{self._wait_seconds:g} s"
            ) from error


class _Nothing:
    """Runnable that sends nothing: `run` then only takes a connection and gives it back."""

    def run(self, conn: Connection[Any]) -> None:
        """Send nothing; the pool has checked the connection."""


def _may_be_sent_again(error: Any) -> bool:
    import psycopg

    if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return False
    return error.sqlstate is None or error.sqlstate.startswith(_AGAIN)


def _lost_to_another(error: Any) -> bool:
    return error.sqlstate in _LOST


def _unanswered(error: Exception) -> DatabaseUnavailable:
    return DatabaseUnavailable(
        f"the call was sent {MAX_RETRIES + 1} times and never answered "
        f"({str(error).partition(chr(10))[0]}): whether it was carried out is not known; an "
        "enqueue with an idempotency_key can be repeated safely"
    )


_producers: weakref.WeakSet[Producer] = weakref.WeakSet()
_inherited: list[Any] = []  # the parent's connections: collecting them here must not close them


def _close_all() -> None:
    for producer in list(_producers):
        producer.close()


def _after_fork() -> None:
    for producer in list(_producers):
        _inherited.append((producer._pool, producer._threads))
        producer.forget()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork)
