"""As much of PostgreSQL's wire protocol as the proxy needs: which statement a message runs, and in
whose fenced transaction it does.

A statement is a Query message, with its values in the text (a fenced block's first and last, and a
driver's own COMMIT), or a Bind to what a Parse named before: drivers send the text once, and
afterwards only the name.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from uuid import UUID

Attempt = tuple[UUID, int]
FENCES = ("faultline.fence(", "faultline.begin_step(")
GREETINGS = (3, 1234)  # the protocol's version, and the number of every question before it
ENDS = ("COMMIT", "ROLLBACK")
_FENCE = re.compile(r"faultline\.(?:fence|begin_step)\('([0-9a-f-]{32,36})'[^,]*, *(\d+)")


class Requests:
    """What one client has sent so far."""

    def __init__(self) -> None:
        self._left = b""
        self._started = False
        self._foreign = False  # another protocol altogether
        self._texts: dict[bytes, str] = {}
        self._fence: Attempt | None = None

    def take(self, data: bytes) -> Iterator[tuple[bytes, str | None, Attempt | None]]:
        """The messages that are complete by now: its bytes, the statement that it runs if any, and
        the attempt whose fence is open there."""
        self._left += data
        if not (self._started or self._foreign) and len(self._left) >= 8:
            self._foreign = struct.unpack_from("!I", self._left, 4)[0] >> 16 not in GREETINGS
        if self._foreign:
            message, self._left = self._left, b""
            yield message, None, None
        while (size := self._size()) is not None and len(self._left) >= size:
            message, self._left = self._left[:size], self._left[size:]
            if not self._started:  # the startup message, or a question before it
                (code,) = struct.unpack_from("!I", message, 4)
                self._started = code >> 16 == GREETINGS[0]
                yield message, None, None
                continue
            text = self._statement(message)
            yield message, text, self._fence
            if text is not None and last_of(text) in ENDS:
                self._fence = None

    def _size(self) -> int | None:
        start = 1 if self._started else 0
        if len(self._left) < start + 4:
            return None
        return start + int(struct.unpack_from("!I", self._left, start)[0])

    def _statement(self, message: bytes) -> str | None:
        kind, body = message[:1], message[5:]
        if kind == b"Q":
            text = body[:-1].decode()
            if (found := _FENCE.search(text)) is not None:
                self._fence = (UUID(found[1]), int(found[2]))
            return text
        if kind == b"P":
            name, parsed, _ = body.split(b"\0", 2)
            self._texts[name] = parsed.decode()
        if kind != b"B":
            return None
        _, name, rest = body.split(b"\0", 2)
        run = self._texts.get(name, "")
        if any(fence in run for fence in FENCES):
            job_id, token, *_ = _parameters(rest)
            self._fence = (_uuid(job_id), _number(token))
        return run


def last_of(text: str) -> str:
    """The last word of a statement, or of several."""
    return text.rstrip("; ").rpartition(" ")[2].upper()


def _parameters(rest: bytes) -> list[bytes]:
    """Of a Bind, from its formats on."""
    (formats,) = struct.unpack_from("!H", rest)
    at = 2 + 2 * formats
    (count,) = struct.unpack_from("!H", rest, at)
    at += 2
    found = []
    for _ in range(count):
        (size,) = struct.unpack_from("!i", rest, at)
        at += 4
        found.append(rest[at : at + max(size, 0)])
        at += max(size, 0)
    return found


def _uuid(value: bytes) -> UUID:
    return UUID(bytes=value) if len(value) == 16 else UUID(value.decode())


def _number(value: bytes) -> int:
    """As text, which drivers use for casts, or as a binary integer."""
    return int(value) if value.isdigit() else int.from_bytes(value, "big")


def is_answered(answer: bytes) -> bool:
    """Whether the server has said all it has to say: ReadyForQuery is the last message."""
    return answer[-6:-1] == b"Z\0\0\0\x05"
