"""Connections that go past psycopg's cursor, for what is asked again and again.

A cursor costs the client more than the rest of a single enqueue. So a statement that comes for the
third time is prepared here, its values go straight to libpq, and only the answer is read as psycopg
reads it. Whatever is not plain (a value of another type, a pooler, another encoding) is left to a
cursor: nothing can be asked here that could not be asked there.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, Generic, TypeVar
from uuid import UUID

import psycopg
from psycopg import AsyncConnection, Connection, generators
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

from faultline.columns import Column

USES = 2  # by a cursor, before it is worth a round trip to prepare it
MOST = 50  # statements: there are as many as ways to combine the options of an enqueue
# A signal may reach another thread of the process: how soon its handler is run in this one.
SIGNAL_MS = 100
CANCEL_SECONDS = 5.0

T = TypeVar("T")
Rows = list[tuple[Any, ...]]
Values = tuple[list[bytes | None], list[int] | None]  # and their formats; None: all are text


class Statements:
    """What one connection has prepared. It stays so: nobody but a producer or a worker uses it."""

    def __init__(self, connection: Connection[Any] | AsyncConnection[Any]) -> None:
        self._connection = connection
        self._uses: dict[str, int] = {}
        self._names: dict[str, bytes] = {}
        self._tries = 0  # a name is used once: after a Ctrl-C it may be taken, or not
        self._reader = Transformer(connection)

    def name(self, statement: str) -> bytes | None:
        """Under which this statement is prepared, if it is."""
        return self._names.get(statement)

    def new_name(self, statement: str) -> bytes | None:
        """One to prepare it under, if that is worth it by now."""
        if len(self._names) == MOST:
            return None
        uses = self._uses[statement] = self._uses.get(statement, 0) + 1
        if uses <= USES:
            return None
        connection = self._connection
        if connection.prepare_threshold is None or connection.info.encoding != "utf-8":
            return None
        self._tries += 1
        return f"faultline_{self._tries}".encode()

    def keep(self, statement: str, name: bytes) -> None:
        """It is prepared now."""
        self._names[statement] = name
        del self._uses[statement]

    def forget(self) -> None:
        """Nothing is prepared any more."""
        self._names.clear()

    def read(self, results: list[PGresult]) -> Rows:
        """The rows of the answer, or its error."""
        result = checked(self._connection, results)[-1]
        self._reader.set_pgresult(result)
        return self._reader.load_rows(0, result.ntuples, tuple)


class Direct(Connection[Any]):
    """A producer's."""

    def __init__(self, pgconn: PGconn, row_factory: Any = psycopg.rows.tuple_row) -> None:
        super().__init__(pgconn, row_factory)
        self._statements = Statements(self)
        self._poll = None
        if hasattr(select, "poll"):  # not on Windows
            poll = select.poll()
            poll.register(pgconn.socket, select.POLLIN)
            self._poll = poll.poll

    def ask(
        self, statement: str, parameters: tuple[Any, ...], *, binary: bool = False
    ) -> Rows | None:
        """The rows, which are to come as text or binary; None: not here, use a cursor. In an open
        transaction never: an error would end it, and psycopg may have had everything that is
        prepared forgotten (DEALLOCATE ALL, after a ROLLBACK)."""
        statements, values = self._statements, plain_values(parameters)
        if values is None or self.pgconn.transaction_status != TransactionStatus.IDLE:
            return None
        with self.lock:
            if (name := statements.name(statement)) is None:
                if (name := statements.new_name(statement)) is None:
                    return None
                self.pgconn.send_prepare(name, numbered(statement))
                checked(self, self.wait(generators.execute(self.pgconn)))
                statements.keep(statement, name)
            try:
                return statements.read(self._results(name, values, binary))
            except psycopg.errors.InvalidSqlStatementName:  # or a pooler has: DISCARD ALL
                statements.forget()
                return None

    def _results(self, name: bytes, values: Values, binary: bool) -> list[PGresult]:
        """Of what is sent here, since a signal may come as soon as it is. As
        `wait(generators.execute(…))`, at two thirds of its price."""
        pgconn = self.pgconn
        results: list[PGresult] = []
        try:
            pgconn.send_query_prepared(name, *values, binary)
            if self._poll is None or pgconn.flush():  # more than the socket takes at once
                return self.wait(generators.execute(pgconn))
            while True:
                while pgconn.is_busy():
                    self._poll(SIGNAL_MS)
                    pgconn.consume_input()
                if (result := pgconn.get_result()) is None:
                    return results
                results.append(result)
        except BaseException as error:  # also Ctrl-C, or what a signal's handler raised
            if is_said_better(results, error):
                return results
            if pgconn.transaction_status == TransactionStatus.ACTIVE:  # nobody hears the answer
                try:
                    with suppress(psycopg.Error):
                        self.cancel_safe(timeout=CANCEL_SECONDS)
                finally:
                    pgconn.finish()
            raise


class Answer(Generic[T]):
    """To what was sent ahead; read once, by whoever notices first that it is here."""

    def __init__(self, read: Callable[[list[PGresult]], T]) -> None:
        self.results: list[PGresult] = []  # that have come so far
        self._read = read
        self._found: list[T] = []
        self._error: Exception | None = None

    def read(self) -> T:
        """What it says, or its error."""
        if self._error is not None:
            raise self._error
        if not self._found:
            try:
                self._found.append(self._read(self.results))
            except Exception as error:
                self._error = error
                raise
        return self._found[0]


class AsyncDirect(AsyncConnection[Any]):
    """A worker's."""

    def __init__(self, pgconn: PGconn, row_factory: Any = psycopg.rows.tuple_row) -> None:
        super().__init__(pgconn, row_factory)
        self._statements = Statements(self)
        self._arrived: asyncio.Future[None] | None = None  # a result, while it is awaited
        self._answer: Answer[Any] | None = None  # to what was sent ahead, until it is awaited
        self.is_arriving = False  # of the answer that is awaited, something has come

    async def ask(
        self, statement: str, parameters: tuple[Any, ...], *, binary: bool = False
    ) -> Rows | None:
        """As `Direct.ask`, for asyncio."""
        statements, values = self._statements, plain_values(parameters)
        if values is None:
            return None
        async with self.lock:
            if (name := statements.name(statement)) is None:
                if (name := statements.new_name(statement)) is None:
                    return None
                self.pgconn.send_prepare(name, numbered(statement))
                checked(self, await self.wait(generators.execute(self.pgconn)))
                statements.keep(statement, name)
            self.pgconn.send_query_prepared(name, *values, binary)
            results: list[PGresult] = []
            await self._gather(results)
            return statements.read(results)

    def ready(
        self,
        statement: str,
        parameters: tuple[Any, ...],
        read: Callable[[Rows], Any],
        *,
        binary: bool = False,
    ) -> Callable[[], None] | None:
        """What sends it when it is called; then nothing but `hear` and `answer` may be done with
        this connection. None: it is not prepared, or cannot be; ask for it."""
        name, values = self._statements.name(statement), plain_values(parameters)
        if name is None or values is None:
            return None

        def send() -> None:
            self.pgconn.send_query_prepared(name, *values, binary)
            self._answer = Answer(lambda results: read(self._statements.read(results)))

        return send

    def hear(self) -> bool:
        """For who looks out for whatever comes, and has taken it in: whether that was the rest of
        the answer to what was sent. It is read now, and what was read is for `answer`."""
        if (answer := self._answer) is None:
            return False
        self.is_arriving = True  # until it is awaited
        if not self._have_come(answer.results):
            return False
        with suppress(Exception):  # for `answer` as well
            answer.read()
        return True

    async def answer(self) -> Any:
        """What is read in the rows that what was sent has brought."""
        assert self._answer is not None
        answer, self._answer = self._answer, None
        async with self.lock:
            await self._gather(answer.results)
            return answer.read()

    async def close(self) -> None:
        """Close it; who waits for an answer will get none."""
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_exception(psycopg.OperationalError("the connection was closed"))
            await asyncio.sleep(0)  # nobody looks out any more: its file's number may be another's
        await super().close()

    def _have_come(self, results: list[PGresult]) -> bool:
        """Whether these are all; those that can be had without waiting are added."""
        pgconn = self.pgconn
        while not pgconn.is_busy():
            if (result := pgconn.get_result()) is None:
                return True
            results.append(result)
        return False

    async def _gather(self, results: list[PGresult]) -> None:
        """All that there are. As `wait(generators.execute(…))`; but a large answer comes in pieces,
        and here the loop is told once to look out for all of them, and they wake nobody."""
        pgconn = self.pgconn
        try:
            if pgconn.flush():  # more than the socket takes at once
                results += await self.wait(generators.execute(pgconn))
            elif not self._have_come(results):
                await self._arrival(results)
        except BaseException as error:
            if is_said_better(results, error):
                return
            if pgconn.transaction_status == TransactionStatus.ACTIVE:  # nobody hears the answer
                try:
                    with suppress(psycopg.Error):
                        await self.cancel_safe(timeout=CANCEL_SECONDS)
                finally:
                    pgconn.finish()
            raise
        finally:
            self.is_arriving = False
        while (heard := pgconn.notifies()) is not None:
            if pgconn.notify_handler is not None:
                pgconn.notify_handler(heard)

    async def _arrival(self, results: list[PGresult]) -> None:
        """Until they are all here."""
        loop, pgconn = asyncio.get_running_loop(), self.pgconn
        arrived = self._arrived = loop.create_future()

        def read() -> None:
            if arrived.done():
                return
            self.is_arriving = True
            try:
                pgconn.consume_input()
                if self._have_come(results):
                    arrived.set_result(None)
            except psycopg.Error as error:
                stop()  # before anybody can have that file's number: libpq has closed it
                arrived.set_exception(error)

        def stop() -> None:
            if self._arrived is arrived:
                loop.remove_reader(descriptor)
                self._arrived = None

        descriptor = pgconn.socket
        loop.add_reader(descriptor, read)
        try:
            await arrived
        finally:
            stop()


def is_said_better(results: list[PGresult], error: BaseException) -> bool:
    """Whether the server has said why it hung up, before we noticed that it did."""
    is_told = bool(results) and results[-1].status == ExecStatus.FATAL_ERROR
    return is_told and isinstance(error, psycopg.OperationalError)


def checked(connection: Any, results: list[PGresult]) -> list[PGresult]:
    """The server stops at the first error, so it is the last result that tells."""
    if results[-1].status == ExecStatus.FATAL_ERROR:
        raise psycopg.errors.error_from_result(results[-1], encoding=connection.info.encoding)
    return results


@lru_cache(maxsize=MOST)
def numbered(statement: str) -> bytes:
    """With $1, $2, … for its marks."""
    first, *others = statement.split("%s")
    return (first + "".join(f"${n}{text}" for n, text in enumerate(others, 1))).encode()


def plain_values(parameters: tuple[Any, ...]) -> Values | None:
    """As text, columns as they are; None if one of them is nothing plain. Each has a cast in the
    statement, or is an argument whose type the function knows."""
    values: list[bytes | None] = []
    formats: list[int] | None = None
    for value in parameters:
        kind = type(value)
        data: bytes | None
        if kind is str:
            data = value.encode()
            if b"\0" in data:  # libpq would take it for the end
                return None
        elif kind is UUID:
            data = value.hex.encode()
        elif kind is int or kind is float or kind is bool:
            data = repr(value).encode()
        elif value is None:
            data = None
        elif kind is list and all(type(item) is int for item in value):
            data = f"{{{','.join(map(repr, value))}}}".encode()
        elif isinstance(value, Column):
            data = value.data
            formats = formats or [0] * len(parameters)
            formats[len(values)] = 1
        else:
            return None
        values.append(data)
    return values, formats
