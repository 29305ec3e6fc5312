"""The text of a verb's statement, and which options an enqueue has."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from faultline.call import to_json
from faultline.errors import InvalidArgument

Casts = tuple[str, ...]

# The options of enqueue and enqueue_many; a name that is not here is not an option.
_NAMED_CASTS = {
    "id": "::uuid",  # it may be sent as text
    "queue": "::text",
    "priority": "::int",
    "delay_seconds": "::float8",
    "run_at": "::timestamptz",
    "idempotency_key": "::text",
    "idempotency_keys": "::text[]",
    "headers": "::jsonb",
    "max_attempts": "::int",
    "max_crashes": "::int",
    "lease_seconds": "::float8",
    "backoff_seconds": "::float8",
    "backoff_cap_seconds": "::float8",
    "notify": "::bool",
}


@lru_cache(maxsize=1000)  # far more than there are verbs
def statement(
    schema: str, verb: str, parameters: int, casts: Casts, named: Casts, is_value: bool
) -> str:
    """The call of a function; one that answers with a mere value needs no table around it."""
    marks = [f"%s::{cast}" for cast in casts] + ["%s"] * (parameters - len(casts))
    marks += [f"{name} => %s{_NAMED_CASTS[name]}" for name in named]
    return f"select {'' if is_value else '* from '}{schema}.{verb}({', '.join(marks)})"


def named_options(options: Mapping[str, Any], *, without: set[str]) -> dict[str, Any]:
    """The options as the SQL function takes them; those of its sister are none of its."""
    if not options:
        return {}
    known = [name for name in _NAMED_CASTS if name not in without]
    if unknown := options.keys() - set(known):
        raise InvalidArgument(
            f"unknown option {', '.join(sorted(unknown))}: the options are {', '.join(known)}"
        )
    run_at = options.get("run_at")
    if isinstance(run_at, datetime) and run_at.tzinfo is None:
        raise InvalidArgument(
            f"run_at is {run_at}, without a time zone: say which, with tzinfo=UTC"
        )
    headers = options.get("headers")
    return {**options, "headers": None if headers is None else to_json(headers, "headers")}
