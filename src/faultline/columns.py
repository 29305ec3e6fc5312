"""Columns of attempts as PostgreSQL's binary arrays: a tenth of what adapting a list costs."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from psycopg import adapters
from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap, Dumper
from psycopg.pq import Format

_HEADER = struct.Struct(
    ">iiiii"
)  # dimensions, has NULLs, type of the elements, length, first index
_UUID, _UUIDS, _INT8, _INT8S = 2950, 2951, 20, 1016
_SIXTEEN, _EIGHT = struct.pack(">i", 16), struct.pack(">i", 8)


class Column:
    """An array, ready to be sent."""

    __slots__ = ("data",)
    data: bytes


class UuidColumn(Column):
    """A uuid[], made of the 16 bytes of each."""

    __slots__ = ("_blocks",)

    def __init__(self, blocks: Sequence[bytes]) -> None:
        self._blocks = blocks
        elements = _SIXTEEN + _SIXTEEN.join(blocks)
        self.data = _HEADER.pack(1, 0, _UUID, len(blocks), 1) + elements

    @property
    def values(self) -> list[UUID]:
        """For drivers that want text."""
        return [UUID(bytes=block) for block in self._blocks]


class Int8Column(Column):
    """A bigint[]."""

    __slots__ = ()

    def __init__(self, values: Sequence[int]) -> None:
        first, count = values[0], len(values)
        if values.count(first) == count:  # as the tokens of jobs that were never claimed before
            elements = (_EIGHT + first.to_bytes(8, "big", signed=True)) * count
        else:
            each = [value.to_bytes(8, "big", signed=True) for value in values]
            elements = _EIGHT + _EIGHT.join(each)
        self.data = _HEADER.pack(1, 0, _INT8, count, 1) + elements


class _Ready(Dumper):
    format = Format.BINARY

    def dump(self, obj: Column) -> Buffer:
        return obj.data


class _UuidsReady(_Ready):
    oid = _UUIDS


class _Int8sReady(_Ready):
    oid = _INT8S


def make_sendable(known: AdaptersMap) -> None:
    """A connection knows what was known at its first statement: an older one has to be told."""
    known.register_dumper(UuidColumn, _UuidsReady)
    known.register_dumper(Int8Column, _Int8sReady)


make_sendable(adapters)


def uuids(ids: Sequence[UUID] | UuidColumn) -> Any:
    """As a column, or as they are if they are not all ids: then the server says so."""
    if isinstance(ids, UuidColumn):
        return ids
    try:
        return UuidColumn([job_id.bytes for job_id in ids]) if ids else list(ids)
    except (AttributeError, TypeError):
        return list(ids)


def columns(attempts: Sequence[tuple[UUID, int]]) -> tuple[Any, Any]:
    """Ids and tokens, as columns; or as they are, in the same way. What else is in a tuple does not
    matter: a whole lease will do."""
    ids, tokens = [attempt[0] for attempt in attempts], [attempt[1] for attempt in attempts]
    if not ids:
        return ids, tokens
    try:
        return UuidColumn([job_id.int.to_bytes(16, "big") for job_id in ids]), Int8Column(tokens)
    except (AttributeError, TypeError, OverflowError):
        return ids, tokens
