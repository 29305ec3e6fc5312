"""A producer's connection that goes past psycopg's cursor, for what is asked again and again.

A cursor costs the client more than the rest of a single enqueue. So a statement that comes for the
third time is prepared here, its values go straight to libpq, and only the answer is read as psycopg
reads it. Whatever is not plain (a value of another type, a pooler, another encoding) is left to a
cursor: nothing can be asked here that could not be asked there.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from uuid import UUID

import psycopg
from psycopg import Connection, generators
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

USES = 2  # by a cursor, before it is worth a round trip to prepare it
MOST = 50  # statements: there are as many as ways to combine the options of an enqueue


class Direct(Connection[Any]):
    """Nobody but the producer uses it: what it has prepared stays prepared."""

    def __init__(self, pgconn: PGconn, row_factory: Any = psycopg.rows.tuple_row) -> None:
        super().__init__(pgconn, row_factory)
        self._uses: dict[str, int] = {}
        self._names: dict[str, bytes] = {}
        self._tries = 0  # a name is used once: after a Ctrl-C it may be taken, or not

    def ask(self, statement: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]] | None:
        """The rows; None: not here, use a cursor."""
        if (values := _values(parameters)) is None:
            return None
        name = self._names.get(statement) or self._prepare(statement)
        if name is None:
            return None
        with self.lock:
            self.pgconn.send_query_prepared(name, values)
            results = self.wait(generators.execute(self.pgconn))
        result = checked(self, results)[-1]
        reader = Transformer(self)
        reader.set_pgresult(result)
        return reader.load_rows(0, result.ntuples, tuple)

    def _prepare(self, statement: str) -> bytes | None:
        if len(self._names) == MOST:
            return None
        uses = self._uses[statement] = self._uses.get(statement, 0) + 1
        if uses <= USES:
            return None
        if self.prepare_threshold is None or self.info.encoding != "utf-8":
            return None
        self._tries += 1
        name = f"faultline_{self._tries}".encode()
        with self.lock:
            self.pgconn.send_prepare(name, _numbered(statement))
            checked(self, self.wait(generators.execute(self.pgconn)))
        self._names[statement] = name
        del self._uses[statement]
        return name


def checked(connection: Any, results: list[PGresult]) -> list[PGresult]:
    """The server stops at the first error, so it is the last result that tells."""
    if results[-1].status == ExecStatus.FATAL_ERROR:
        raise psycopg.errors.error_from_result(results[-1], encoding=connection.info.encoding)
    return results


@lru_cache(maxsize=MOST)
def _numbered(statement: str) -> bytes:
    """With $1, $2, … for its marks."""
    first, *others = statement.split("%s")
    return (first + "".join(f"${n}{text}" for n, text in enumerate(others, 1))).encode()


def _values(parameters: tuple[Any, ...]) -> list[bytes] | None:
    """As text; None if one of them is nothing plain. Each has a cast in the statement."""
    values = []
    for value in parameters:
        kind = type(value)
        if kind is str:
            data = value.encode()
            if b"\0" in data:  # libpq would take it for the end
                return None
        elif kind is UUID:
            data = value.hex.encode()
        elif kind is int or kind is float or kind is bool:
            data = repr(value).encode()
        else:
            return None
        values.append(data)
    return values
