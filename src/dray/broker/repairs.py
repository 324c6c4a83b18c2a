"""The kinds of damage that `sweep` looks for and puts right.

No step of a broker leaves any of these behind. They come from outside: a hand in the store, a torn copy, a
server that lost part of its memory, a client that died between two steps in different slots. Each kind is a
word that logs, `dray doctor` and metrics use alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from itertools import islice
from typing import Final, TypeVar

T = TypeVar("T")

LOOK: Final = 500
"""How many entries of each kind one sweep looks at; the next one goes on there."""

KINDS: Final = {
    "run": "jobs that ran without a holder, or were held without running",
    "slot": "slots of a limit that were in use by nobody, or were not counted",
    "place": "jobs that stood in no place or in a wrong one, and entries without a job",
    "lane": "lanes, groups or classes of the line that were missing, empty or in the wrong order",
    "key": "unique keys without a job, and jobs without their key",
    "dependency": "dependencies that one of both sides did not know",
    "count": "wrong numbers of jobs per state",
    "id": "ids that led to no job, and jobs that their id did not lead to",
    "offer": "second runs that were offered and should not be, or the other way round",
    "record": "parts of a record without the rest",
    "intent": "jobs that were to be put together with a document, and were not",
}
"""Each kind of repair, and what was found."""


def describe(repairs: Mapping[str, int]) -> str:
    """What was put right, in words: `2 × key (unique keys without …)`."""
    return "; ".join(f"{count} × {kind} ({KINDS.get(kind, kind)})" for kind, count in sorted(repairs.items()))


def found(repairs: Counter[str]) -> dict[str, int]:
    """Only what was found at all, in a settled order."""
    return {kind: count for kind, count in sorted(repairs.items()) if count}


class Round:
    """How far the rounds through several collections have come: a stretch of each at a time."""

    def __init__(self) -> None:
        self._at: dict[str, int] = {}

    def next(self, name: str, items: Collection[T], limit: int) -> list[T]:
        start = self._at.get(name, 0)
        stretch = list(islice(items, start, start + limit))
        self._at[name] = start + limit if len(stretch) == limit else 0
        return stretch
