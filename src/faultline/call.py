"""A statement on a connection: how a verb is run, and how the database's errors become ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import psycopg
from psycopg import AsyncConnection, Connection, errors
from psycopg.rows import tuple_row

from faultline.connect import schema_missing
from faultline.errors import InvalidArgument, KeyInFlight, LockedOut, from_sqlstate

T = TypeVar("T")
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One statement, and how to read its rows. `run` and `arun` differ by one word."""

    schema: str
    verb: str
    statement: str
    parameters: tuple[Any, ...]
    read: Callable[[list[Row]], T]

    def run(self, conn: Connection[Any]) -> T:
        """Execute on this connection, in whatever transaction it is in."""
        with (
            translated_errors(self.schema, self.verb),
            conn.cursor(row_factory=tuple_row) as cursor,
        ):
            return self.read(cursor.execute(self.statement, self.parameters).fetchall())

    async def arun(self, conn: AsyncConnection[Any]) -> T:
        """As `run`, for asyncio."""
        with translated_errors(self.schema, self.verb):
            async with conn.cursor(row_factory=tuple_row) as cursor:
                await cursor.execute(self.statement, self.parameters)
                return self.read(await cursor.fetchall())


@contextmanager
def translated_errors(schema: str, verb: str = "") -> Iterator[None]:
    """The database's errors as ours where they are ours; everybody else's pass through."""
    try:
        yield
    except psycopg.Error as error:
        ours = from_sqlstate(
            error.sqlstate, error.diag.message_primary or "", error.diag.message_detail
        )
        if ours is not None:
            raise ours from error
        if isinstance(
            error, errors.InvalidSchemaName | errors.UndefinedFunction | errors.UndefinedTable
        ):
            raise schema_missing(schema) from error
        if isinstance(error, errors.LockNotAvailable):
            raise (KeyInFlight() if verb.startswith("enqueue") else LockedOut(verb)) from error
        if isinstance(error, errors.UntranslatableCharacter):
            raise InvalidArgument(
                "JSON for PostgreSQL cannot contain the character \\u0000: remove it first"
            ) from error
        if isinstance(error, psycopg.DataError):
            raise InvalidArgument(
                f"an argument is not of its type or out of its range ({_first_line(error)}); "
                "nothing was written"
            ) from error
        raise
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"an argument is not Unicode text ({error})") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def to_json(value: Any, what: str) -> str:
    """The value as JSON text, or InvalidArgument saying what is wrong with it."""
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(
            f"{what} is not JSON ({error}): use only dict with str keys, list, str, int, float, "
            "bool and None"
        ) from error
    return text
