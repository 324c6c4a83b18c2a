"""Keys that all fall on one place of a hash table: refused before the table is built."""

from __future__ import annotations

import time
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

import msgspec
import pytest

from dray import App
from dray.codec.hash_safety import MOST, SMALL, check_items, may_hash
from dray.codec.payload import Codecs
from dray.codec.signature import Hint
from dray.errors import DecodeError

PRIME = 2**61 - 1
MANY = 50_000
"""A set of so many multiples takes a minute or more; without the check these tests would not end."""
CRAFTED = [PRIME * number for number in range(1, MANY)]


@dataclass(frozen=True)
class Basket:
    items: set[int]


@dataclass
class Pair:
    left: dict[int, int]
    right: str = ""


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (set[int], CRAFTED),
        (frozenset[int], CRAFTED),
        (dict[int, str], {str(number): "" for number in CRAFTED}),
        (dict[str, set[int]], {"a": CRAFTED}),
        (list[frozenset[int]], [[1], CRAFTED]),
        (Basket, {"items": CRAFTED}),
        (list[Pair] | None, [{"left": {str(number): 1 for number in CRAFTED}}]),
        (set[Decimal], [str(number) for number in CRAFTED]),
        (set[UUID], [str(UUID(int=number)) for number in CRAFTED]),
        (set[tuple[int, int]], [[number, 0] for number in CRAFTED]),
        (set[int | str], [*CRAFTED, "a"]),
    ],
    ids=str,
)
def test_crafted_keys_in_json_are_refused_at_once(annotation: Any, value: Any) -> None:
    hint = Hint.of(annotation)
    assert hint is not None
    began = time.process_time()
    with pytest.raises(DecodeError, match="same hash"):
        hint.convert(value, text=True)
    assert time.process_time() - began < 20


@pytest.mark.parametrize(
    "value", [set(CRAFTED[:2000]), frozenset(map(Fraction, CRAFTED[:900]))], ids=["set", "frozenset"]
)
def test_crafted_keys_in_stored_bytes_are_refused(value: Any) -> None:
    if isinstance(next(iter(value)), Fraction):
        with pytest.raises(DecodeError):
            check_items(value)
        return
    with pytest.raises(DecodeError, match="same hash"):
        Codecs().decode_call(Codecs().encode_call((value,), {}))


def test_crafted_keys_of_a_dict_in_stored_bytes_are_refused() -> None:
    value = {Decimal(number): 1 for number in CRAFTED[:2000]}
    with pytest.raises(DecodeError, match="same hash"):
        Codecs().decode_call(Codecs().encode_call((value,), {}))


@pytest.mark.parametrize(
    ("annotation", "value", "size"),
    [
        (set[int], list(range(MANY)), MANY),
        (set[int], [7] * MANY, 1),
        (set[int], [PRIME] * MANY, 1),
        (set[float], [2.0**power for power in range(-1074, 1024)], 2098),
        (set[int], CRAFTED[:SMALL], SMALL),
        (set[int], [number << 40 for number in range(MANY)], MANY),
        (set[str], [str(number) for number in range(MANY)], MANY),
        (dict[int, int], {str(number): number for number in range(MANY)}, MANY),
        (set[UUID], [str(UUID(int=number)) for number in range(MANY)], MANY),
        (list[int], CRAFTED, MANY - 1),
        (dict[str, int], {str(number): 1 for number in CRAFTED}, MANY - 1),
    ],
    ids=str,
)
def test_usual_collections_are_built_as_before(annotation: Any, value: Any, size: int) -> None:
    hint = Hint.of(annotation)
    assert hint is not None
    assert len(hint.convert(value, text=True)) == size


class Node(msgspec.Struct):
    children: list[Node]
    names: dict[str, int]


def test_only_annotations_with_hash_tables_of_chosen_keys_are_looked_at() -> None:
    plain: list[Any] = [Node, list[int], dict[str, list[int]], str | None, list[Any], tuple[int, ...]]
    assert not any(map(may_hash, plain))
    hashed: list[Any] = [set[str], dict[int, int], list[set[int]], Basket, tuple[set[int], ...], Pair | None]
    assert all(map(may_hash, hashed))
    assert MOST >= 35


def test_a_submit_of_crafted_keys_is_refused_by_its_argument() -> None:
    app = App("shop", broker="memory://")

    @app.task
    def count(numbers: set[int]) -> int:
        return len(numbers)

    with pytest.raises(DecodeError) as caught:
        count.hints.convert([CRAFTED], {}, text=True)
    assert caught.value.argument == "numbers"
    app.close()
