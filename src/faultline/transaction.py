"""The fenced transaction: a handler's own writes, committed only while its attempt owns the job.

    BEGIN → the handler's statements → assert_fence → COMMIT

One class for both worlds: `with` gives it a psycopg Connection, `async with` an AsyncConnection.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from faultline.connect import aconnect, connect
from faultline.protocol import Protocol

if TYPE_CHECKING:
    from faultline.context import Context


class Transaction:
    """One transaction of one attempt, on a connection of its own."""

    def __init__(self, context: Context, url: str, schema: str) -> None:
        self._context = context
        self._url = url
        self._check = Protocol(schema).assert_fence(context.job_id, context.token)
        self.connection: Any = None
        """The psycopg connection, while the block is open. Leave its transaction to us."""

    def execute(self, statement: Any, parameters: Any = None) -> Any:
        """As the connection's own `execute`; to be awaited in an async handler."""
        return self.connection.execute(statement, parameters)

    def __enter__(self) -> Self:
        self.connection = connect(self._url, schema=None, autocommit=False)
        self._context._open.add(self.connection)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._check.run(self.connection)
                self.connection.commit()
        finally:
            self._context._open.discard(self.connection)
            self.connection.close()  # which rolls back what is not committed

    async def __aenter__(self) -> Self:
        self.connection = await aconnect(self._url, schema=None, autocommit=False)
        self._context._open.add(self.connection)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                await self._check.arun(self.connection)
                await self.connection.commit()
        finally:
            self._context._open.discard(self.connection)
            await self.connection.close()
