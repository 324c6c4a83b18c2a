"""Refuses crafted keys that would make sets and dicts slow.

Python hashes texts with a secret, but numbers by a known rule: thousands of multiples of 2**61 - 1 have one
hash, and building a set of them takes minutes and cannot be interrupted. So collections are checked before
they are built.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import inspect

from dray.errors import DecodeError

SMALL: Final = 500
"""Collections up to this size are fast to build, whatever they hold."""
MOST: Final = 40
"""Different keys that may have one hash. Powers of two as floats reach 35."""
_NUMBERS: Final = frozenset({int, float, bool})


def check_items(items: Collection[Any]) -> None:
    """Refuse hashable items of which many have the same hash."""
    if len(items) > SMALL:
        _check(items, list(map(hash, items)))


def may_hash(annotation: Any) -> bool:
    """True if values of an annotation hold sets, or dicts with keys that are not texts."""
    try:
        return _hashes(inspect.type_info(annotation), set())
    except Exception:  # msgspec does not know the type, and so will not build it either
        return False


def _hashes(kind: Any, seen: set[int]) -> bool:
    if isinstance(kind, inspect.SetType | inspect.FrozenSetType):
        return True
    if isinstance(kind, inspect.DictType) and not isinstance(
        kind.key_type, inspect.StrType | inspect.AnyType
    ):
        return True
    if id(kind) in seen or not isinstance(kind, inspect.Type):
        return False
    seen.add(id(kind))
    for name in kind.__struct_fields__:
        part = getattr(kind, name)
        for one in part if isinstance(part, tuple) else (part,):
            if _hashes(getattr(one, "type", one), seen):  # a field has a type, others are types
                return True
    return False


def check_plain(value: Any) -> None:
    """The same for JSON lists and dicts, before an annotation turns them into sets and keys."""
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, list | tuple):
            keys: Collection[Any] = value
            left += [item for item in value if type(item) in (list, dict)]
        elif isinstance(value, dict):
            keys = value.keys()
            left += [item for item in value.values() if type(item) in (list, dict)]
        else:
            continue
        if len(keys) > SMALL:
            _check(keys, _hashes_of(keys))


def _hashes_of(keys: Collection[Any]) -> list[int]:
    """The hashes that the keys may have after conversion."""
    kinds = set(map(type, keys))
    try:
        if kinds <= _NUMBERS:
            return list(map(hash, keys))
        if kinds == {str}:
            return list(map(hash, map(int, keys)))
    except ValueError:
        pass
    return list(map(_hash_of, keys))


def _hash_of(key: Any) -> int:
    if isinstance(key, str):
        return _hash_of_text(key)
    if isinstance(key, list):
        return hash(tuple(map(_hash_of, key)))
    if isinstance(key, dict):
        return hash(tuple(map(_hash_of, key.values())))
    return hash(key)


def _hash_of_text(text: str) -> int:
    for kind in (int, Decimal, UUID):
        try:
            return hash(kind(text))
        except (ValueError, ArithmeticError, TypeError):
            continue
    return hash(text)


def _check(keys: Iterable[Any], hashes: list[int]) -> None:
    crowded = {place for place, count in Counter(hashes).items() if count > MOST}
    if not crowded:
        return
    found: dict[int, set[str]] = {}
    for key, place in zip(keys, hashes, strict=True):
        if place in crowded:
            different = found.setdefault(place, set())
            different.add(_text(key))
            if len(different) > MOST:
                raise DecodeError(f"more than {MOST} of its keys or items have the same hash")


def _text(key: Any) -> str:
    """Equal keys have one text: many copies of one number are no attack."""
    try:
        return repr(key)
    except ValueError:  # an int of too many digits
        return hex(key) if isinstance(key, int) else msgspec.json.encode(key).decode()
