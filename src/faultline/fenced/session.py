"""`ctx.session(Session)`: a fenced transaction on a SQLAlchemy session of the user's own engine.

The block is the session, with `complete`, `emit` and `record` beside its own methods; `tx.session`
is the plain one, to be handed on. Works with every driver; psycopg connections are also cut when
the lease is lost.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from faultline import caller
from faultline.call import Call
from faultline.errors import InvalidArgument
from faultline.fenced.block import Block, ended_inside
from faultline.fenced.drive import Steps

if TYPE_CHECKING:
    from faultline.context import Context, Means


# What a handler may not do to the transaction that is the block's.
_OURS = {"commit", "rollback", "close", "begin", "invalidate", "prepare", "reset"}


_ENDING = re.compile(
    r"\s*(commit|end|abort|begin|start\s+transaction|prepare\s+transaction"
    r"|rollback(?!\s+(work\s+|transaction\s+)?to))\b",
    re.IGNORECASE,
)


class Session(Block):
    """A fenced session."""

    def __init__(
        self, context: Context, means: Means, factory: Callable[[], Any], step: str | None
    ) -> None:
        super().__init__(context, means, step)
        self._factory = factory
        self._raw: Any = None
        self._is_begun = False
        self.session: Any = None
        """The SQLAlchemy session, while the block is open. Leave commit and rollback to it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self.session is None:
            raise AttributeError(f"a fenced session has no {name} outside its block")
        if name in _OURS:
            raise ended_inside()
        return getattr(self.session, name)

    def __contains__(self, instance: object) -> bool:
        return instance in self.session

    def __iter__(self) -> Any:
        return iter(self.session)

    def _begin(self) -> Steps[Any]:
        if not callable(self._factory):
            raise InvalidArgument(
                f"ctx.session is given {type(self._factory).__qualname__}: give it a sessionmaker, "
                "or any function that makes a session"
            )
        self.session = self._factory()
        kind = caller.kind_of(self.session, self._means.verbs.fence(*self._key))
        if not kind.startswith("sqlalchemy") or kind.endswith("async") != self._is_async:
            word = "async with" if kind.endswith("async") else "with"
            raise InvalidArgument(
                f"{type(self.session).__qualname__} wants `{word} ctx.session(…)`"
                if kind.startswith("sqlalchemy")
                else "ctx.session takes a SQLAlchemy sessionmaker; else use ctx.transaction()"
            )
        if not hasattr(self.session, "flush"):
            raise InvalidArgument("ctx.session wants sessions, and was given a connection's maker")
        self._watch(True)
        try:
            (answer,) = yield lambda: self._run([self._opening()])
        except BaseException as error:
            yield from self._roll_back(error)
            yield from self._release()
            raise
        return answer

    def _watch(self, begin: bool) -> None:
        """Nothing is written in a second transaction of the session: nobody would fence it."""
        from sqlalchemy import event

        session = getattr(self.session, "sync_session", self.session)
        (event.listen if begin else event.remove)(session, "after_begin", self._begun)

    def _begun(self, _session: Any, transaction: Any, connection: Any) -> None:
        from sqlalchemy import event

        if not transaction.nested:
            if self._is_begun:
                raise ended_inside()
            self._is_begun = True
            event.listen(connection, "before_cursor_execute", _refuse_endings)

    def _check_opened(self) -> Steps[None]:
        """In autocommit mode the fence's transaction is over with its own statement. A frozen
        snapshot is taken again, after a renewal."""
        verbs = self._means.verbs
        try:
            yield lambda: self._run([verbs.same_transaction(self._mark)])
        except InvalidArgument as error:
            raise caller.autocommits() from error
        level = yield lambda: self._run([_isolation(verbs.schema)])
        if level != ["read committed"]:
            self._is_begun = False
            yield self.session.rollback
            yield from self._hold()
            (answer,) = yield lambda: self._run([self._opening()])
            self._opened(answer)
        self._raw = _psycopg_connection(self.session)
        if self._raw is not None:
            self._context._open.add(self._raw)

    def _renew(self, call: Call[Any]) -> Any:
        pool = self._means.pool
        return pool.aask(call) if self._is_async else pool.ask(call)

    def _run(self, calls: list[Call[Any]]) -> Any:
        run = caller.arun if self._is_async else caller.run
        return run(self.session, calls)

    def _insist(self) -> Steps[None]:
        yield self.session.flush

    def _finish(self, calls: list[Call[Any]]) -> Steps[None]:
        try:
            yield lambda: self._run(calls)
        except BaseException as error:
            yield from self._roll_back(error)
            yield from self._explain(error)
            raise
        try:
            yield self.session.commit
        except Exception as error:
            yield from self._judge(error)

    def _roll_back(self, error: BaseException | None) -> Steps[None]:
        from sqlalchemy.exc import SQLAlchemyError

        with suppress(SQLAlchemyError):  # closing the session rolls back as well
            yield self.session.rollback

    def _release(self) -> Steps[None]:
        if self.session is None:
            return
        self._watch(False)
        self._let_go()
        session, self.session = self.session, None
        self._context._open.discard(self._raw)
        from sqlalchemy.exc import SQLAlchemyError

        with suppress(SQLAlchemyError):
            yield session.close

    def _is_broken(self, error: Exception) -> bool:
        return bool(getattr(error, "connection_invalidated", False))


def _refuse_endings(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
    if _ENDING.match(statement):
        raise ended_inside()


def _isolation(schema: str) -> Call[str]:
    """Which isolation level the session has."""
    statement = "select * from current_setting('transaction_isolation')"
    return Call(schema, "", statement, (), lambda rows: str(rows[0][0]))


def _psycopg_connection(session: Any) -> Any:
    """The driver's own connection, if it is one that can be cut; the session is in a transaction,
    and has it."""
    with suppress(Exception):
        sync = getattr(session, "sync_session", session)
        driver = sync.connection().connection.driver_connection
        if type(driver).__module__.partition(".")[0] == "psycopg":
            return driver
    return None
