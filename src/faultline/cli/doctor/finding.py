"""What a check answers with, and what it is given to look with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from faultline.config import Settings

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.rows import TupleRow

    from faultline.reading import Reading

Level = Literal["ok", "warn", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at, and what to do about it unless it is well."""

    name: str
    level: Level
    what: str
    do: str | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """An open connection to the database in question, as the user in question."""

    settings: Settings
    url: str
    conn: Connection[TupleRow]
    reading: Reading

    @property
    def schema(self) -> str:
        """Of the installation."""
        return self.settings.schema

    @property
    def user(self) -> str:
        """Who is connected."""
        return self.conn.info.user

    def row(self, statement: str, *parameters: Any) -> tuple[Any, ...]:
        """The one row of a statement."""
        row = self.conn.execute(statement, parameters or None).fetchone()
        assert row is not None
        return tuple(row)

    def rows(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """All its rows."""
        return [tuple(row) for row in self.conn.execute(statement, parameters or None)]


Check = Callable[[Probe], Finding]
