"""A handler's parameters: which names a payload has, who gets the context, what cannot be a task.

No database here: wrong arguments have to be refused before one is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import pytest

from faultline import InvalidArgument, WrongArguments
from faultline.arguments import Arguments
from faultline.context import Context

if TYPE_CHECKING:
    from nowhere import Missing

ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")


def handler(ctx: Context, order_id: int, note: str = "", *, urgent: bool = False) -> None: ...


@pytest.mark.parametrize(
    ("args", "kwargs", "payload"),
    [
        ((7,), {}, {"order_id": 7}),
        ((7, "n"), {}, {"order_id": 7, "note": "n"}),
        ((7,), {"urgent": True}, {"order_id": 7, "urgent": True}),
        ((), {"note": "n", "order_id": 7}, {"order_id": 7, "note": "n"}),
    ],
)
def test_a_payload_has_the_arguments_that_were_given_and_no_defaults(
    args: tuple[Any, ...], kwargs: dict[str, Any], payload: dict[str, Any]
) -> None:
    assert Arguments("charge", handler).dump(args, kwargs) == payload


@pytest.mark.parametrize(
    ("args", "kwargs", "sentence"),
    [
        ((), {}, "task 'charge' is missing the argument 'order_id'"),
        ((7,), {"ordr": 1}, "task 'charge' has no argument 'ordr': it takes the arguments "),
        ((7,), {"order_id": 8}, "task 'charge' got the argument 'order_id' twice"),
        ((7, "n", True), {}, "takes 2 arguments by position, 3 were given"),
        ((7,), {"ctx": 1}, "task 'charge' has no argument 'ctx'"),
    ],
)
def test_wrong_names_are_a_type_error_with_a_sentence(
    args: tuple[Any, ...], kwargs: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(TypeError, match="charge") as caught:
        Arguments("charge", handler).dump(args, kwargs)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("payload", "sentence"),
    [
        ([1], "the payload for task 'charge' is an array, it must be an object"),
        (7, "the payload for task 'charge' is a number"),
        (None, "the payload for task 'charge' is null"),
        ({}, "task 'charge' is missing the argument 'order_id'"),
        ({"order_id": "x"}, "task 'charge': argument 'order_id' is 'x', it must be int"),
        ({"order_id": 1, "gone": 2}, "task 'charge' has no argument 'gone'"),
    ],
)
def test_a_payload_that_is_not_the_handlers_is_refused_with_a_sentence(
    payload: Any, sentence: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Arguments("charge", handler).load(payload)
    assert sentence in str(caught.value)


def test_any_further_names_are_converted_and_passed_but_never_over_the_context() -> None:
    def keywords(ctx: Context, **ids: UUID) -> None: ...

    arguments = Arguments("charge", keywords)
    payload = arguments.dump((), {"a": ID})
    assert payload == {"a": str(ID)}
    assert arguments.load(payload) == {"a": ID}
    with pytest.raises(WrongArguments, match="has no argument 'ctx'"):
        arguments.load({"ctx": str(ID)})


# ── the context, and names that cannot be found ──────────────────────────────────────────────────


def with_context(ctx: Context, x: int) -> None: ...


def with_none(ctx: Context | None, x: int) -> None: ...


def without(x: int) -> None: ...


def nothing() -> None: ...


def later(x: int, ctx: Context) -> None: ...


def several(ctx: list[Context]) -> None: ...


def noted(ctx: Annotated[Context, "a note"]) -> None: ...


def hidden(ctx: Context, x: Missing, y: UUID) -> None: ...


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (with_context, True),
        (with_none, True),
        (hidden, True),
        (without, False),
        (nothing, False),
        (later, False),
        (several, False),
        (noted, True),
        (lambda ctx: ctx, False),
    ],
)
def test_only_a_first_parameter_annotated_context_gets_the_context(
    function: Callable[..., Any], wanted: bool
) -> None:
    assert Arguments("work", function).wants_context is wanted


def test_a_context_that_only_the_type_checker_imports_is_told_by_its_name(tmp_path: Any) -> None:
    source = """
from __future__ import annotations
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import faultline
    from faultline import Context
def plain(ctx: Context, x: int): ...
def dotted(ctx: faultline.Context, x: int): ...
def quoted(ctx: "Context", x: int): ...
def optional(ctx: Context | None, x: int): ...
def other(ctx: NotContext, x: int): ...
"""
    names: dict[str, Any] = {}
    exec(compile(source, "module.py", "exec"), names)
    found = {
        name: Arguments(name, names[name]).wants_context
        for name in ("plain", "dotted", "quoted", "optional", "other")
    }
    assert found == {
        "plain": True, "dotted": True, "quoted": True, "optional": True, "other": False,
    }  # fmt: skip


def test_a_name_that_cannot_be_found_costs_only_its_own_conversion() -> None:
    arguments = Arguments("work", hidden)
    assert arguments.load(arguments.dump(({"a": 1}, ID), {})) == {"x": {"a": 1}, "y": ID}
    with pytest.raises(InvalidArgument, match="could not be found at run time"):
        arguments.dump((), {"x": object(), "y": ID})


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (
            lambda *numbers: numbers,
            "'numbers' takes any number of positions: take one list",
        ),
        (eval("lambda a, /: 0"), "'a' can be given by position only: remove the /"),
        (lambda self: self, "is a method: a worker has no object to call it on"),
    ],
)
def test_parameters_that_cannot_be_kept_by_name_are_refused_at_once(
    function: Callable[..., Any], sentence: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Arguments("work", function)
    assert "task 'work'" in str(caught.value)
    assert sentence in str(caught.value)


def test_a_context_by_keyword_only_is_refused_and_one_by_position_only_is_not() -> None:
    def keyword_only(*, ctx: Context, x: int) -> None: ...

    def position_only(ctx: Context, /, x: int) -> None: ...

    assert Arguments("work", position_only).dump((1,), {}) == {"x": 1}
    with pytest.raises(InvalidArgument, match="takes its context by keyword only"):
        Arguments("work", keyword_only)
