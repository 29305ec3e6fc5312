"""Arguments and results through JSON and back: what is converted, what is checked, what is refused.

No database here: an argument that cannot be stored has to be refused before one is asked.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NewType
from uuid import UUID

import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from faultline import InvalidArgument, WrongArguments
from faultline.arguments import Arguments

if TYPE_CHECKING:
    pass

ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
MOMENT = datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
OrderId = NewType("OrderId", int)


class Colour(Enum):
    RED = "red"
    NOTHING = None


class Level(IntEnum):
    LOW = 1


class Word(StrEnum):
    YES = "yes"


@dataclass(frozen=True)
class Line:
    sku: UUID
    price: Decimal
    colour: Colour = Colour.RED


@dataclass
class Order:
    lines: list[Line]
    at: datetime
    parent: Order | None = None
    total: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.total = len(self.lines)


class Address(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    street: str
    since: date = pydantic.Field(alias="movedIn")


class Card(pydantic.BaseModel):
    kind: str = "card"
    number: int


class Cash(pydantic.BaseModel):
    kind: str = "cash"
    coins: list[int]


ADDRESS = Address(street="Main", movedIn=date(2020, 2, 3))
ORDER = Order([Line(ID, Decimal("9.90"))], MOMENT, Order([], MOMENT))


def one_argument(annotation: Any, **default: Any) -> Arguments:
    """A task with the one argument `x` of this annotation."""

    def handler(x: Any) -> None: ...

    if default:
        handler.__defaults__ = (default["default"],)
    handler.__annotations__ = {"x": annotation, "return": annotation}
    return Arguments("charge", handler)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="its annotations are looked at at once")
def test_names_that_only_a_type_checker_finds_need_no_quotes() -> None:
    names: dict[str, Any] = {}
    source = "def handler(ctx: Context, when: Elsewhere, n: int = 1) -> list[Elsewhere]: ..."
    exec(compile(source, "a module", "exec", dont_inherit=True), names)
    arguments = Arguments("charge", names["handler"])
    assert arguments.wants_context
    assert arguments.required == ["when"]
    assert arguments.dump((), {"when": "now"}) == {"when": "now"}


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value, allow_nan=False))


CONVERTED = [
    (int, 7, 7),
    (OrderId, 7, 7),
    (str, "é", "é"),
    (bool, True, True),
    (float, 1.5, 1.5),
    (float, 1e300, 1e300),
    (None, None, None),
    (UUID, ID, str(ID)),
    (datetime, MOMENT, "2030-01-02T03:04:05.000678+00:00"),
    (datetime, MOMENT.replace(tzinfo=None), "2030-01-02T03:04:05.000678"),
    (date, date(2030, 1, 2), "2030-01-02"),
    (Decimal, Decimal("0.10"), "0.10"),
    (Colour, Colour.RED, "red"),
    (Colour, Colour.NOTHING, None),
    (Level, Level.LOW, 1),
    (Word, Word.YES, "yes"),
    (UUID | None, None, None),
    (UUID | None, ID, str(ID)),
    (UUID | int, 7, 7),
    (UUID | int, ID, str(ID)),
    (list[UUID], [ID], [str(ID)]),
    (Sequence[date], [date(2030, 1, 2)], ["2030-01-02"]),
    (tuple[int, ...], (1, 2), [1, 2]),
    (tuple[int, UUID], (1, ID), [1, str(ID)]),
    (tuple[()], (), []),
    (dict[str, Decimal], {"a": Decimal(1)}, {"a": "1"}),
    (Mapping[int, Colour], {-1: Colour.RED}, {"-1": "red"}),
    (dict[UUID, list[date] | None], {ID: None}, {str(ID): None}),
    (dict[Level, int], {Level.LOW: 2}, {"1": 2}),
    (Annotated[UUID, "a note"], ID, str(ID)),
    (dict, {"a": [1, None]}, {"a": [1, None]}),
    (list, [1, "a"], [1, "a"]),
    (Any, {"a": 1}, {"a": 1}),
    (Address, ADDRESS, {"street": "Main", "movedIn": "2020-02-03"}),
    (list[Card | Cash], [Cash(coins=[1])], [{"kind": "cash", "coins": [1]}]),
    (Line, Line(ID, Decimal(1)), {"sku": str(ID), "price": "1", "colour": "red"}),
]


@pytest.mark.parametrize(("annotation", "value", "stored"), CONVERTED, ids=repr)
def test_an_argument_arrives_as_it_was_given(annotation: Any, value: Any, stored: Any) -> None:
    arguments = one_argument(annotation)
    payload = arguments.dump((), {"x": value})
    assert payload == {"x": stored}
    arrived = arguments.load(through_json(payload))["x"]
    assert arrived == value
    assert type(arrived) is type(value)


@pytest.mark.parametrize(("annotation", "value", "stored"), CONVERTED, ids=repr)
def test_a_result_is_read_as_it_was_returned(annotation: Any, value: Any, stored: Any) -> None:
    arguments = one_argument(annotation)
    assert arguments.dump_result(value) == stored
    if value is not Colour.NOTHING:  # a result of null is None, whatever it was
        assert arguments.load_result(through_json(stored)) == value


def test_a_model_with_a_value_that_cannot_be_stored_is_no_result() -> None:
    with pytest.raises(InvalidArgument, match=r"at \['street'\] contains the character"):
        one_argument(Address).dump_result(Address(street="a\0b", movedIn=date(2020, 2, 3)))


def test_dataclasses_within_dataclasses_arrive_whole() -> None:
    arguments = one_argument(Order)
    payload = through_json(arguments.dump((), {"x": ORDER}))
    assert "total" not in payload["x"]  # made anew by __post_init__
    assert arguments.load(payload) == {"x": ORDER}
    assert arguments.load_result(through_json(arguments.dump_result(ORDER))) == ORDER


@pytest.mark.parametrize(
    ("annotation", "stored"), [(a, s) for a, _, s in CONVERTED if a is not None], ids=repr
)
def test_a_producer_without_the_types_may_send_the_json_of_them(
    annotation: Any, stored: Any
) -> None:
    arguments = one_argument(annotation)
    payload = arguments.dump((), {"x": through_json(stored)})
    assert arguments.load(payload) == arguments.load({"x": stored})


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a machine may be busy
@given(
    some.recursive(
        some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False,
        allow_infinity=False) | some.text(some.characters(codec="utf-8", exclude_characters="\0")),
        lambda inner: some.lists(inner) | some.dictionaries(
            some.text(some.characters(codec="utf-8", exclude_characters="\0")), inner),
    )
)  # fmt: skip
def test_json_without_an_annotation_is_left_as_it_is(value: Any) -> None:
    arguments = Arguments("work", lambda x: x)
    assert arguments.load(through_json(arguments.dump((value,), {}))) == {"x": value}
    assert arguments.load_result(through_json(arguments.dump_result(value))) == value


@pytest.mark.parametrize(
    ("annotation", "value", "sentence"),
    [
        (int, "7", "task 'charge': argument 'x' is '7', it must be int"),
        (str, 7, "argument 'x' is 7, it must be str"),
        (float, "a", "argument 'x' is 'a', it must be float"),
        (bool, 1, "argument 'x' is 1, it must be bool"),
        (int, None, "argument 'x' is None, it must be int"),
        (UUID, "nonsense", "argument 'x' is 'nonsense', it must be UUID"),
        (date, MOMENT, "it must be date"),
        (Decimal, "a lot", "argument 'x' is 'a lot', it must be Decimal"),
        (Colour, "blue", "argument 'x' is 'blue', it must be the value of a Colour"),
        (list[int], 7, "argument 'x' is 7, it must be a list"),
        (list[int], [1, "b"], "argument 'x' at [1] is 'b', it must be int"),
        (dict[str, int], {"a": "b"}, "argument 'x' at ['a'] is 'b', it must be int"),
        (tuple[int, int], (1,), "argument 'x' is (1,), it must be a tuple of 2"),
        (int | None, "7", "it must be"),
        (Line, 7, "argument 'x' is 7, it must be Line"),
        (Line, {"skuu": 1}, "argument 'x' does not fit Line: it has no skuu"),
        (Line, {"sku": str(ID)}, "missing 1 required positional argument: 'price'"),
        (Order, Order([7], MOMENT), "argument 'x' at .lines[0] is 7, it must be Line"),
        (Card, {"number": "many"}, "argument 'x' does not fit Card (number: Input should be"),
    ],
)
def test_an_argument_of_the_wrong_type_is_a_type_error_with_a_sentence(
    annotation: Any, value: Any, sentence: str
) -> None:
    with pytest.raises(TypeError) as caught:
        one_argument(annotation).dump((), {"x": value})
    assert isinstance(caught.value, WrongArguments)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


class Opaque:
    pass


def containing_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


NOT_JSON: list[tuple[Any, str]] = [
    (Opaque(), "is of type Opaque, which is not JSON"),
    ({"a": [Opaque()]}, "at ['a'][0] is of type Opaque"),
    ({1, 2}, "is of type set"),
    (b"bytes", "is of type bytes"),
    (float("nan"), "is nan, which JSON does not have"),
    (float("inf"), "is inf, which JSON does not have"),
    ("a\0b", "contains the character \\u0000"),
    ("\ud800", "is not Unicode text"),
    ({(1, 2): 3}, "has the key (1, 2), but keys of JSON are text"),
    (containing_itself(), "is nested too deeply, or contains itself"),
]


@pytest.mark.parametrize(("value", "sentence"), NOT_JSON, ids=lambda v: str(v)[:30])
def test_an_argument_that_is_not_json_is_refused_by_task_and_name(
    value: Any, sentence: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Arguments("charge", lambda x: x).dump((), {"x": value})
    assert str(caught.value).startswith("task 'charge': argument 'x'")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("value", "sentence"), NOT_JSON, ids=lambda v: str(v)[:30])
def test_a_result_that_is_not_json_is_refused_by_task(value: Any, sentence: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Arguments("charge", lambda: None).dump_result(value)
    assert str(caught.value).startswith("the result of task 'charge'")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_coroutine_that_nobody_awaited_is_named_as_such_and_closed() -> None:
    async def forgotten() -> None: ...

    coroutine = forgotten()
    with pytest.raises(InvalidArgument, match="an async function behind a wrapper that is not"):
        Arguments("charge", lambda: None).dump_result(coroutine)
    assert coroutine.cr_frame is None


@pytest.mark.parametrize("value", [ID, MOMENT, ORDER, ADDRESS, {1: 2}], ids=type)
def test_a_type_is_converted_only_where_the_handler_will_get_it_back(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="annotate the parameter"):
        Arguments("charge", lambda x: x).dump((), {"x": value})


def test_a_stored_result_that_does_not_fit_its_annotation_is_not_passed_off_as_one() -> None:
    with pytest.raises(InvalidArgument, match="is 'a', it must be int, says its annotation"):
        one_argument(int).load_result("a")


def test_none_may_be_given_where_none_is_the_default() -> None:
    assert one_argument(int, default=None).dump((), {"x": None}) == {"x": None}


def test_pydantic_is_not_imported_for_who_does_not_use_it() -> None:
    program = (
        "import sys, dataclasses, uuid\n"
        "from faultline.arguments import Arguments\n"
        "def f(x: uuid.UUID) -> dict: ...\n"
        "a = Arguments('f', f)\n"
        "a.load(a.dump((uuid.uuid4(),), {})); a.dump_result({'a': uuid.uuid4()})\n"
        "assert 'pydantic' not in sys.modules and 'psycopg' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_frozen_dataclass_with_a_field_of_its_own_making_arrives() -> None:
    assert dataclasses.fields(Order)[-1].init is False
    assert one_argument(Order).load({"x": {"lines": [], "at": "2030-01-01"}})["x"].total == 0


def test_an_integer_that_another_language_sent_as_a_float_is_an_integer() -> None:
    loaded = one_argument(int).load({"x": 7.0})["x"]
    assert (loaded, type(loaded)) == (7, int)
