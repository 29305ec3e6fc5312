"""A command's connection: to FAULTLINE_DATABASE_URL, else to the embedded server if it runs.

Nothing here starts a server, and nothing is imported before it is needed: `faultline --help` must
not wait for a driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from faultline.config import Settings
from faultline.database import database_url

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.rows import TupleRow

    from faultline.protocol import Protocol
    from faultline.reading import Reading


@dataclass(frozen=True, slots=True)
class Installation:
    """A connection to an installation, with what may be done and asked there."""

    conn: Connection[TupleRow]
    verbs: Protocol
    reading: Reading

    def now(self) -> datetime:
        """By the database's clock, which is the one that counts."""
        return self.reading.now(self.conn)


def open_database(settings: Settings) -> Connection[TupleRow]:
    """An autocommit connection to it; the caller closes it."""
    url = database_url(settings)
    from faultline.connect import connect

    return connect(url, schema=None)


@contextmanager
def installation() -> Iterator[Installation]:
    """The installation that the environment names, checked to be one that this client fits."""
    settings = Settings.from_environment()
    url = database_url(settings)
    from faultline.connect import connect
    from faultline.protocol import Protocol
    from faultline.reading import Reading

    with connect(url, schema=settings.schema) as conn:
        yield Installation(conn, Protocol(settings.schema), Reading(settings.schema))
