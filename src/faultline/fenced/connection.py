"""The connections that a fenced block lends to a handler.

Its BEGIN goes out with the statement that opens the fence, and its COMMIT with the one that checks
it, two round trips less than psycopg's own transaction block would take. So psycopg does not know
that there is one, and what it would then refuse is refused here. A block of the handler's own
inside is a savepoint, as in any open transaction.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import AsyncConnection, Connection

_FORBIDDEN = (
    "{}() forbidden inside a fenced transaction: leave COMMIT and ROLLBACK to the block, and use a "
    "savepoint (connection.transaction()) instead"
)


class Lent(Connection[Any]):
    """A connection in autocommit mode that knows when its transaction is a block's."""

    is_fenced = False

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

    async def commit(self) -> None:
        """Not while a block is open."""
        _refuse(self, "commit")
        await super().commit()

    async def rollback(self) -> None:
        """Not while a block is open."""
        _refuse(self, "rollback")
        await super().rollback()


def _refuse(connection: Lent | AsyncLent, what: str) -> None:
    if connection.is_fenced:
        raise psycopg.ProgrammingError(_FORBIDDEN.format(what))
