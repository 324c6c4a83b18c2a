"""The queues that a worker serves: by name, by pattern, or those of its app's tasks.

A list such as `high,tenant-*` is strict from left to right; the queues that one pattern matches take turns.
`all` matches every queue. A dedicated queue is served only where the list has its very name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import Final

from dray.job import NAME

ALL: Final = "all"
DEFAULT: Final = "default"
DEDICATED: Final = "dedicated"
"""The kind of the documents by which an operator dedicates queues; each is named after its queue."""
_PATTERN: Final = re.compile(r"[A-Za-z0-9_.*?-]{1,128}")

Stage = tuple[str, ...]
"""Queues of one rank: a single name, or several that take turns."""


def is_entry(text: str) -> bool:
    """True for a name, `all`, or a pattern with `*` or `?`."""
    return _PATTERN.fullmatch(text) is not None


def is_pattern(entry: str) -> bool:
    return entry == ALL or NAME.fullmatch(entry) is None


@lru_cache(maxsize=1000)
def _expression(pattern: str) -> re.Pattern[str]:
    text = "*" if pattern == ALL else pattern
    return re.compile(re.escape(text).replace(r"\*", ".*").replace(r"\?", "."))


def matches(pattern: str, queue: str) -> bool:
    return _expression(pattern).fullmatch(queue) is not None


def place(entries: Sequence[str], dedicated: Collection[str], queue: str) -> int | None:
    """The index of the entry by which a queue is served; None if no entry serves it.

    Its own name counts before any pattern. Only its own name serves a dedicated queue.
    """
    named = [index for index, entry in enumerate(entries) if entry == queue and not is_pattern(entry)]
    if named or queue in dedicated:
        return named[0] if named else None
    return next(
        (index for index, entry in enumerate(entries) if is_pattern(entry) and matches(entry, queue)), None
    )


def stages(entries: Sequence[str], dedicated: Collection[str], known: Iterable[str]) -> list[Stage]:
    """The queues to serve, in the order of the list; `known` are the queues that patterns choose from."""
    found: list[list[str]] = [[] if is_pattern(entry) else [entry] for entry in entries]
    for queue in sorted(set(known)):
        index = place(entries, dedicated, queue)
        if index is not None and is_pattern(entries[index]):
            found[index].append(queue)
    return [tuple(stage) for stage in found]
