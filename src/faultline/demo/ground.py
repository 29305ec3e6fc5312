"""Where it is played: a database that ends with the block, and the shop's own table in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from faultline.config import Settings
from faultline.connect import connect
from faultline.demo.shop import SETUP
from faultline.launcher import Server
from faultline.migrate import migrate


@contextmanager
def database(settings: Settings) -> Iterator[str]:
    """The user's database, or an embedded server that ends with this block."""
    if settings.database_url is not None:
        yield settings.database_url
        return
    with Server.temporary(binaries=settings.binaries, options={"max_connections": "400"}) as server:
        yield server.url


@contextmanager
def shop(settings: Settings) -> Iterator[str]:
    """A database with Faultline and the shop's own table in it; the table goes again."""
    with database(settings) as url:
        with connect(url, schema=None) as conn:
            migrate(conn, settings.schema)
            conn.execute(SETUP)
        yield url
        with connect(url, schema=None) as conn:
            conn.execute("drop schema faultline_demo cascade")
