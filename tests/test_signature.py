"""Annotations decide what decoded arguments become, and whether a call fits."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NewType, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.codec.signature import Hint, Hints, annotations_of
from dray.errors import DecodeError

if TYPE_CHECKING:
    from nowhere import Missing  # type: ignore[import-not-found]


class Colour(enum.Enum):
    RED = "red"


class Ratio(enum.Enum):
    HALF = 0.5


class ConnectionSettings(enum.IntFlag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Item:
    name: str
    when: datetime | None = None


class Line(msgspec.Struct):
    item: Item
    count: int = 1


class Order(pydantic.BaseModel):
    id: int
    at: datetime


class Point(NamedTuple):
    x: int
    y: int


class Options(TypedDict, total=False):
    deep: bool


class Unknown:
    pass


UserId = NewType("UserId", int)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
ITEM = {"name": "n", "when": NOW}


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (int, 5, 5),
        (int, True, True),
        (float, 5, 5.0),
        (date, NOW, NOW),
        (Item, ITEM, Item("n", NOW)),
        (list[Item], [ITEM], [Item("n", NOW)]),
        (dict[str, Item | None], {"a": ITEM, "b": None}, {"a": Item("n", NOW), "b": None}),
        (tuple[Item, ...], (ITEM,), (Item("n", NOW),)),
        (set[int], {1}, {1}),
        (Line, {"item": ITEM}, Line(Item("n", NOW))),
        (Order, {"id": 1, "at": NOW}, Order(id=1, at=NOW)),
        (list[Order | None], [{"id": 1, "at": NOW}, None], [Order(id=1, at=NOW), None]),
        (Point, (1, 2), Point(1, 2)),
        (Options, {"deep": True}, {"deep": True}),
        (Colour, "red", Colour.RED),
        (Colour | None, None, None),
        (list[Colour], ["red"], [Colour.RED]),
        (Ratio, 0.5, Ratio.HALF),
        (ConnectionSettings, 3, ConnectionSettings.READ | ConnectionSettings.WRITE),
        (Literal["a", 1], 1, 1),
        (UserId, 5, 5),
        (Annotated[int, msgspec.Meta(ge=0)], 5, 5),
        (Mapping[str, Item], {"a": ITEM}, {"a": Item("n", NOW)}),
        (UUID, "12345678123456781234567812345678", UUID("12345678123456781234567812345678")),
        (Decimal, "1.5", Decimal("1.5")),
        (datetime, "2026-01-01T00:00:00Z", NOW),
        (bytes, b"x", b"x"),
        (None, None, None),
    ],
)
def test_a_value_becomes_what_its_annotation_says(annotation: Any, value: Any, expected: Any) -> None:
    hint = Hint.of(annotation)
    assert hint is not None
    converted = hint.convert(value)
    assert converted == expected
    assert type(converted) is type(expected)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Any, {"a": 1}),
        (object, 1),
        (Unknown, "x"),
        (list[Unknown], ["x"]),
        (Item | Line, ITEM),
        (Order | str, {"id": 1}),
        (list[Ratio], [0.5]),
        (Iterable[int], (1, 2)),
        (Callable[[], int], 5),
        (inspect.Parameter.empty, 5),
        ("not a type", 5),
    ],
)
def test_an_annotation_nobody_can_handle_leaves_the_value_untouched(annotation: Any, value: Any) -> None:
    hint = Hint.of(annotation)
    assert (value if hint is None else hint.convert(value)) is value


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "5"),
        (int, 1.5),
        (str, 5),
        (str, b"x"),
        (bytes, "aGk="),
        (bool, 1),
        (Item, {"nam": "n"}),
        (Item, {"name": 5}),
        (list[Item], [ITEM, {}]),
        (Order, {"id": "x", "at": NOW}),
        (Colour, "blue"),
        (Literal["a"], "b"),
        (UUID, "x"),
        (None, 5),
        (Annotated[int, msgspec.Meta(ge=0)], -1),
    ],
)
def test_a_value_that_does_not_fit_is_a_decode_error_that_names_the_parameter(
    annotation: Any, value: Any
) -> None:
    def task(thing: Any) -> None: ...

    task.__annotations__["thing"] = annotation
    hints = Hints.of(task)
    with pytest.raises(DecodeError, match="'thing'"):
        hints.convert([value], {})
    with pytest.raises(DecodeError, match="'thing'"):
        hints.convert([], {"thing": value})


def test_text_formats_have_base64_for_bytes_and_text_for_keys() -> None:
    assert _convert(bytes, "aGk=", text=True) == b"hi"
    assert _convert(dict[int, str], {"1": "a"}, text=True) == {1: "a"}


def _convert(annotation: Any, value: Any, *, text: bool) -> Any:
    hint = Hint.of(annotation)
    assert hint is not None
    return hint.convert(value, text=text)


def busy(item: Item, /, line: Line, *rest: Colour, key: Order | None = None, **more: Point) -> list[Item]: ...  # type: ignore[empty-body]


def test_every_kind_of_parameter_is_converted() -> None:
    args, kwargs = Hints.of(busy).convert(
        [ITEM, {"item": ITEM}, "red", "red"], {"key": {"id": 1, "at": NOW}, "item": (1, 2), "p": (3, 4)}
    )
    assert args == (Item("n", NOW), Line(Item("n", NOW)), Colour.RED, Colour.RED)
    assert kwargs == {"key": Order(id=1, at=NOW), "item": Point(1, 2), "p": Point(3, 4)}
    assert Hints.of(busy).returns == list[Item]


def test_an_annotation_that_cannot_be_resolved_does_not_cost_the_others() -> None:
    def task(thing: Missing, item: Item, nested: list[Missing]) -> Missing: ...

    assert annotations_of(task) == {"item": Item}
    assert Hints.of(task).convert([1, ITEM, [2]], {}) == ((1, Item("n", NOW), [2]), {})
    assert Hints.of(task).returns is Any


def test_a_default_of_none_allows_none() -> None:
    def task(item: Item = None) -> None: ...  # type: ignore[assignment]

    assert Hints.of(task).convert([None], {}) == ((None,), {})
    assert Hints.of(task).convert([ITEM], {}) == ((Item("n", NOW),), {})


def test_what_the_worker_fills_in_is_not_asked_of_callers() -> None:
    def task(ctx: Missing, item: Item) -> None: ...

    hints = Hints.of(task, skip=frozenset({"ctx"}))
    hints.check((1,), {})
    with pytest.raises(TypeError):
        hints.check((1, 2), {})
    assert hints.convert([ITEM], {}) == ((Item("n", NOW),), {})


class Callme:
    def __call__(self, item: Item) -> None: ...

    def method(self, item: Item) -> None: ...


@functools.wraps(busy)
def wrapped(*args: Any, **kwargs: Any) -> Any: ...


@pytest.mark.parametrize(
    "function",
    [Callme(), Callme().method, wrapped, functools.partial(busy, key=None)],
    ids=["instance", "method", "wrapped", "partial"],
)
def test_callables_of_every_kind_have_hints(function: Callable[..., object]) -> None:
    args, _ = Hints.of(function).convert([ITEM], {})
    assert args == (Item("n", NOW),)


def none() -> None: ...
def one(a: int) -> None: ...
def some(a: int, b: int = 0, *, c: int, d: int = 0) -> None: ...
def only(a: int, b: int = 0, /, c: int = 0) -> None: ...
def more(a: int, *b: int, c: int = 0) -> None: ...
def most(a: int, /, b: int = 0, **c: int) -> None: ...
def all_of_it(*a: int, **b: int) -> None: ...


@given(
    st.sampled_from([none, one, some, only, more, most, all_of_it, busy]),
    st.lists(st.integers(), max_size=4),
    st.dictionaries(st.sampled_from("abcdx"), st.integers(), max_size=4),
)
def test_a_call_is_checked_as_python_does(
    function: Callable[..., None], args: list[int], kwargs: dict[str, int]
) -> None:
    hints = Hints.of(function)
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        with pytest.raises(TypeError, match=rf"^{function.__name__}\(\): "):
            hints.check(tuple(args), kwargs)
    else:
        hints.check(tuple(args), kwargs)


def typed(
    number: int = 0,
    share: float = 0.0,
    when: datetime | None = None,
    many: list[int] | None = None,
    **more: str,
) -> None: ...


@pytest.mark.parametrize(
    ("kwargs", "wrong"),
    [
        ({"number": "x"}, "number"),
        ({"number": 1.5}, "number"),
        ({"number": None}, "number"),
        ({"share": "1"}, "share"),
        ({"when": "not a time"}, "when"),
        ({"many": 3}, "many"),
        ({"other": 3}, "other"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_where_it_is_given(kwargs: dict[str, Any], wrong: str) -> None:
    with pytest.raises(TypeError, match=rf"^typed\(\): argument '{wrong}': "):
        Hints.of(typed).check_call((), kwargs)
    args = list(kwargs.values()) if wrong == "number" else []
    if args:
        with pytest.raises(TypeError, match=rf"^typed\(\): argument '{wrong}': "):
            Hints.of(typed).check_call(tuple(args), {})


@pytest.mark.parametrize(
    "kwargs",
    [
        {"number": True, "share": 1, "when": NOW, "other": "text"},
        {"when": "2026-11-16T12:00:00Z", "many": [1, 2]},
        {"number": -(2**70), "share": float("inf"), "many": None},
    ],
)
def test_what_the_worker_will_take_is_not_refused(kwargs: dict[str, Any]) -> None:
    Hints.of(typed).check_call((), kwargs)


def test_sequences_of_dataclasses_are_lists() -> None:
    assert _convert(Sequence[Item], (ITEM,), text=False) == [Item("n", NOW)]
