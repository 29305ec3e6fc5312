"""What a handler takes and returns: its parameters, and its payload as JSON and back.

A payload is an object with the arguments that were given, by name; defaults stay in the code. The
context is no argument: the worker passes it. Nothing here talks to a database.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from inspect import Parameter
from typing import Any

from faultline.context import Context
from faultline.conversion import AS_IT_IS, Form, form_of, resolved
from faultline.errors import InvalidArgument, WrongArguments
from faultline.plain import Misfit, described, plain

_PLAIN = "give plain JSON (dict with str keys, list, str, int, float, bool, None)"
_CONVERTIBLE = "a pydantic model, dataclass, UUID, datetime, date, Decimal or Enum"


class Arguments:
    """The parameters of one task's handler."""

    def __init__(
        self, task: str, handler: Callable[..., Any], local: Mapping[str, Any] | None = None
    ) -> None:
        self.task = task
        signature = _signature(handler)
        names = getattr(inspect.unwrap(handler), "__globals__", {})
        written = {p.name: _written(p) for p in signature.parameters.values() if _annotated(p)}
        hints = resolved({**written, "return": signature.return_annotation}, names, local)
        parameters = list(signature.parameters.values())
        first = parameters[0] if parameters else None
        self.wants_context = first is not None and _is_context(
            hints.get(first.name), written.get(first.name)
        )
        if first is not None:
            self._refuse_first(first)
        self._context = first.name if first is not None and self.wants_context else None
        taken = parameters[1:] if self.wants_context else parameters
        self._refuse(taken)
        self._unresolved = written.keys() - hints.keys()
        self._any_name = next((p.name for p in taken if p.kind is Parameter.VAR_KEYWORD), None)
        named = [p for p in taken if p.kind is not Parameter.VAR_KEYWORD]
        self._positional = [p.name for p in named if p.kind is not Parameter.KEYWORD_ONLY]
        self.required = [p.name for p in named if p.default is Parameter.empty]
        self._forms = {p.name: _form(p, hints) for p in named}
        self._other = form_of(hints[self._any_name]) if self._any_name in hints else AS_IT_IS
        self._result = form_of(hints["return"]) if "return" in hints else AS_IT_IS

    # ── there ────────────────────────────────────────────────────────────────────────────────────

    def dump(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The payload for a call with these arguments, or WrongArguments or InvalidArgument."""
        given = self._named(args, kwargs) if args else kwargs
        forms = self._forms
        if given.keys() == forms.keys():  # the usual case, in short: no name is wrong or missing
            try:
                return {name: forms[name].dump(value) for name, value in given.items()}
            except (Misfit, RecursionError):
                pass  # below it is said which, and why
        self._check_names(given)
        return {name: self._convert(name, "dump", value) for name, value in given.items()}

    def dump_result(self, value: Any) -> Any:
        """What the handler returned, as JSON: by what it is, whatever the annotation says."""
        try:
            return plain(value)
        except (Misfit, RecursionError) as error:
            advice = f": return plain JSON, or {_CONVERTIBLE}" if _is_foreign(error) else ""
            if inspect.iscoroutine(value):
                value.close()
                advice = ": its handler is an async function behind a wrapper that is not async"
            said = f"the result of task {self.task!r}{described(error)}{advice}"
            raise InvalidArgument(said) from error

    # ── and back ─────────────────────────────────────────────────────────────────────────────────

    def load(self, payload: Any) -> dict[str, Any]:
        """The keyword arguments for the handler, or InvalidArgument if the payload is not its."""
        if not isinstance(payload, dict):
            raise WrongArguments(
                f"the payload for task {self.task!r} is {_json_name(payload)}, it must be an "
                "object with the arguments by name"
            )
        if not payload and not self.required:
            return {}
        forms = self._forms
        if payload.keys() == forms.keys():  # as in dump
            with suppress(Misfit, RecursionError):
                return {name: forms[name].load(value) for name, value in payload.items()}
        self._check_names(payload)
        return {name: self._convert(name, "load", value) for name, value in payload.items()}

    def load_result(self, value: Any) -> Any:
        """A stored result, by the annotation of the return value."""
        if value is None:
            return None
        try:
            return self._result.load(value)
        except (Misfit, RecursionError) as error:
            raise InvalidArgument(
                f"the result of task {self.task!r}{described(error)}, says its annotation; "
                "`status().result` has it as it is stored"
            ) from error

    # ── checks ───────────────────────────────────────────────────────────────────────────────────

    def _named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if len(args) > len(self._positional):
            raise WrongArguments(
                f"task {self.task!r} takes {len(self._positional)} arguments by position, "
                f"{len(args)} were given"
            )
        given = dict(zip(self._positional, args, strict=False))
        if twice := given.keys() & kwargs.keys():
            raise WrongArguments(f"task {self.task!r} got {_names(twice)} twice")
        return {**given, **kwargs}

    def _check_names(self, given: Mapping[str, Any]) -> None:
        if missing := [name for name in self.required if name not in given]:
            raise WrongArguments(f"task {self.task!r} is missing {_names(missing)}")
        for name in given:
            if name in self._forms:
                continue
            if not isinstance(name, str):
                raise WrongArguments(f"task {self.task!r} got {name!r} for a name")
            if self._any_name is None or name == self._context:
                takes = f"it takes {_names(self._forms)}" if self._forms else "it takes none"
                raise WrongArguments(f"task {self.task!r} has no argument {name!r}: {takes}")

    def _convert(self, name: str, way: str, value: Any) -> Any:
        form = self._forms.get(name, self._other)
        try:
            return getattr(form, way)(value)
        except (Misfit, RecursionError) as error:
            said = f"task {self.task!r}: argument {name!r}{described(error)}"
            if isinstance(error, Misfit) and error.kind == "type":
                raise WrongArguments(said) from error
            if _is_foreign(error) and name in self._unresolved:
                said += ", and the names in its annotation could not be found at run time"
            if _is_foreign(error):
                said += f": {_PLAIN}, or annotate the parameter as {_CONVERTIBLE}"
            raise InvalidArgument(said) from error

    def _refuse_first(self, first: Parameter) -> None:
        if first.name in ("self", "cls") and not self.wants_context:
            raise InvalidArgument(
                f"task {self.task!r} is a method: a worker has no object to call it on; register "
                "a plain function"
            )
        if self.wants_context and first.kind not in _BY_POSITION:
            raise InvalidArgument(
                f"task {self.task!r} takes its context by keyword only: put {first.name!r} first, "
                "before any *"
            )

    def _refuse(self, parameters: list[Parameter]) -> None:
        for parameter in parameters:
            if parameter.kind is Parameter.POSITIONAL_ONLY:
                why = "can be given by position only: remove the / from the parameters"
            elif parameter.kind is Parameter.VAR_POSITIONAL:
                why = "takes any number of positions: take one list instead"
            else:
                continue
            raise InvalidArgument(
                f"task {self.task!r} cannot be stored: arguments are kept by name, but "
                f"{parameter.name!r} {why}"
            )


_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def _annotated(parameter: Parameter) -> bool:
    return parameter.annotation is not Parameter.empty


def _form(parameter: Parameter, hints: Mapping[str, Any]) -> Form:
    if parameter.name not in hints:
        return AS_IT_IS
    form = form_of(hints[parameter.name])
    if parameter.default is None:  # `x: int = None` is often written, and None then often given
        return Form(_unless_none(form.dump), _unless_none(form.load))
    return form


def _unless_none(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _signature(handler: Callable[..., Any]) -> inspect.Signature:
    """From Python 3.14 on annotations are looked at late, and may have names that are not there."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(handler, annotation_format=Format.FORWARDREF)
    return inspect.signature(handler)


def _written(parameter: Parameter) -> Any:
    """Its annotation; as text where it is a name that is not there."""
    annotation = parameter.annotation
    return annotation.__forward_arg__ if isinstance(annotation, typing.ForwardRef) else annotation


def _is_context(hint: Any, written: Any) -> bool:
    """Whether an annotation means the context; one that cannot be resolved is told by its name."""
    if hint is None and isinstance(written, str):
        members = written.strip("'\" ").split("|")
        return any(member.strip().rpartition(".")[2] == "Context" for member in members)
    members = [hint, *typing.get_args(hint)] if _is_alternative(hint) else [hint]
    return any(isinstance(member, type) and issubclass(member, Context) for member in members)


def _is_alternative(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType, typing.Annotated)


def _is_foreign(error: Misfit | RecursionError) -> bool:
    return isinstance(error, Misfit) and error.kind == "foreign"


def _names(names: Any) -> str:
    found = [repr(name) for name in sorted(names)] if isinstance(names, set) else map(repr, names)
    listed = ", ".join(found)
    return f"the argument {listed}" if "," not in listed else f"the arguments {listed}"


def _json_name(value: Any) -> str:
    names = {list: "an array", str: "text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")
