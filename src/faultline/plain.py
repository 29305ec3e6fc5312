"""Any value as JSON has it, and what is wrong with one that has no JSON.

Stricter than `json.dumps`, which turns the key 1 into "1" and lets NaN pass: what is stored must
come back as it was given. pydantic is never imported here: only what the user has imported is
looked at.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID


class Misfit(Exception):
    """A value does not fit: `path` leads to the part, `why` completes "argument x …"."""

    def __init__(self, why: str, kind: Literal["type", "foreign", "unstorable"] = "type") -> None:
        self.why = why
        self.path = ""
        self.kind = kind  # not of the annotated type; not JSON at all; JSON, but not PostgreSQL's
        super().__init__(why)


def plain(value: Any) -> Any:
    """The value as JSON; what a Form could convert is converted by what it is."""
    if (kind := type(value)) in _READY:
        return value
    if kind is str:
        return plain_text(value)
    if kind is dict:
        return {plain_key(k, True): at("[%r]", k, plain, v) for k, v in value.items()}
    if kind is list:
        return [at("[%r]", n, plain, part) for n, part in enumerate(value)]
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, UUID | Decimal):
        return str(value)
    if isinstance(value, date):  # datetime too
        return value.isoformat()
    if is_model(kind):
        return _dumped(value)
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return {name: at(".%s", name, plain, getattr(value, name)) for name in names}
    return _strictly(value, plain)


def as_it_is(value: Any) -> Any:
    """The value, if it is JSON already."""
    return _strictly(value, as_it_is)


def _strictly(value: Any, each: Callable[[Any], Any]) -> Any:
    if type(value) in _READY:
        return value
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Misfit(f"is {value}, which JSON does not have", "unstorable")
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, dict):
        named = each is plain
        return {plain_key(k, named): at("[%r]", k, each, part) for k, part in value.items()}
    if isinstance(value, list | tuple):
        return [at("[%r]", n, each, part) for n, part in enumerate(value)]
    raise Misfit(f"is of type {type(value).__qualname__}, which is not JSON", "foreign")


_READY = frozenset({type(None), bool, int})


def _dumped(model: Any) -> Any:
    try:
        return as_it_is(model.model_dump(mode="json", by_alias=True, round_trip=True))
    except ValueError as error:
        raise Misfit(f"is not JSON ({first_line(error)})", "foreign") from error


def at(step: str, name: Any, convert: Callable[[Any], Any], part: Any) -> Any:
    """Convert a part; if it does not fit, say where it is."""
    try:
        return convert(part)
    except Misfit as misfit:
        misfit.path = step % (name,) + misfit.path
        raise


def plain_key(key: Any, convert: bool) -> str:
    """A key of an object; `convert`: a number or a known type becomes its text."""
    if isinstance(key, str):
        return plain_text(key)
    name = plain(key) if convert and key is not None and not isinstance(key, bool) else None
    if not isinstance(name, str | int):
        raise Misfit(f"has the key {key!r}, but keys of JSON are text", "foreign")
    return str(name)


def plain_text(value: str) -> str:
    """Text that PostgreSQL's JSON can hold."""
    if "\0" in value:
        raise Misfit(
            "contains the character \\u0000, which PostgreSQL's JSON cannot hold: remove it first",
            "unstorable",
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise Misfit(f"is not Unicode text ({error})", "unstorable") from error
    return str.__str__(value)


def is_model(kind: Any) -> bool:
    """Whether this is a class of pydantic's models."""
    pydantic = sys.modules.get("pydantic")  # nobody has a model who has not imported it
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def first_line(error: Exception) -> str:
    """What it says, without the details that follow."""
    return str(error).partition("\n")[0]


def described(error: Misfit | RecursionError) -> str:
    """What is wrong and where, to follow the name of the thing."""
    if isinstance(error, Misfit):
        return f"{f' at {error.path}' if error.path else ''} {error.why}"
    return " is nested too deeply, or contains itself"
