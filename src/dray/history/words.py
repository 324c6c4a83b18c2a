"""Texts as words: dray splits them itself, so that SQLite and PostgreSQL index and find the same."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

WORDS_MAX: Final = 1000
"""Words of one job that are indexed."""
WORD_MAX: Final = 64
"""Characters of a word that count."""
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = re.compile(r"[^\W_]+")


def split(text: str) -> list[str]:
    """The words of a text, in lower case.

    >>> split("ReadTimeout: user_id=42")
    ['read', 'timeout', 'user', 'id', '42']
    """
    return [word[:WORD_MAX].lower() for word in _WORD.findall(_HUMP.sub(" ", text))]


def joined(texts: Iterable[str]) -> str:
    """The words of texts, one space apart; a long text is cut."""
    found: list[str] = []
    for text in texts:
        found += split(text)
        if len(found) >= WORDS_MAX:
            break
    return " ".join(found[:WORDS_MAX])


def flatten(value: Any, path: str = "") -> Iterator[str]:
    """`{"user": {"id": 42}}` as `user id 42`: each scalar after its path."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from flatten(inner, f"{path} {name}")
    elif isinstance(value, list):
        for inner in value:
            yield from flatten(inner, path)
    elif value is not None:
        yield f"{path} {value}"


def tsvector(words: str, error_words: str) -> str:
    """Words with their places as PostgreSQL writes them, those of the error marked B. Its own parser would
    take `1e5` or `a.b` for other things than SQLite does."""
    places: dict[str, list[str]] = {}
    for place, word in enumerate(words.split(), 1):
        places.setdefault(word, []).append(f"{place}A")
    for place, word in enumerate(error_words.split(), WORDS_MAX + 10):
        places.setdefault(word, []).append(f"{place}B")
    return " ".join(f"'{word}':{','.join(found)}" for word, found in places.items())
