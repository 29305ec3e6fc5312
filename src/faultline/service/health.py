"""Whether the database answers, takes writes, and has a schema that fits.

Asked by a connection of its own, since a pool would say so only after it has given up waiting; in a
thread of its own, since the others may all be waiting for the database. The answer is good for a
second, so that whoever asks without a token cannot have the server open connections without end.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from psycopg.conninfo import make_conninfo

from faultline import conditions
from faultline.connect import connect, readable_url
from faultline.errors import DatabaseUnavailable, FaultlineError

if TYPE_CHECKING:
    from faultline.app import App

GOOD_FOR_SECONDS = 1.0
CONNECT_SECONDS = 3


class Health:
    """The last answer."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._thread = ThreadPoolExecutor(1, "faultline-health")
        self._until = 0.0
        self._wrong: FaultlineError | None = None

    async def check(self) -> None:
        """Returns if all is well; raises DatabaseUnavailable, SchemaMismatch or another."""
        if (wrong := await self.wrong()) is not None:
            raise wrong.with_traceback(None)

    async def wrong(self) -> FaultlineError | None:
        """What is wrong, if anything."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._answer)

    def _answer(self) -> FaultlineError | None:
        if time.monotonic() >= self._until:
            self._wrong = self._look()
            self._until = time.monotonic() + GOOD_FOR_SECONDS
        return self._wrong

    def _look(self) -> FaultlineError | None:
        try:
            given = readable_url(self._app.url)
            url = make_conninfo("", **{"connect_timeout": CONNECT_SECONDS, **given})
            with connect(url, schema=self._app.schema) as conn:
                if not conditions.takes_writes(conn):
                    return DatabaseUnavailable(
                        "the database takes no writes: it is a standby, or read only; connect to "
                        "the primary, with target_session_attrs=read-write and all hosts in the URL"
                    )
        except FaultlineError as error:
            return error
        return None
