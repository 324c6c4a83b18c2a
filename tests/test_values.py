"""Values come back as they went in; broken bytes and impossible values end in one kind of error."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
from collections import OrderedDict, UserString, defaultdict
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dray.codec import values
from dray.errors import DecodeError, EncodeError

ZONES: list[tzinfo | None] = [
    None,
    UTC,
    timezone(timedelta(hours=5, minutes=30)),
    timezone(-timedelta(seconds=1, microseconds=5)),
    *map(ZoneInfo, ("Europe/London", "America/New_York", "Asia/Kathmandu", "UTC")),
]

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
datetimes = st.datetimes(timezones=st.sampled_from(ZONES), allow_imaginary=True) | st.builds(
    lambda value: value.replace(fold=1), st.datetimes(timezones=st.sampled_from(ZONES))
)
times = st.times(timezones=st.sampled_from(ZONES))
hashables = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False)
    | text
    | st.binary(max_size=20)
    | datetimes
    | st.dates()
    | times
    | st.timedeltas()
    | st.uuids()
    | st.decimals(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
anything = st.recursive(
    hashables,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(text, inner, max_size=4)
        | st.dictionaries(hashables, inner, max_size=4)
        | st.sets(hashables, max_size=4)
    ),
    max_leaves=20,
)


def same(a: Any, b: Any) -> bool:
    """Equal in type, zone, fold and sign of zero too, which == does not ask."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return len(a) == len(b) and all(same(p, q) for p, q in zip(a.items(), b.items(), strict=True))
    if isinstance(a, set | frozenset):
        return bool(a == b) and sorted(type(x).__name__ for x in a) == sorted(type(x).__name__ for x in b)
    return repr(a) == repr(b)


@given(anything)
@example(float("nan"))
@example([float("inf"), -0.0, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1])
@example(Decimal("-sNaN123"))
@example({None: 1, True: 2, 2.5: 3, b"x": 4, (): 5, 2**70: 6})
@example(datetime(2024, 10, 27, 1, 30, tzinfo=ZoneInfo("Europe/London"), fold=1))
def test_a_value_comes_back_as_it_went_in(value: Any) -> None:
    assert same(values.decode(values.encode(value)), value)


def test_the_second_hour_of_a_clock_change_stays_the_second() -> None:
    zone = ZoneInfo("Europe/London")
    for fold in (0, 1):
        value = datetime(2024, 10, 27, 1, 30, tzinfo=zone, fold=fold)
        back = values.decode(values.encode(value))
        assert isinstance(back, datetime)
        assert back.tzinfo is zone
        assert (back.fold, back.utcoffset()) == (fold, value.utcoffset())


GOLDEN = [
    (None, "c0"),
    ({"a": [1, -1, 2.5, True, "é", b"x"]}, "81a1619601ffcb4004000000000000c3a2c3a9c40178"),
    ((1, "a"), "d6019201a161"),
    ({7}, "d5029107"),
    (frozenset({7}), "d5039107"),
    (2**64, "c70904010000000000000000"),
    (-(2**63) - 1, "c70904ff7fffffffffffffff"),
    (Decimal("1.50"), "d605312e3530"),
    (UUID(int=1), "d80600000000000000000000000000000001"),
    (datetime.fromisoformat("2026-01-02T03:04:05"), "c7160792b3323032362d30312d30325430333a30343a303500"),
    (
        datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
        "c7240792d920323032362d30312d30325430333a30343a30352e3030303030362b30303a303000",
    ),
    (
        datetime(2026, 1, 2, 3, 4, 5, tzinfo=ZoneInfo("Europe/London"), fold=1),
        "c7240793b3323032362d30312d30325430333a30343a303501ad4575726f70652f4c6f6e646f6e",
    ),
    (date(2026, 1, 2), "c70a08323032362d30312d3032"),
    (time(3, 4, 5), "c70b0992a830333a30343a303500"),
    (timedelta(days=-1, seconds=2, microseconds=3), "d60a93ff0203"),
    ({(1,): 2}, "c7060b92d501910102"),
]


@pytest.mark.parametrize(("value", "stored"), GOLDEN, ids=[repr(value) for value, _ in GOLDEN])
def test_stored_bytes_never_change(value: object, stored: str) -> None:
    """Jobs in brokers are stored like this: lines may be added to GOLDEN, none may ever be changed."""
    assert values.encode(value).hex() == stored
    assert same(values.decode(bytes.fromhex(stored)), value)


class Colour(enum.Enum):
    RED = "red"
    MIX = (1, 2)


class Level(enum.IntEnum):
    HIGH = 1


class Point(NamedTuple):
    x: int
    y: int


@dataclasses.dataclass(frozen=True)
class Visit:
    when: datetime
    where: Point


class Model(pydantic.BaseModel):
    name: str = pydantic.Field(alias="Name")
    visit: datetime


class Plain(msgspec.Struct):
    a: int
    b: int | msgspec.UnsetType = msgspec.UNSET


class Renamed(msgspec.Struct, rename="camel", tag="it"):
    long_name: tuple[int, ...]


class Array(msgspec.Struct, array_like=True, tag=True):
    a: int


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "something else"


class Moment(datetime):
    pass


LONDON = datetime(2026, 7, 1, tzinfo=ZoneInfo("Europe/London"))


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Colour.RED, "red"),
        (Colour.MIX, (1, 2)),
        (Level.HIGH, 1),
        (Point(1, 2), (1, 2)),
        (Visit(LONDON, Point(1, 2)), {"when": LONDON, "where": (1, 2)}),
        (Model(Name="n", visit=LONDON), {"Name": "n", "visit": LONDON}),
        (Plain(1), {"a": 1}),
        (Renamed((1,)), {"type": "it", "longName": (1,)}),
        (Array(1), ["Array", 1]),
        (Text("a"), "a"),
        (Moment(2026, 1, 1, tzinfo=UTC, fold=1), datetime(2026, 1, 1, tzinfo=UTC, fold=1)),
        (OrderedDict(a=(1,)), {"a": (1,)}),
        (defaultdict(list, {1: [2]}), {1: [2]}),
        (bytearray(b"x"), b"x"),
        (memoryview(b"x"), b"x"),
        ({Colour.RED: 1}, {"red": 1}),
        ({Level.HIGH: Level.HIGH}, {1: 1}),
        ({Visit(LONDON, Point(1, 2))}, [{"when": LONDON, "where": (1, 2)}]),
    ],
)
def test_objects_become_plain_data(value: object, plain: object) -> None:
    assert same(values.decode(values.encode(value)), plain)


class Odd(tzinfo):
    def utcoffset(self, when: datetime | None) -> timedelta:
        return timedelta(hours=1)

    def tzname(self, when: datetime | None) -> str:
        return "odd"

    def dst(self, when: datetime | None) -> timedelta:
        return timedelta(0)


def test_an_unknown_kind_of_zone_keeps_its_offset() -> None:
    value = datetime(2026, 1, 1, tzinfo=Odd())
    assert values.decode(values.encode(value)) == value


class Angry:
    """Raises from whatever is asked of it."""

    def __str__(self) -> str:
        raise ZeroDivisionError

    __repr__ = __str__


class Mute(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


@dataclasses.dataclass
class Trap:
    x: int = 1

    def __getattribute__(self, name: str) -> Any:
        if name == "x":
            raise Mute
        return super().__getattribute__(name)


def circle() -> list[Any]:
    loop: list[Any] = []
    loop += [loop, loop]
    return loop


def circle_of_dicts() -> dict[str, Any]:
    loop: dict[str, Any] = {}
    loop["me"] = (loop,)
    return loop


def deep(levels: int, wrap: Any) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = wrap(value)
    return value


@pytest.mark.parametrize(
    "value",
    [
        object(),
        Angry(),
        Trap(),
        [Trap()],
        lambda: 1,
        print,
        int,
        UserString("a"),
        1 + 2j,
        msgspec.msgpack.Ext(1, b""),
        msgspec.Raw(b"1"),
        "\ud800",
        ["a", {"\udfff": 1}],
        ("\ud800",),
        circle(),
        circle_of_dicts(),
        deep(101, lambda v: [v]),
        deep(5000, lambda v: [v]),
        deep(5000, lambda v: (v,)),
        deep(5000, lambda v: {"a": v}),
        {Visit(LONDON, Point(1, 2)): 1},
        {(Visit(LONDON, Point(1, 2)),): 1},
        {Colour.RED: 1, "red": 2},
        {1, print},
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_carried_is_an_encode_error(value: object) -> None:
    with pytest.raises(EncodeError):
        values.encode(value)


def test_what_a_value_raised_is_the_cause() -> None:
    with pytest.raises(EncodeError) as caught:
        values.encode(Trap())
    assert isinstance(caught.value.__cause__, Mute)


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: (v,), lambda v: {"a": v}, lambda v: {(1,): v}])
def test_ninety_nine_levels_are_carried(wrap: Any) -> None:
    value = deep(values.MAX_DEPTH - 1, wrap)
    assert values.decode(values.encode(value)) == value


def test_dynamic_classes_are_not_kept_alive_for_ever() -> None:
    for number in range(3000):
        values.encode(type(f"Row{number}", (int,), {})(1))
    assert values._lowering_of.cache_info().currsize <= 1024


@given(st.binary(max_size=200))
def test_random_bytes_are_a_value_or_a_decode_error(data: bytes) -> None:
    with contextlib.suppress(DecodeError):
        values.decode(data)


@given(anything, st.data())
def test_damaged_bytes_are_a_value_or_a_decode_error(value: Any, data: st.DataObject) -> None:
    stored = bytearray(values.encode(value))
    place = data.draw(st.integers(0, len(stored) - 1))
    stored[place] ^= data.draw(st.integers(1, 255))
    for broken in (bytes(stored), bytes(stored[:place])):
        with contextlib.suppress(DecodeError):
            values.decode(broken)


@given(st.integers(-128, 127), st.binary(max_size=60))
def test_any_extension_is_a_value_or_a_decode_error(code: int, content: bytes) -> None:
    with contextlib.suppress(DecodeError):
        values.decode(msgspec.msgpack.encode(msgspec.msgpack.Ext(code, content)))


def zoned(zone: str) -> bytes:
    inner = msgspec.msgpack.encode(["2026-01-01T00:00:00", 0, zone])
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(values.DATETIME, inner))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x91" * 1_000_000,
        b"\x81\x01" * 500_000,
        b"\xc7\xff\x01" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01",
        b"\xd4\x63\x00",
        values.encode(1) + b"\x01",
        zoned("Nowhere/Land"),
        zoned("../../../etc/passwd"),
        zoned("America"),
        zoned("\0"),
        zoned(""),
        zoned("a" * 10_000),
    ],
    ids=lambda data: repr(data[:20]),
)
def test_broken_bytes_are_a_decode_error(data: bytes) -> None:
    with pytest.raises(DecodeError):
        values.decode(data)


def test_tuples_inside_tuples_without_end_are_a_decode_error() -> None:
    data = b"\x90"
    for _ in range(3000):
        data = b"\x91" + msgspec.msgpack.encode(msgspec.msgpack.Ext(values.TUPLE, data))
    with pytest.raises(DecodeError, match="deep"):
        values.decode(data)
