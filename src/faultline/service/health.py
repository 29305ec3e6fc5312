"""Whether the database answers and its schema fits: asked by a connection of its own.

A pool would say so only after it has given up waiting. The answer is good for a second, so that
whoever asks without a token cannot have the server open connections without end.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from psycopg.conninfo import make_conninfo

from faultline.connect import connect, readable_url
from faultline.errors import FaultlineError

if TYPE_CHECKING:
    from faultline.app import App

GOOD_FOR_SECONDS = 1.0
CONNECT_SECONDS = 3


class Health:
    """The last answer."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._until = 0.0
        self._wrong: FaultlineError | None = None

    def check(self) -> None:
        """Returns if all is well; raises DatabaseUnavailable, SchemaMismatch or another."""
        with self._lock:
            if time.monotonic() >= self._until:
                self._wrong = self._look()
                self._until = time.monotonic() + GOOD_FOR_SECONDS
            wrong = self._wrong
        if wrong is not None:
            raise wrong.with_traceback(None)

    def _look(self) -> FaultlineError | None:
        try:
            given = readable_url(self._app.url)
            url = make_conninfo("", **{"connect_timeout": CONNECT_SECONDS, **given})
            connect(url, schema=self._app.schema).close()
        except FaultlineError as error:
            return error
        return None
