"""`ctx.transaction()`: a fenced transaction on a psycopg connection of the worker's pool.

The outermost transaction is ours from the first moment on, so that a block of the handler's own,
`with tx.connection.transaction()`, is a savepoint inside it and commits nothing, and
`tx.connection.commit()` is refused. BEGIN and the opening of the fence are one message to the
server, and so are its check and the COMMIT.
"""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial
from inspect import CORO_CREATED, getcoroutinestate
from typing import TYPE_CHECKING, Any, Literal

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from faultline import caller
from faultline.call import Call, translated_errors
from faultline.errors import InvalidArgument
from faultline.fenced.block import Block, ended_inside
from faultline.fenced.connection import written
from faultline.fenced.drive import Steps

if TYPE_CHECKING:
    from faultline.context import Context, Means

Isolation = Literal["read committed", "repeatable read", "serializable"]
_ISOLATIONS = ("read committed", "repeatable read", "serializable")


class Transaction(Block):
    """A fenced transaction: `tx.execute(…)`, or anything on `tx.connection`."""

    def __init__(
        self, context: Context, means: Means, step: str | None, isolation: Isolation | None
    ) -> None:
        super().__init__(context, means, step)
        if isolation is not None and isolation not in _ISOLATIONS:
            raise InvalidArgument(
                f"isolation is {isolation!r:.80}: it is one of {', '.join(_ISOLATIONS)}"
            )
        self._isolation = None if isolation == "read committed" else isolation
        self._unawaited: list[Any] = []  # statements of an async handler
        self.connection: Any = None
        """The psycopg connection, while the block is open. Leave its transaction to the block."""

    def execute(self, statement: Any, parameters: Any = None) -> Any:
        """As the connection's own `execute`; to be awaited in an async handler."""
        self._insist_open("tx.execute")
        answer = self.connection.execute(statement, parameters)
        if self._is_async:
            self._unawaited = [*filter(_is_unawaited, self._unawaited), answer]
        return answer

    def _begin(self) -> Steps[Any]:
        pool = self._means.pool
        begin = f"begin isolation level {self._isolation or 'read committed'} read write; "
        for last in (False, True):
            self.connection = yield pool.atake if self._is_async else pool.take
            self._context._open.add(self.connection)
            try:
                if self._isolation is not None:
                    yield from self._hold()
                self.connection.is_fenced = True
                results = yield partial(self._send, [self._opening()], begin=begin)
                return self._marked(results)
            except BaseException as error:
                gone = isinstance(error, psycopg.OperationalError) and self.connection.closed
                if isinstance(error, Exception) and not gone:
                    yield from self._roll_back(error)
                else:  # its BEGIN may have been broken off
                    yield self.connection.close
                yield from self._release()
                if last or not gone or self._context.cancelled:
                    raise  # else it had died while nobody used it

    def _renew(self, call: Call[Any]) -> Any:
        return self._arenew(call) if self._is_async else self._renew_now(call)

    def _renew_now(self, call: Call[Any]) -> Any:
        with self.connection.transaction():
            return call.run(self.connection)

    async def _arenew(self, call: Call[Any]) -> Any:
        async with self.connection.transaction():
            return await call.arun(self.connection)

    def _run(self, calls: list[Call[Any]]) -> Any:
        run = caller.arun if self._is_async else caller.run
        return run(self.connection, calls)

    def _send(self, calls: list[Call[Any]], *, begin: str = "", end: str = "") -> Any:
        """As `_run`, in one message with the statement before it or after it; its own answer is
        the last but `end`'s."""
        if self._is_async:
            return self._asend(calls, begin, end)
        with translated_errors(calls[0].schema, calls[-1].verb, self.connection):
            return self.connection.exchange(written(self.connection, calls, begin, end))

    async def _asend(self, calls: list[Call[Any]], begin: str, end: str) -> Any:
        with translated_errors(calls[0].schema, calls[-1].verb, self.connection):
            return await self.connection.exchange(written(self.connection, calls, begin, end))

    def _marked(self, results: list[PGresult]) -> Any:
        """What the opening of the fence has answered. Not by the connection's own loaders, which a
        handler may have changed."""
        text = (results[-1].get_value(0, 0) or b"").decode(self.connection.info.encoding)
        return text if self._step is None else json.loads(text)

    def _insist(self) -> Steps[None]:
        if self.connection.info.transaction_status == TransactionStatus.IDLE:
            raise ended_inside()
        if self.connection._num_transactions:
            raise InvalidArgument("a transaction() of the handler's own is still open: leave it")
        if self.connection.pgconn.pipeline_status != PipelineStatus.OFF:
            raise InvalidArgument("a pipeline is still open: leave it before the block ends")
        for statement in filter(_is_unawaited, self._unawaited):
            statement.close()
            raise InvalidArgument("tx.execute was not awaited: nothing of it has happened")
        yield from ()

    def _finish(self, calls: list[Call[Any]]) -> Steps[None]:
        try:
            yield partial(self._send, calls, end="; commit")
        except Exception as error:
            yield from self._judge(error)

    def _roll_back(self, error: BaseException | None) -> Steps[None]:
        self.connection.is_fenced = False
        with suppress(psycopg.Error):  # giving it back rolls back as well
            yield self.connection.rollback

    def _release(self) -> Steps[None]:
        connection, self.connection = self.connection, None
        if connection is None:
            return
        connection.is_fenced = False
        self._context._open.discard(connection)
        self._let_go()
        pool = self._means.pool
        give = pool.agive if self._is_async else pool.give
        yield lambda: give(connection)

    def _is_broken(self, error: Exception) -> bool:
        return bool(self.connection.closed)


def _is_unawaited(statement: Any) -> bool:
    return getcoroutinestate(statement) == CORO_CREATED
