"""Which database a command works on: FAULTLINE_DATABASE_URL, else the embedded server if it runs.

Nothing here starts a server, and nothing is imported before it is needed: `faultline --help` must
not wait for a driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.config import Settings
from faultline.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.rows import TupleRow


def database_url(settings: Settings) -> str:
    """The URL to use, or DatabaseUnavailable saying what to do."""
    if settings.database_url is not None:
        return settings.database_url
    from faultline.launcher import Server

    for ephemeral in (True, False):
        server = Server(settings.home, binaries=settings.binaries, ephemeral=ephemeral)
        if server.is_running():
            return server.url
    raise DatabaseUnavailable(
        "there is no database to work on: set FAULTLINE_DATABASE_URL, or start the embedded server "
        "with `faultline db start`"
    )


def open_database(settings: Settings) -> Connection[TupleRow]:
    """An autocommit connection to it; the caller closes it."""
    url = database_url(settings)
    from faultline.connect import connect

    return connect(url, schema=None)
