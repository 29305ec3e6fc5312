"""Every statement that is sent to a database, as the server's own log has it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from psycopg import sql

from bench.arena import Arena

_LINE = re.compile(
    r"^(?P<at>\d+-\d+-\d+ [\d:.]+) UTC \[\d+\] LOG:  (execute \S+|statement): (?P<text>.*)"
)


@dataclass(frozen=True)
class Line:
    """One statement; `at` is in seconds since 1970."""

    at: float
    text: str


class Log:
    """What has been sent since `begin`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._offset = 0

    def begin(self) -> None:
        """Count from here on."""
        self._offset = self._file.stat().st_size

    def lines(self) -> list[Line]:
        """All statements until now."""
        with self._file.open("rb") as file:
            file.seek(self._offset)
            said = file.read().decode(errors="replace")
        found = [match for line in said.splitlines() if (match := _LINE.match(line))]
        return [
            Line(datetime.fromisoformat(f"{match['at']}+00:00").timestamp(), match["text"])
            for match in found
        ]


@contextmanager
def logged(arena: Arena) -> Iterator[Log]:
    """Have the server write down what later sessions of this database send; not the arena's own,
    which is open already."""
    assert arena.ground.server is not None
    name = sql.Identifier(arena.name)
    arena.conn.execute(sql.SQL("alter database {} set log_statement = 'all'").format(name))
    yield Log(arena.ground.server.log)
