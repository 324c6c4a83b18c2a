"""The kinds of damage that `sweep` repairs.

dray itself causes none of them. They come from manual changes, a torn copy, or a server that lost part of its
memory. Logs, `dray doctor` and metrics use the same names for them.

A client that dies between two steps in different slots of a cluster damages nothing: a sweep finishes what
it began. `INTERRUPTED` names the kinds of such steps, which are counted apart from repairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from itertools import islice
from typing import Final, TypeVar

T = TypeVar("T")

LOOK: Final = 500
"""Entries of each kind that one sweep checks; the next sweep continues there."""

KINDS: Final = {
    "run": "jobs that ran without a holder, or were held without running",
    "slot": "slots of a limit that were in use by nobody, or were not counted",
    "place": "jobs that stood in no place or in a wrong one, and entries without a job",
    "lane": "lanes, groups or classes of the line that were missing, empty or in the wrong order",
    "key": "unique keys without a job, and jobs without their key",
    "dependency": "dependencies that one of both sides did not know",
    "count": "wrong numbers of jobs per state",
    "id": "jobs that their id did not lead to",
    "offer": "second runs that were offered and should not be, or the other way round",
    "record": "parts of a record without the rest",
}
"""Each kind of repair, and what was found."""

INTERRUPTED: Final = {
    "intent": "jobs of a document that was written were put",
    "id": "ids that were claimed for jobs which never arrived were freed",
    "dependency": "jobs were registered with the jobs they wait for, or released from them",
}
"""Each kind of step that a client began and a sweep finished."""


def describe(counts: Mapping[str, int], kinds: Mapping[str, str] = KINDS) -> str:
    """The repairs as text: `2 × key (unique keys without …)`."""
    return "; ".join(f"{count} × {kind} ({kinds.get(kind, kind)})" for kind, count in sorted(counts.items()))


def found(repairs: Counter[str]) -> dict[str, int]:
    """The counts above zero, sorted by kind."""
    return {kind: count for kind, count in sorted(repairs.items()) if count}


class Round:
    """Positions in several collections that are checked a stretch at a time, round after round."""

    def __init__(self) -> None:
        self._at: dict[str, int] = {}

    def next(self, name: str, items: Collection[T], limit: int) -> list[T]:
        start = self._at.get(name, 0)
        stretch = list(islice(items, start, start + limit))
        self._at[name] = start + limit if len(stretch) == limit else 0
        return stretch
