"""The fenced transaction: a handler's own writes, committed only while its attempt owns the job.

    BEGIN → the handler's statements → assert_fence → COMMIT

One class for both worlds: `with` gives it a psycopg Connection, `async with` an AsyncConnection.
The outermost transaction is ours from the first moment on, so that a block of the handler's own,
`with tx.connection.transaction()`, is a savepoint inside it and commits nothing.
"""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import psycopg
from psycopg.pq import TransactionStatus

from faultline.connect import aconnect, connect
from faultline.errors import InvalidArgument
from faultline.protocol import Protocol

if TYPE_CHECKING:
    from faultline.context import Context


class Transaction:
    """One transaction of one attempt, on a connection of its own."""

    def __init__(self, context: Context, url: str, schema: str) -> None:
        self._context = context
        self._url = url
        self._check = Protocol(schema).assert_fence(context.job_id, context.token)
        self._block: Any = None
        self.connection: Any = None
        """The psycopg connection, while the block is open. Leave its transaction to us."""

    def execute(self, statement: Any, parameters: Any = None) -> Any:
        """As the connection's own `execute`; to be awaited in an async handler."""
        return self.connection.execute(statement, parameters)

    def __enter__(self) -> Self:
        self._opened(connect(self._url, schema=None))
        self._block.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._insist()
                self._check.run(self.connection)
                self._block.__exit__(None, None, None)
        except BaseException as refused:
            error = refused
            raise
        finally:
            if error is not None:
                with suppress(psycopg.Error):  # closing rolls back as well
                    self._block.__exit__(type(error), error, error.__traceback__)
            self._context._open.discard(self.connection)
            self.connection.close()

    async def __aenter__(self) -> Self:
        self._opened(await aconnect(self._url, schema=None))
        await self._block.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._insist()
                await self._check.arun(self.connection)
                await self._block.__aexit__(None, None, None)
        except BaseException as refused:
            error = refused
            raise
        finally:
            if error is not None:
                with suppress(psycopg.Error):
                    await self._block.__aexit__(type(error), error, error.__traceback__)
            self._context._open.discard(self.connection)
            await self.connection.close()

    def _opened(self, connection: Any) -> None:
        connection.prepare_threshold = None  # there may be a pooler, and the connection is short
        self.connection = connection
        self._block = connection.transaction()
        self._context._open.add(connection)

    def _insist(self) -> None:
        if self.connection.info.transaction_status == TransactionStatus.IDLE:
            raise InvalidArgument(
                "the fenced transaction was ended inside its block, and what it wrote was not "
                "checked: leave COMMIT and ROLLBACK to ctx.transaction()"
            )
