"""Job ids: UUIDv7, made by the client, so that sending an enqueue again is harmless.

The database accepts an id whose time is near its own clock and otherwise gives out a new one, which
would make a retry a second job. So the time in our ids is the database's: `correct` is told what
its clock says whenever a connection is opened. Nothing here decides about a lease.
"""

from __future__ import annotations

import os
import struct
import time
from uuid import UUID

# Nanoseconds → steps of 1/4096 ms: the 12 bits after the milliseconds keep the order within one.
_STEPS_PER_MS = 4096
_NS_PER_MS = 1_000_000
_STEPS_PER_MINUTE = 60_000 * _STEPS_PER_MS
_HALVES = struct.Struct(">QQ")


class Ids:
    """A source of ids that rise. Without a lock: two threads may share a step, never an id."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()
        self._last_step = 0

    def correct(self, database_seconds: float) -> None:
        """The database's clock says so many seconds since 1970, now."""
        monotonic_ns = time.monotonic_ns()
        self._offset_ns = int(database_seconds * 1e9) - monotonic_ns
        if self._last_step > _step(monotonic_ns + self._offset_ns) + _STEPS_PER_MINUTE:
            self._last_step = 0  # it was the wrong clock's; else ids go on rising

    def __call__(self) -> UUID:
        """The next id."""
        return UUID(self.text())

    def text(self) -> str:
        """The next id as its 32 digits: for who only sends it, a third of what a UUID costs."""
        step = self._last_step + 1
        if step < (now := (time.monotonic_ns() + self._offset_ns) * _STEPS_PER_MS // _NS_PER_MS):
            step = now
        self._last_step = step
        chance = 0b10 << 62 | int.from_bytes(os.urandom(8)) >> 2
        return f"{step // _STEPS_PER_MS:012x}7{step % _STEPS_PER_MS:03x}{chance:016x}"

    def many(self, count: int) -> list[UUID]:
        """The next so many."""
        return [UUID(bytes=block) for block in self.blocks(count)]

    def blocks(self, count: int) -> list[bytes]:
        """As `many`, the 16 bytes of each: for a batch that makes no UUID of them, a µs a job."""
        first = max(self._last_step + 1, _step(time.monotonic_ns() + self._offset_ns))
        self._last_step = first + count - 1
        random = struct.unpack(f">{count}Q", os.urandom(8 * count))
        return list(map(_block, range(first, first + count), random))


def _block(step: int, chance: int) -> bytes:
    time_and_version = (step // _STEPS_PER_MS) << 16 | 0x7000 | step % _STEPS_PER_MS
    return _HALVES.pack(time_and_version, 0b10 << 62 | chance >> 2)


def _step(ns: int) -> int:
    return ns * _STEPS_PER_MS // _NS_PER_MS
