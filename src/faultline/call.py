"""A statement on a connection: how a verb is run, and how the database's errors become ours."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from typing import Any, Generic, NamedTuple, TypeVar

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.rows import tuple_row

from faultline.connect import schema_missing
from faultline.direct import AsyncDirect, Direct
from faultline.errors import (
    FaultlineError,
    InvalidArgument,
    KeyInFlight,
    LockedOut,
    NotPermitted,
    from_sqlstate,
)
from faultline.jobs import Unreadable
from faultline.script import ROLES

T = TypeVar("T")
Row = tuple[Any, ...]


class Call(NamedTuple, Generic[T]):
    """One statement, and how to read its rows. `run` and `arun` differ by one word. (A tuple: made
    in a third of the time that a frozen dataclass takes.)"""

    schema: str
    verb: str
    statement: str
    parameters: tuple[Any, ...]
    read: Callable[[list[Row]], T]
    binary: bool = False  # how the answer comes: worth it where it has many ids

    @property
    def function(self) -> str:
        """The call alone, to be part of another statement."""
        return self.statement.removeprefix("select ").removeprefix("* from ")

    def run(self, conn: Connection[Any]) -> T:
        """Execute on this connection, in whatever transaction it is in."""
        try:  # and no context manager, which costs a single enqueue more
            rows = None
            if isinstance(conn, Direct):
                rows = conn.ask(self.statement, self.parameters, binary=self.binary)
            if rows is None:
                with conn.cursor(row_factory=tuple_row, binary=self.binary) as cursor:
                    rows = cursor.execute(self.statement, self.parameters).fetchall()
            return self.read(rows)
        except (psycopg.Error, UnicodeEncodeError) as error:
            if (ours := _ours(error, self.schema, self.verb, conn)) is None:
                raise
            raise ours from error

    def ready(self, conn: AsyncConnection[Any]) -> Callable[[], None] | None:
        """What sends it, where that can be had; its answer is then for `arun` to await, but may be
        read before."""
        if not isinstance(conn, AsyncDirect):
            return None
        return conn.ready(self.statement, self.parameters, self.read, binary=self.binary)

    def then(self, go_on: Callable[[T], T]) -> Call[T]:
        """The same, and what is read goes through this as soon as it is."""
        return self._replace(read=lambda rows: go_on(self.read(rows)))

    async def arun(self, conn: AsyncConnection[Any], *, is_sent: bool = False) -> T:
        """As `run`, for asyncio."""
        try:
            rows = None
            if isinstance(conn, AsyncDirect):
                if is_sent:
                    found: T = await conn.answer()
                    return found
                rows = await conn.ask(self.statement, self.parameters, binary=self.binary)
            if rows is None:
                async with conn.cursor(row_factory=tuple_row, binary=self.binary) as cursor:
                    await cursor.execute(self.statement, self.parameters)
                    rows = await cursor.fetchall()
            return self.read(rows)
        except (psycopg.Error, UnicodeEncodeError) as error:
            if (ours := _ours(error, self.schema, self.verb, conn)) is None:
                raise
            raise ours from error


def together(calls: Sequence[Call[Any]]) -> Call[list[Any]]:
    """Calls that answer with one value each, as one statement: all of them or none, on any
    connection, in one round trip."""
    first = calls[0]

    def read(rows: list[Row]) -> list[Any]:
        return [call.read([(value,)]) for call, value in zip(calls, rows[0], strict=True)]

    binary = all(call.binary for call in calls)
    return Call(first.schema, first.verb, *joined(calls), read, binary)


def joined(calls: Sequence[Call[Any]]) -> tuple[str, tuple[Any, ...]]:
    """Their one statement, and its parameters."""
    statement = f"select {', '.join([call.function for call in calls])}"
    return statement, tuple([value for call in calls for value in call.parameters])


@contextmanager
def translated_errors(
    schema: str, verb: str = "", conn: Connection[Any] | AsyncConnection[Any] | None = None
) -> Iterator[None]:
    """The database's errors as ours where they are ours; everybody else's pass through."""
    try:
        yield
    except (psycopg.Error, UnicodeEncodeError) as error:
        if (ours := _ours(error, schema, verb, conn)) is None:
            raise
        raise ours from error


def _ours(error: Exception, schema: str, verb: str, conn: Any) -> FaultlineError | None:
    if not isinstance(error, psycopg.Error):
        return InvalidArgument(f"an argument is not Unicode text ({error})")
    code = error.sqlstate or ("22000" if isinstance(error, psycopg.DataError) else None)
    message, detail = error.diag.message_primary, error.diag.message_detail
    return translated(
        *(code, message or _first_line(error), detail, schema, verb), lambda: _role_of(conn)
    )


def translated(
    code: str | None,
    message: str,
    detail: str | None,
    schema: str,
    verb: str,
    role: Callable[[], str | None] = lambda: None,
) -> FaultlineError | None:
    """Our error for what any driver reports of a call, or None if it is somebody else's."""
    match code:
        case "3F000" | "42P01" | "42601" | "42602" | "0A000" if verb in ("guard", "unguard"):
            return InvalidArgument(message)  # of the user's table: no such, or no name at all
        case "3F000" | "42883" | "42P01":  # no such schema, function, table
            return schema_missing(schema)
        case "42501":  # insufficient_privilege
            return NotPermitted(role(), verb, schema, _grantable(schema, verb))
        case "55P03":  # lock_not_available
            return KeyInFlight() if verb.startswith("enqueue") else LockedOut(verb)
        case "22P05":  # untranslatable_character
            return InvalidArgument(
                "JSON for PostgreSQL cannot contain the character \\u0000: remove it first"
            )
        case str() if code.startswith("22"):
            return InvalidArgument(
                f"an argument is not of its type or out of its range ({message}); "
                "nothing was written"
            )
    return from_sqlstate(code, message, detail)


def reported(error: BaseException) -> tuple[str | None, str, str | None]:
    """SQLSTATE, message and detail of a database error, whichever driver raised it."""
    original: Any = getattr(error, "orig", None) or error  # SQLAlchemy's has the driver's
    code = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    own = original.__cause__ if original is not error else original  # asyncpg's is the cause
    facts = getattr(original, "diag", None) or own
    message = getattr(facts, "message_primary", None) or getattr(facts, "message", None)
    detail = getattr(facts, "message_detail", None) or getattr(facts, "detail", None)
    return code, message or _first_line(original), detail


def _role_of(conn: Connection[Any] | AsyncConnection[Any] | None) -> str | None:
    if conn is None:
        return None
    return conn.info.parameter_status("session_authorization") or conn.info.user


def _grantable(schema: str, verb: str) -> list[str]:
    """The roles that may call the verb, as the grants have it; for a view, those that may read."""
    grants = resources.files("faultline").joinpath("sql", "roles.sql").read_text("utf-8")
    thing = re.compile(rf"\{{schema\}}\.{verb}\b" if verb else r"\{views\}")
    found = []
    for grant in re.sub(r"--.*", "", grants).split(";"):
        what, _, roles = grant.rpartition("to ")
        if thing.search(what):
            found += re.findall(r"\{schema\}_(\w+)", roles)
    return [f"{schema}_{role}" for role in dict.fromkeys(found or ROLES)]


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


_JSON = json.JSONEncoder(allow_nan=False, separators=(",", ":"), ensure_ascii=False)


def to_json(value: Any, what: str) -> str:
    """The value as JSON text, or InvalidArgument saying what is wrong with it."""
    try:
        text = _JSON.encode(value)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(
            f"{what} is not JSON ({error}): use only dict with str keys, list, str, int, float, "
            "bool and None"
        ) from error
    return text


def decoded(array: str) -> list[Any]:
    """The elements of a JSON array; one that Python cannot read does not cost its neighbours."""
    try:
        return list(json.loads(array))
    except (ValueError, RecursionError):
        return [_decoded_one(element) for element in _elements(array)]


def _decoded_one(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        return Unreadable(_first_line(error))


_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},]')


def _elements(array: str) -> Iterator[str]:
    """The texts between the outermost commas."""
    depth, start = 0, array.index("[") + 1
    for found in _STRUCTURE.finditer(array):
        mark = found[0]
        if mark in "[{":
            depth += 1
        elif mark in "]}":
            depth -= 1
        if depth == 0 or (depth == 1 and mark == ","):
            yield array[start : found.start()]
            start = found.end()
