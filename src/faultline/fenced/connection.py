"""The connections that a fenced block lends to a handler.

Its BEGIN goes out with the statement that opens the fence, and its COMMIT with the one that checks
it, two round trips less than psycopg's own transaction block would take. So psycopg does not know
that there is one, and what it would then refuse is refused here. A block of the handler's own
inside is a savepoint, as in any open transaction.

These two messages go straight to libpq: a cursor for each would cost more than the rest of a block.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg
from psycopg import AsyncClientCursor, AsyncConnection, ClientCursor, Connection, generators
from psycopg.pq.abc import PGresult

from faultline.call import Call, joined
from faultline.connect import abort
from faultline.direct import checked

_FORBIDDEN = (
    "{}() forbidden inside a fenced transaction: leave COMMIT and ROLLBACK to the block, and use a "
    "savepoint (connection.transaction()) instead"
)
_ESCAPED = {"'", "\\"}


class Lent(Connection[Any]):
    """A connection in autocommit mode that knows when its transaction is a block's."""

    is_fenced = False

    def exchange(self, statements: bytes) -> list[PGresult]:
        """Send these statements as one message; the answer to each, or the error of one."""
        with self.lock:
            self.pgconn.send_query(statements)
            results = self.wait(generators.execute(self.pgconn))
        return checked(self, results)

    def commit(self) -> None:
        """Not while a block is open."""
        _refuse(self, "commit")
        super().commit()

    def rollback(self) -> None:
        """Not while a block is open."""
        _refuse(self, "rollback")
        super().rollback()


class AsyncLent(AsyncConnection[Any]):
    """The same for asyncio."""

    is_fenced = False

    async def exchange(self, statements: bytes) -> list[PGresult]:
        """As of the other."""
        async with self.lock:
            self.pgconn.send_query(statements)
            results = await self.wait(generators.execute(self.pgconn))
        return checked(self, results)

    async def commit(self) -> None:
        """Not while a block is open."""
        _refuse(self, "commit")
        await super().commit()

    async def rollback(self) -> None:
        """Not while a block is open."""
        _refuse(self, "rollback")
        await super().rollback()

    async def cancel_safe(self, *, timeout: float = 30.0) -> None:
        """psycopg asks this of the server when the task of a statement is cancelled. Cancelled
        again, it closes the connection (from 3.3 on), and the statement would go on, with the locks
        of its transaction: so somebody else asks then."""
        try:
            await super().cancel_safe(timeout=timeout)
        except BaseException:
            abort(self)
            raise


def _refuse(connection: Lent | AsyncLent, what: str) -> None:
    if connection.is_fenced:
        raise psycopg.ProgrammingError(_FORBIDDEN.format(what))


def written(
    connection: Lent | AsyncLent, calls: list[Call[Any]], begin: str = "", end: str = ""
) -> bytes:
    """These calls as one statement with its values in it, between two others."""
    statement, parameters = joined(calls)
    statement = f"{begin}{statement}{end}"
    literals = tuple(map(_literal, parameters))
    if None in literals:  # psycopg knows how
        if isinstance(connection, Lent):
            statement = ClientCursor(connection).mogrify(statement, parameters)
        else:
            statement = AsyncClientCursor(connection).mogrify(statement, parameters)
        return statement.encode(connection.info.encoding)
    return (statement % literals).encode()


def _literal(value: Any) -> str | None:
    """A value as SQL, if that is the same under every setting of the session."""
    if value is None:
        return "null"
    if type(value) is int and value >= 0:
        return str(value)
    if type(value) is UUID:
        return f"'{value}'"
    if type(value) is str and value.isascii() and value.isprintable() and not _ESCAPED & {*value}:
        return f"'{value}'"
    return None
