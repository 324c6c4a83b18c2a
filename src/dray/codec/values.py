"""Python values as MessagePack, and back, without loss of type.

A value is walked once before msgspec writes it. Plain values (None, bool, int, float, str, bytes, list
and dict of these) are left as they are; the rest becomes an extension type, whose codes are fixed for ever:

| code | type | content |
|---|---|---|
| 1, 2, 3 | tuple, set, frozenset | MessagePack array of the items |
| 4 | int beyond 64 bits | two's complement, big-endian |
| 5 | Decimal | its text |
| 6 | UUID | its 16 bytes |
| 7 | datetime | array of ISO 8601 text, fold and, if it has one, the name of its time zone |
| 8 | date | ISO 8601 text |
| 9 | time | as datetime |
| 10 | timedelta | array of days, seconds, microseconds |
| 11 | dict with keys that are not plain | array of key, value, key, value … |

A datetime whose zone is a ZoneInfo is written in wall-clock time with the zone's name; any other tzinfo is
kept as the offset it gives. A bytearray or memoryview comes back as bytes.

No class is ever named in the bytes. Enum members are written as their value; dataclasses, msgspec Structs,
attrs classes and pydantic models as a dict of their fields; subclasses of built-in types as the built-in type
(a NamedTuple as tuple). They come back as their class where an annotation asks for it: see `signature`.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from types import NoneType
from typing import Any, Final, Literal
from uuid import UUID

import msgspec
from msgspec.msgpack import Decoder, Encoder, Ext

from dray.codec.hash_safety import check_items
from dray.errors import DecodeError, EncodeError

MAX_DEPTH: Final = 100
"""Nesting of containers. Reading takes several frames of Python's stack per level."""

Lower = Callable[[Any, "Lowering", int], object]
"""Brings a value of one type closer to what the encoder knows: (value, walk, depth) -> plainer value."""


class Lowering:
    """The walk: turns a value into one that an encoder writes without loss.

    `plain` are types the encoder takes as they are, `leaves` says what to do with others. Dataclasses and the
    like are taken apart here, because that is the same for every encoder.
    """

    def __init__(
        self, plain: frozenset[type], leaves: Mapping[type, Lower], dict_keys: frozenset[type]
    ) -> None:
        self.plain = plain
        self._all_plain = plain.issuperset
        self._all_keys = dict_keys.issuperset
        self._leaves = leaves

    def lower(self, value: Any, depth: int = 0) -> Any:
        """`value` itself if it is plain through and through, or a plainer copy of it."""
        kind: Any = type(value)
        if kind in self.plain:
            return value
        if depth >= MAX_DEPTH:
            raise EncodeError(f"nested more than {MAX_DEPTH} deep, or contains itself")
        # The two checks below run in C: a flat list or dict costs no Python per item.
        if kind is list:
            return value if self._all_plain(map(type, value)) else self.items(value, depth)
        if kind is dict and self._all_keys(map(type, value)):
            if self._all_plain(map(type, value.values())):
                return value
            return dict(zip(value, self.items(value.values(), depth), strict=True))
        return (self._leaves.get(kind) or _lowering_of(kind))(value, self, depth)

    def items(self, values: Iterable[Any], depth: int) -> list[Any]:
        plain, lower, deeper = self.plain, self.lower, depth + 1
        return [value if type(value) in plain else lower(value, deeper) for value in values]


@lru_cache(maxsize=1024)
def _lowering_of(kind: Any) -> Lower:
    """How to lower a type that no encoder knows, by its class."""
    if issubclass(kind, Enum):
        return lambda value, walk, depth: walk.lower(value.value, depth + 1)
    if issubclass(kind, msgspec.Struct):
        return _lower_struct
    if dataclasses.is_dataclass(kind):
        return _lower_fields([field.name for field in dataclasses.fields(kind)])
    if hasattr(kind, "__attrs_attrs__"):
        return _lower_fields([field.name for field in kind.__attrs_attrs__])
    if hasattr(kind, "model_validate") and hasattr(kind, "model_dump"):
        return lambda value, walk, depth: walk.lower(value.model_dump(by_alias=True, round_trip=True), depth)
    for base, rebuild in _BASES.items():
        if issubclass(kind, base):
            return lambda value, walk, depth: walk.lower(rebuild(value), depth)
    raise EncodeError(
        f"cannot carry a value of type {kind.__module__}.{kind.__qualname__}: give built-in values, "
        "a dataclass, a msgspec Struct, an attrs class or a pydantic model, or register a codec"
    )


_BASES: Final[dict[type, Callable[[Any], object]]] = {
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
    bytes: bytes,
    tuple: tuple,
    list: list,
    dict: dict,
    set: set,
    frozenset: frozenset,
    datetime: lambda value: datetime.combine(datetime.date(value), datetime.timetz(value)),
    date: lambda value: date(value.year, value.month, value.day),
    time: lambda value: time(
        value.hour, value.minute, value.second, value.microsecond, value.tzinfo, fold=value.fold
    ),
    timedelta: lambda value: timedelta(value.days, value.seconds, value.microseconds),
    Decimal: Decimal,
    UUID: lambda value: UUID(int=value.int),
}
"""Converters from an instance of a subclass to one of the built-in type itself."""


def _lower_fields(names: list[str]) -> Lower:
    def lower(value: Any, walk: Lowering, depth: int) -> object:
        return dict(zip(names, walk.items([getattr(value, name) for name in names], depth), strict=True))

    return lower


def _lower_struct(value: Any, walk: Lowering, depth: int) -> object:
    """Its own encoded form (renamed fields, tag, array or map), which reading it expects."""
    config = value.__struct_config__
    contents = [getattr(value, name) for name in value.__struct_fields__]
    if config.array_like:
        return ([] if config.tag is None else [config.tag]) + walk.items(contents, depth)
    fields = {} if config.tag is None else {config.tag_field: config.tag}
    for name, content in zip(value.__struct_encode_fields__, contents, strict=True):
        if content is not msgspec.UNSET:
            fields[name] = walk.lower(content, depth + 1)
    return fields


TUPLE, SET, FROZENSET, INT, DECIMAL, UUID_, DATETIME, DATE, TIME, TIMEDELTA, MAP = range(1, 12)

SCALARS: Final[frozenset[type]] = frozenset({NoneType, bool, int, float, str, bytes})
pack = Encoder().encode


def _array(code: int) -> Lower:
    return lambda value, walk, depth: Ext(code, pack(walk.items(value, depth)))


def _lower_int(value: int, walk: Lowering, depth: int) -> object:
    if -(2**63) <= value < 2**64:
        return value
    return Ext(INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def _lower_moment(code: int) -> Lower:
    def lower(value: datetime | time, walk: Lowering, depth: int) -> object:
        zone = _zone_name(value.tzinfo)
        if zone is not None:
            return Ext(code, pack([value.replace(tzinfo=None).isoformat(), value.fold, zone]))
        return Ext(code, pack([value.isoformat(), value.fold]))

    return lower


def _zone_name(zone: tzinfo | None) -> str | None:
    """The name of a ZoneInfo. There is none before its module is loaded, which is large."""
    loaded = sys.modules.get("zoneinfo")
    return zone.key if loaded is not None and isinstance(zone, loaded.ZoneInfo) else None


def _lower_dict(value: dict[Any, Any], walk: Lowering, depth: int) -> object:
    """A dict with keys that are not plain. Keys must stay different and hashable when they come back."""
    keys, contents = walk.items(value, depth), walk.items(value.values(), depth)
    try:
        kept = len(set(_unpack_list(pack(keys))))
    except TypeError:
        raise EncodeError("cannot carry a dict whose keys come back as lists or dicts") from None
    if kept < len(value):
        raise EncodeError("cannot carry a dict whose keys would be equal once their classes are gone")
    if SCALARS.issuperset(map(type, keys)):
        return dict(zip(keys, contents, strict=True))
    return Ext(MAP, pack([part for pair in zip(keys, contents, strict=True) for part in pair]))


_LEAVES: Final[dict[type, Lower]] = {
    bytearray: lambda value, walk, depth: bytes(value),
    memoryview: lambda value, walk, depth: value.tobytes(),
    tuple: _array(TUPLE),
    set: _array(SET),
    frozenset: _array(FROZENSET),
    dict: _lower_dict,
    int: _lower_int,
    Decimal: lambda value, walk, depth: Ext(DECIMAL, str(value).encode()),
    UUID: lambda value, walk, depth: Ext(UUID_, value.bytes),
    datetime: _lower_moment(DATETIME),
    date: lambda value, walk, depth: Ext(DATE, value.isoformat().encode()),
    time: _lower_moment(TIME),
    timedelta: lambda value, walk, depth: Ext(
        TIMEDELTA, pack([value.days, value.seconds, value.microseconds])
    ),
}
_WALK: Final = Lowering(SCALARS, _LEAVES, dict_keys=SCALARS)
# Ints beyond 64 bits are rare: this walk is used only after the encoder failed on one.
_WIDE: Final = Lowering(SCALARS - {int}, _LEAVES, dict_keys=SCALARS - {int})


def encode(value: object) -> bytes:
    """The bytes of a value. Raises EncodeError, and nothing else, for one that cannot be carried."""
    try:
        try:
            return pack(value if _is_small_and_plain([(value,)]) else _WALK.lower(value))
        except OverflowError:
            return pack(_WIDE.lower(value))
    except EncodeError:
        raise
    except Exception as error:
        raise unwritable(error) from error


def encode_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """The bytes of `[list(args), kwargs]`."""
    if _is_small_and_plain([args, kwargs.values()]):
        try:
            return pack((args, kwargs))
        except (OverflowError, UnicodeEncodeError):
            pass  # `encode` handles it, or raises a clear error
    return encode([list(args), kwargs])


def _is_small_and_plain(groups: list[Collection[Any]]) -> bool:
    """True if the walk would change nothing, as for most calls; checked without recursion.

    More groups than MAX_DEPTH may be too deep or circular, so they are left to the walk.
    """
    for group in groups:  # the list grows meanwhile
        for value in group:
            kind = type(value)
            if kind in SCALARS:
                continue
            if kind is list:
                groups.append(value)
            elif kind is dict:
                groups += (value, value.values())
            else:
                return False
        if len(groups) > MAX_DEPTH:
            return False
    return True


def unwritable(error: Exception) -> EncodeError:
    """The EncodeError for any error while writing; the values' own code may raise anything."""
    if isinstance(error, RecursionError):
        return EncodeError("nested too deep, or contains itself")
    if isinstance(error, UnicodeEncodeError):
        return EncodeError("a text holds half of a surrogate pair, which UTF-8 cannot carry")
    return EncodeError(f"cannot be written: {describe(error)}")


def describe(error: BaseException) -> str:
    """Type and message of an error, or only the type if its message cannot be made."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


class _Moment(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    text: str
    fold: Literal[0, 1]
    zone: str | None = None


def _read_set(data: memoryview) -> object:
    """A set; or a list, if its items are not hashable before their annotation makes them objects again."""
    items = _unpack_list(data)
    try:
        check_items(items)
        return set(items)
    except TypeError:
        return items


def _read_frozenset(data: memoryview) -> object:
    items = _read_set(data)
    return frozenset(items) if isinstance(items, set) else items


def _read_datetime(data: memoryview) -> datetime:
    moment = _unpack_moment(data)
    value = datetime.fromisoformat(moment.text).replace(fold=moment.fold)
    return value if moment.zone is None else value.replace(tzinfo=_zone(moment.zone))


def _read_time(data: memoryview) -> time:
    moment = _unpack_moment(data)
    value = time.fromisoformat(moment.text).replace(fold=moment.fold)
    return value if moment.zone is None else value.replace(tzinfo=_zone(moment.zone))


def _zone(name: str) -> tzinfo:
    from zoneinfo import ZoneInfo  # large, and seldom needed

    return ZoneInfo(name)


def _read_map(data: memoryview) -> dict[Any, Any]:
    parts = _unpack_list(data)
    check_items(parts[::2])
    return dict(zip(parts[::2], parts[1::2], strict=True))


_READERS: Final[dict[int, Callable[[memoryview], object]]] = {
    TUPLE: lambda data: tuple(_unpack_list(data)),
    SET: _read_set,
    FROZENSET: _read_frozenset,
    INT: lambda data: int.from_bytes(data, "big", signed=True),
    DECIMAL: lambda data: Decimal(str(data, "ascii")),
    UUID_: lambda data: UUID(bytes=bytes(data)),
    DATETIME: _read_datetime,
    DATE: lambda data: date.fromisoformat(str(data, "ascii")),
    TIME: _read_time,
    TIMEDELTA: lambda data: timedelta(*_unpack_three(data)),
    MAP: _read_map,
}


def _read(code: int, data: memoryview) -> object:
    reader = _READERS.get(code)
    if reader is None:
        raise DecodeError(f"extension type {code} is unknown to this version of dray")
    return reader(data)


_unpack: Callable[[bytes | memoryview], Any] = Decoder(ext_hook=_read).decode
_unpack_list: Callable[[bytes | memoryview], list[Any]] = Decoder(list[Any], ext_hook=_read).decode
decode_call: Callable[[bytes | memoryview], tuple[list[Any], dict[str, Any]]] = Decoder(
    tuple[list[Any], dict[str, Any]], ext_hook=_read
).decode
_unpack_moment: Callable[[memoryview], _Moment] = Decoder(_Moment).decode
_unpack_three: Callable[[memoryview], tuple[int, int, int]] = Decoder(tuple[int, int, int]).decode


def decode(data: bytes | memoryview) -> object:
    """The value that `encode` was given. Raises DecodeError, and nothing else, for any other bytes."""
    try:
        return _unpack(data)
    except DecodeError:
        raise
    except Exception as error:
        raise unreadable(error) from error


def unreadable(error: Exception) -> DecodeError:
    """The DecodeError for any error while reading."""
    if isinstance(error, RecursionError):
        return DecodeError("the bytes are nested too deep")
    return DecodeError(f"the bytes cannot be read: {describe(error)}")
