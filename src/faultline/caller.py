"""The caller's own connection: a call joins its transaction, and lives or dies with it.

psycopg connections, and SQLAlchemy sessions and connections with any driver, sync and async; found
by their classes' names, since neither library may be imported for the other's users. All calls go
as one statement, so that they are one unit even on a connection that commits by itself. Nothing is
committed, retried or closed here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from faultline.errors import InvalidArgument

if TYPE_CHECKING:
    from faultline.call import Call

Kind = Literal["psycopg", "psycopg async", "sqlalchemy", "sqlalchemy async"]
_KINDS: dict[tuple[str, str], Kind] = {
    ("psycopg", "Connection"): "psycopg",
    ("psycopg", "AsyncConnection"): "psycopg async",
    ("sqlalchemy", "Connection"): "sqlalchemy",
    ("sqlalchemy", "Session"): "sqlalchemy",
    ("sqlalchemy", "scoped_session"): "sqlalchemy",
    ("sqlalchemy", "AsyncConnection"): "sqlalchemy async",
    ("sqlalchemy", "AsyncSession"): "sqlalchemy async",
    ("sqlalchemy", "async_scoped_session"): "sqlalchemy async",
}


def run(connection: Any, calls: Sequence[Call[Any]]) -> list[Any]:
    """Run the calls in the caller's transaction; their answers."""
    if kind_of(connection, calls[0]) == "psycopg":
        from faultline.call import together
        from faultline.columns import make_sendable

        make_sendable(connection.adapters)
        return together(calls).run(connection)
    _insist(connection, calls[0], "sqlalchemy")
    with _translated(calls[0]):
        return _answers(calls, connection.execute(_statement(calls)).one())


async def arun(connection: Any, calls: Sequence[Call[Any]]) -> list[Any]:
    """As `run`, for asyncio."""
    if kind_of(connection, calls[0]) == "psycopg async":
        from faultline.call import together
        from faultline.columns import make_sendable

        make_sendable(connection.adapters)
        return await together(calls).arun(connection)
    _insist(connection, calls[0], "sqlalchemy async")
    with _translated(calls[0]):
        return _answers(calls, (await connection.execute(_statement(calls))).one())


def run_or_await(connection: Any, call: Call[Any]) -> Any:
    """Run one call, or give what is to be awaited, as the connection is sync or async."""
    kind = kind_of(connection, call)
    if kind.startswith("psycopg"):
        insist_on_transaction(connection)
    if kind.endswith("async"):
        return _one(connection, call, kind)
    answers = run(connection, [call])
    if kind == "sqlalchemy" and not run(connection, [_still_open(call)])[0]:
        raise autocommits()
    return answers[0]


async def _one(connection: Any, call: Call[Any], kind: Kind) -> Any:
    answers = await arun(connection, [call])
    if kind == "sqlalchemy async" and not (await arun(connection, [_still_open(call)]))[0]:
        raise autocommits()
    return answers[0]


def insist_on_transaction(connection: Any) -> None:
    """Refuse a psycopg connection on which a fence would be over with its own statement."""
    if connection.autocommit and connection.info.transaction_status == 0:  # IDLE
        raise autocommits()


def autocommits() -> InvalidArgument:
    """The error for a connection without a transaction."""
    return InvalidArgument(
        "the connection is in autocommit mode and no transaction is open, so a fence would protect "
        "nothing: begin a transaction first, in which the writes are too"
    )


def _still_open(call: Call[Any]) -> Call[bool]:
    """Whether the transaction of that call goes on: it has an id, since the call locks a row."""
    from faultline.call import Call

    statement = "select * from concat(pg_current_xact_id_if_assigned())"
    return Call(call.schema, "", statement, (), lambda rows: rows[0][0] != "")


def kind_of(connection: Any, call: Call[Any]) -> Kind:
    """What the caller has given us, or InvalidArgument saying what can be given."""
    for ancestor in type(connection).__mro__:
        key = ancestor.__module__.partition(".")[0], ancestor.__name__
        if key in _KINDS:
            return _KINDS[key]
    raise InvalidArgument(
        f"connection is of type {type(connection).__qualname__}: give a psycopg Connection or "
        "AsyncConnection, or a SQLAlchemy Session, Connection, AsyncSession or AsyncConnection; "
        f"with any other driver, run SELECT {call.schema}.{call.verb}(…) in your transaction"
    )


def _insist(connection: Any, call: Call[Any], wanted: Kind) -> None:
    if kind_of(connection, call) != wanted:
        name = type(connection).__qualname__
        here, there = call.verb, f"await a{call.verb}"
        if wanted.endswith("async"):
            here, there = f"a{call.verb}", call.verb
        raise InvalidArgument(
            f"connection is of type {name}, which {here} cannot use: call {there} with it"
        )


# ── SQLAlchemy: every parameter as text with a cast, every answer as text, so that drivers agree ─


def _statement(calls: Sequence[Call[Any]]) -> Any:
    from sqlalchemy import String, bindparam, text

    parameters = [value for call in calls for value in call.parameters]
    numbers = iter(range(len(parameters)))

    def named(mark: re.Match[str]) -> str:
        number = next(numbers)
        return f"cast(:p{number} as {mark[1] or _sql_type(parameters[number])})"

    columns = [f"cast({call.function} as text)" for call in calls]
    rendered = re.sub(r"%s(?:::(\w+(?:\[\])?))?", named, f"select {', '.join(columns)}")
    values = [bindparam(f"p{n}", _text(v), String()) for n, v in enumerate(parameters)]
    return text(rendered).bindparams(*values)


def _sql_type(value: Any) -> str:
    return "uuid" if isinstance(value, UUID) else "bigint" if isinstance(value, int) else "text"


def _text(value: Any) -> str | None:
    from faultline.columns import UuidColumn

    if value is None or isinstance(value, str):
        return value
    if isinstance(value, UuidColumn):
        value = value.values
    if isinstance(value, list):
        return "{" + ",".join(_element(item) for item in value) + "}"
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _element(item: Any) -> str:
    if item is None:
        return "null"
    escaped = str(item).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _answers(calls: Sequence[Call[Any]], row: Sequence[str]) -> list[Any]:
    return [call.read([(_value(call, text),)]) for call, text in zip(calls, row, strict=True)]


def _value(call: Call[Any], text: str) -> Any:
    if call.verb == "begin_step":
        return json.loads(text)
    if not call.verb.startswith("enqueue"):
        return text
    if text.startswith("{"):
        return [UUID(part) for part in text.strip("{}").split(",") if part]
    return UUID(text)


@contextmanager
def _translated(call: Call[Any]) -> Iterator[None]:
    from sqlalchemy.exc import DBAPIError

    from faultline.call import reported, translated

    try:
        yield
    except DBAPIError as error:
        ours = translated(*reported(error), call.schema, call.verb)
        if ours is None:
            raise
        raise ours from error
