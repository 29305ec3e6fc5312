"""Which database to work on: the one that was named, else the embedded server if it runs.

Nothing here starts a server or opens a connection, and the launcher is imported only when there is
no URL: `import faultline` and `faultline --help` must not wait for it.
"""

from __future__ import annotations

from faultline.config import Settings
from faultline.errors import DatabaseUnavailable


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
        "with `faultline dev module:app` or `faultline db start`"
    )
