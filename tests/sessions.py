"""Blocks of psql sessions, played on real connections, and what psql would print.

    ```psql
    A=> begin;
    BEGIN
    B=> select 1 as one;
     one
    -----
       1
    (1 row)
    ```

A statement begins with the name of its session and `=>`, and goes on until a line ends with a
semicolon. Of an error only the first line is shown. Each session is a connection of its own, which
stays open until the end of the page.
"""

from __future__ import annotations

import re
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

PROMPT = re.compile(r"([A-Z])(?:=>|=\*>|=!>) (.*)")


def typed(text: str) -> list[tuple[str, str, list[str]]]:
    """(session, statement, the lines that it prints), in order."""
    found: list[tuple[str, str, list[str]]] = []
    open_statement = False
    for line in text.splitlines():
        if prompt := PROMPT.fullmatch(line):
            found.append((prompt[1], prompt[2], []))
        elif open_statement:
            session, statement, printed = found.pop()
            found.append((session, f"{statement}\n{line}", printed))
        else:
            found[-1][2].append(line)
            continue
        open_statement = not re.sub(r"\s*--.*", "", line).endswith(";")
    return found


class Sessions:
    """The connections of a page, by name."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._open: dict[str, psycopg.Connection[Any]] = {}

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()

    def run(self, session: str, statement: str) -> str:
        """What psql would print."""
        if session not in self._open:
            self._open[session] = psycopg.connect(self._url, autocommit=True)
        connection = self._open[session]
        try:
            cursor = connection.execute(statement)
        except psycopg.Error as error:
            assert connection.info.transaction_status is not TransactionStatus.UNKNOWN
            return f"ERROR:  {error.diag.message_primary}\n"
        if cursor.description is None:
            return f"{cursor.statusmessage}\n"
        return table([column.name for column in cursor.description], cursor.fetchall())


def table(names: list[str], rows: list[tuple[Any, ...]]) -> str:
    """As psql draws it: names in the middle, numbers to the right."""
    spelt = {None: "", True: "t", False: "f"}
    cells = [
        [spelt[cell] if cell is None or isinstance(cell, bool) else str(cell) for cell in row]
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    right = [all(type(row[n]) is int for row in rows) for n in range(len(names))]
    lines = [
        " | ".join(name.center(width) for name, width in zip(names, widths, strict=True)),
        "-+-".join("-" * width for width in widths),
        *(
            " | ".join(
                cell.rjust(width) if number else cell.ljust(width)
                for cell, width, number in zip(row, widths, right, strict=True)
            )
            for row in cells
        ),
    ]
    lines = [f" {line}" if n != 1 else f"-{line}-" for n, line in enumerate(lines)]
    return "\n".join([*lines, f"({len(rows)} row{'' if len(rows) == 1 else 's'})", ""])
