"""A crowd: many connections that all make the same call at the same moment."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from psycopg import Connection

from faultline.call import Call
from faultline.connect import connect

T = TypeVar("T")


class Crowd:
    """So many sessions, opened once."""

    def __init__(self, url: str, schema: str, size: int) -> None:
        self._threads = ThreadPoolExecutor(size)
        self._size = size
        self._connections: list[Connection[Any]] = [
            connect(url, schema=schema) for _ in range(size)
        ]

    def run(self, call: Call[T]) -> list[T]:
        """All at once; what each was answered."""
        start = threading.Barrier(self._size)

        def one(conn: Connection[Any]) -> T:
            start.wait(30)
            return call.run(conn)

        return list(self._threads.map(one, self._connections))

    def close(self) -> None:
        """They go home."""
        self._threads.shutdown()
        for conn in self._connections:
            conn.close()
