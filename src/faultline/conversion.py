"""Values on their way through JSON: how a value of an annotated type is dumped and loaded.

A `Form` is made once from an annotation: pydantic models, dataclasses, UUID, datetime, date,
Decimal, Enum, and lists, tuples, dicts and unions of these are converted; str, int, float, bool,
list and dict are checked; anything else has to be JSON as it is. Unions take the first member that
fits. What has the JSON shape already is accepted too, if it can be loaded: producers by name send
that.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

from faultline.plain import Misfit, as_it_is, at, first_line, is_model, plain, plain_key, plain_text


class Form(NamedTuple):
    """How values of one type travel; both raise Misfit."""

    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


AS_IT_IS = Form(as_it_is, _same)


# ── by annotation ────────────────────────────────────────────────────────────────────────────────


def form_of(annotation: Any) -> Form:
    """The form of an annotation whose names are resolved; one that has no end is not converted."""
    try:
        return _form_of(annotation)
    except RecursionError:  # type Tree = list[Tree]
        return AS_IT_IS


def _form_of(annotation: Any) -> Form:
    if _mentions_model(annotation):
        return _model_form(annotation)
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return form_of(typing.get_args(annotation)[0])
    if hasattr(annotation, "__supertype__"):  # NewType
        return form_of(annotation.__supertype__)
    if type(annotation).__name__ == "TypeAliasType":  # type X = …
        return form_of(annotation.__value__)
    if origin in (typing.Union, types.UnionType):
        return _union_form([form_of(member) for member in typing.get_args(annotation)])
    kind, members = origin or annotation, typing.get_args(annotation)
    if kind in (list, Sequence):
        return _list_form(form_of(members[0]) if members else AS_IT_IS)
    if kind is tuple:
        return _tuple_form(members)
    if kind in (dict, Mapping):
        return _dict_form(*(form_of(member) for member in members))
    if kind in (None, type(None)):
        return _checked(types.NoneType, "None")
    if isinstance(kind, type):
        return _class_form(kind)
    return AS_IT_IS


def _class_form(kind: type) -> Form:
    if issubclass(kind, Enum):
        return _enum_form(kind)
    if kind in _TEXTS:
        return _text_form(kind, *_TEXTS[kind])
    if dataclasses.is_dataclass(kind):
        return _dataclass_form(kind)
    return _SCALARS.get(kind, AS_IT_IS)


def _checked(kinds: Any, name: str, load: Callable[[Any], Any] = _same) -> Form:
    """A JSON type: only its kind is looked at."""

    def check(value: Any) -> Any:
        if isinstance(value, kinds):
            return value
        raise Misfit(f"is {_short(value)}, it must be {name}")

    return Form(lambda value: as_it_is(check(value)), lambda value: check(load(value)))


def _integral(value: Any) -> Any:
    return int(value) if type(value) is float and value.is_integer() else value


def _floating(value: Any) -> Any:
    try:
        return float(value) if type(value) is int else value
    except OverflowError as error:
        raise Misfit("is too large for float") from error


_SCALARS: dict[type, Form] = {
    str: _checked(str, "str"),
    int: _checked(int, "int", _integral),
    float: _checked((int, float), "float", _floating),
    bool: _checked(bool, "bool"),
}
_TEXTS: dict[type, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    UUID: (str, UUID),
    datetime: (datetime.isoformat, datetime.fromisoformat),
    date: (date.isoformat, date.fromisoformat),
    Decimal: (str, Decimal),
}


def _text_form(kind: type, dump: Callable[[Any], str], read: Callable[[str], Any]) -> Form:
    def load(value: Any) -> Any:
        try:
            if isinstance(value, str) or (kind is Decimal and type(value) in (int, float)):
                return read(str(value))
        except (ValueError, InvalidOperation):
            pass
        raise Misfit(f"is {_short(value)}, it must be {kind.__name__}")

    def dumped(value: Any) -> Any:
        if isinstance(value, kind) and not (kind is date and isinstance(value, datetime)):
            return dump(value)
        load(value)
        return value

    return Form(dumped, load)


def _enum_form(kind: type[Enum]) -> Form:
    def load(value: Any) -> Any:
        for member in kind:
            if plain(member.value) == value:
                return member
        raise Misfit(f"is {_short(value)}, it must be the value of a {kind.__name__}")

    def dump(value: Any) -> Any:
        return plain((value if isinstance(value, kind) else load(value)).value)

    return Form(dump, load)


def _list_form(item: Form) -> Form:
    def walk(value: Any, each: Callable[[Any], Any]) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise Misfit(f"is {_short(value)}, it must be a list")
        return [at("[%r]", n, each, part) for n, part in enumerate(value)]

    return Form(lambda value: walk(value, item.dump), lambda value: walk(value, item.load))


def _tuple_form(members: tuple[Any, ...]) -> Form:
    if not members or members[-1] is Ellipsis:
        items = _list_form(form_of(members[0]) if members else AS_IT_IS)
        return Form(items.dump, lambda value: tuple(items.load(value)))
    forms = [form_of(member) for member in members]

    def walk(value: Any, way: str) -> list[Any]:
        if not isinstance(value, list | tuple) or len(value) != len(forms):
            raise Misfit(f"is {_short(value)}, it must be a tuple of {len(forms)}")
        parts = enumerate(zip(forms, value, strict=True))
        return [at("[%r]", n, getattr(form, way), part) for n, (form, part) in parts]

    return Form(lambda value: walk(value, "dump"), lambda value: tuple(walk(value, "load")))


def _dict_form(key: Form = AS_IT_IS, item: Form = AS_IT_IS) -> Form:
    def walk(value: Any, name: Callable[[Any], Any], each: Callable[[Any], Any]) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise Misfit(f"is {_short(value)}, it must be a dict")
        return {at("[%r]", k, name, k): at("[%r]", k, each, v) for k, v in value.items()}

    def dump_key(given: Any) -> str:
        if isinstance(given, str) and key is not AS_IT_IS:
            load_key(given)  # has its JSON shape already, or it does not fit
            return plain_text(given)
        return plain_key(key.dump(given), key is not AS_IT_IS)

    def load_key(text: str) -> Any:
        try:
            return key.load(text)
        except Misfit:
            if not text.removeprefix("-").isdecimal():
                raise
            return key.load(int(text))

    return Form(
        lambda value: walk(value, dump_key, item.dump),
        lambda value: walk(value, load_key, item.load),
    )


def _union_form(members: Sequence[Form]) -> Form:
    def first(value: Any, way: str) -> Any:
        misfits = []
        for form in members:
            try:
                return getattr(form, way)(value)
            except Misfit as misfit:
                misfits.append(misfit)
        raise max(misfits, key=lambda misfit: len(misfit.path))  # who came furthest knows best

    return Form(lambda value: first(value, "dump"), lambda value: first(value, "load"))


@functools.cache
def _dataclass_form(kind: Any) -> Form:
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}

    @functools.cache  # on first use: a class may mention itself, or one that is defined later
    def forms() -> dict[str, Form]:
        hints: dict[str, Any] = {}
        for owner in reversed(kind.__mro__):
            names = vars(sys.modules.get(owner.__module__, types))
            hints |= resolved(inspect.get_annotations(owner), names)
        return {name: form_of(hints.get(name, Any)) for name in fields}

    def dump(value: Any) -> Any:
        if not isinstance(value, kind):
            load(value)
            return as_it_is(value)
        parts = forms().items()
        return {name: at(".%s", name, form.dump, getattr(value, name)) for name, form in parts}

    def load(value: Any) -> Any:
        if not isinstance(value, dict):
            raise Misfit(f"is {_short(value)}, it must be {kind.__name__}")
        if unknown := value.keys() - fields.keys():
            raise Misfit(f"does not fit {kind.__name__}: it has no {', '.join(sorted(unknown))}")
        parts = {name: at(".%s", name, forms()[name].load, part) for name, part in value.items()}
        try:
            return kind(**parts)
        except (TypeError, ValueError) as error:
            raise Misfit(f"does not fit {kind.__name__} ({error})") from error

    return Form(dump, load)


# ── pydantic ─────────────────────────────────────────────────────────────────────────────────────


def _mentions_model(annotation: Any) -> bool:
    return is_model(annotation) or any(map(_mentions_model, typing.get_args(annotation)))


def _model_form(annotation: Any) -> Form:
    """pydantic converts the whole annotation, so that its unions and constraints hold."""

    @functools.cache  # on first use: a model may mention one that is defined later
    def adapter() -> Any:
        from pydantic import TypeAdapter

        return TypeAdapter(annotation)

    def load(value: Any) -> Any:
        try:
            return adapter().validate_json(json.dumps(as_it_is(value)))
        except (ValueError, TypeError, NameError) as error:
            raise Misfit(f"does not fit {name_of(annotation)} ({_reason(error)})") from error

    def dump(value: Any) -> Any:
        try:
            checked = adapter().validate_python(value)
        except (ValueError, TypeError, NameError):
            checked = load(value)
        try:
            dumped = adapter().dump_python(checked, mode="json", by_alias=True, round_trip=True)
        except ValueError as error:
            raise Misfit(f"is not JSON ({_reason(error)})", "foreign") from error
        return as_it_is(dumped)

    return Form(dump, load)


# ── names and words ──────────────────────────────────────────────────────────────────────────────


def resolved(
    annotations: Mapping[str, Any], names: dict[str, Any], local: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The annotations without quotes; one whose names cannot be found is left out."""
    found: dict[str, Any] = {}
    for name, annotation in annotations.items():
        holder = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            found |= typing.get_type_hints(holder, names, dict(local or {}), include_extras=True)
        except Exception:  # noqa: S112  # whatever evaluating a stranger's annotation may raise
            continue
    return found


def name_of(annotation: Any) -> str:
    """The annotation as its author would write it."""
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _reason(error: Exception) -> str:
    """The first thing that pydantic found wrong, on one line."""
    found = error.errors() if hasattr(error, "errors") else []
    if not found:
        return first_line(error)
    place = ".".join(str(step) for step in found[0]["loc"])
    return f"{place}: {found[0]['msg']}" if place else str(found[0]["msg"])


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
