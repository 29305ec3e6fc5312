"""A child passes on what it has observed: a line about once a second, and one at its end.

The child writes in a thread of its own: a parent that is stopped reads nothing, and nobody here
waits for it. The parent takes whole lines only, so one that a kill cut in two is lost; it has then
what the child had a second ago.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress

from faultline.observer import Observer

EVERY_SECONDS = 1.0
LAST_SECONDS = 1.0  # for the last line; a parent that does not read is not waited for


class Sender:
    """The child's end."""

    def __init__(self, observer: Observer, pipe: int) -> None:
        self._observer = observer
        self._pipe = pipe
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._send_on, name="faultline-words", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send what is left, but wait only a moment for it."""
        self._ending.set()
        self._thread.join(LAST_SECONDS)

    def _send_on(self) -> None:
        with suppress(OSError):  # the parent is gone
            while not self._ending.wait(EVERY_SECONDS):
                self._send()
            self._send()

    def _send(self) -> None:
        left = memoryview(self._observer.words())
        while left:
            left = left[os.write(self._pipe, left) :]


class Hearing:
    """The parent's end of one child's pipe."""

    def __init__(self, observer: Observer, child: str) -> None:
        self._observer = observer
        self._child = child
        self._read, self.write = os.pipe()
        os.set_blocking(self._read, False)
        self._begun = b""  # of a line
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read, self._hear)

    def started(self) -> None:
        """The child has its end: it is the only one from now on."""
        os.close(self.write)

    def close(self) -> None:
        """The child has ended: take what is left. Not until the end of the pipe: a process that a
        handler has left behind may hold it."""
        self._hear()
        self._loop.remove_reader(self._read)
        os.close(self._read)
        self._observer.lost(self._child)

    def _hear(self) -> None:
        while True:
            try:
                read = os.read(self._read, 1 << 16)
            except BlockingIOError:
                return
            if not read:
                self._loop.remove_reader(self._read)
                return
            *lines, self._begun = (self._begun + read).split(b"\n")
            for line in lines[-1:]:  # each has all of those before it
                with suppress(ValueError, KeyError, TypeError):  # a child of another version
                    self._observer.heard(self._child, line)
