"""How the rows that a verb answers with are read; the other half of a `Call`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any, TypeVar

from faultline.call import Row, decoded
from faultline.jobs import Lease, Reclaimed, Reconciled, Retained, Stale

T = TypeVar("T")


def one(rows: list[Row]) -> Any:
    return rows[0][0]


def nothing(rows: list[Row]) -> None:
    """For verbs that answer by not raising."""


def column(rows: list[Row]) -> list[Any]:
    return [row[0] for row in rows]


def each(kind: Callable[..., T]) -> Callable[[list[Row]], list[T]]:
    return lambda rows: [kind(*row) for row in rows]


def swapped(rows: list[Row]) -> tuple[list[Stale], list[Lease]]:
    refused, claimed = rows[0][:6], rows[0][6:]
    stale = [Stale(*row) for row in zip(*refused, strict=True)] if refused[0] else []
    return stale, leases([claimed])


def reconciled(rows: list[Row]) -> Reconciled:
    *reclaimed, promoted, next_seconds = rows[0]
    columns = zip(*reclaimed, strict=True) if reclaimed[0] else ()
    return Reconciled([Reclaimed(*row) for row in columns], promoted, next_seconds)


def retained(rows: list[Row]) -> Retained:
    return Retained(*rows[0])


def leases(rows: list[Row]) -> list[Lease]:
    ids, tokens, *columns, payloads, heads, last_chances = rows[0]
    if not ids:
        return []
    headers = decoded(heads) if heads else [None] * len(ids)
    last = last_chances or [False] * len(ids)
    leased = zip(ids, tokens, *columns, decoded(payloads), headers, last, strict=True)
    return list(map(tuple.__new__, repeat(Lease), leased))  # what Lease._make does, without a frame


def leased(rows: list[Row]) -> list[Lease]:
    """The one job, or none."""
    job_id, token, *columns, payload, headers, last_chance = rows[0]
    if job_id is None:
        return []
    arguments, *heads = decoded(f"[{payload}]" if headers is None else f"[{payload},{headers}]")
    headers = heads[0] if heads else None
    return [Lease._make((job_id, token, *columns, arguments, headers, last_chance))]
