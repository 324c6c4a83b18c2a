"""Arguments and results as JSON for the history, with secret fields hidden.

The setting `history_redact` lists patterns of field names, which hold for arguments and for keys inside them:
`*password*` for all tasks, `email.*:body` for some, `login:*` for everything of a task.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase, translate
from typing import Any, Final

import msgspec

from dray.info import plain

HIDDEN: Final = "[hidden]"
JSON_MAX: Final = 16_384
"""Bytes of the arguments, or of the result, of one job that are stored."""
TOO_LARGE: Final = "[too large: {} bytes]"
_encode = msgspec.json.Encoder().encode
Matches = Callable[[str], object]
"""Says whether a field of this name is hidden."""


class Redaction:
    """The fields that are hidden, by task."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [_parse(pattern) for pattern in patterns]
        self._by_task: dict[str, Matches | None] = {}

    def hidden_in(self, task: str) -> Matches | None:
        """The matcher for a task's fields; None if nothing of it is hidden."""
        if task not in self._by_task:
            fields = [field for of, field in self._patterns if fnmatchcase(task, of)]
            joined = "|".join(translate(field) for field in fields)
            self._by_task[task] = re.compile(joined, re.IGNORECASE).match if fields else None
        return self._by_task[task]

    def hides_all(self, task: str) -> bool:
        return any(field == "*" and fnmatchcase(task, of) for of, field in self._patterns)

    def arguments(
        self, task: str, args: Sequence[Any], kwargs: dict[str, Any], names: Sequence[str] | None
    ) -> dict[str, Any]:
        """The arguments by name. A position whose name is not known is hidden where names could hide it."""
        hidden = self.hidden_in(task)
        given = {_name(place, names): value for place, value in enumerate(args)}
        if names is None and hidden is not None:
            given = dict.fromkeys(given, HIDDEN)
        found: dict[str, Any] = plain(given | kwargs)
        return found if hidden is None else _hide(found, hidden)

    def result(self, task: str, value: Any) -> Any:
        hidden = self.hidden_in(task)
        if self.hides_all(task):
            return HIDDEN
        return plain(value) if hidden is None else _hide(plain(value), hidden)


def _parse(pattern: str) -> tuple[str, str]:
    task, colon, field = pattern.rpartition(":")
    return (task or "*", field) if colon else ("*", pattern)


def _name(place: int, names: Sequence[str] | None) -> str:
    return names[place] if names is not None and place < len(names) else str(place)


def _hide(value: Any, hidden: Matches) -> Any:
    if isinstance(value, dict):
        return {name: HIDDEN if hidden(name) else _hide(inner, hidden) for name, inner in value.items()}
    return [_hide(inner, hidden) for inner in value] if isinstance(value, list) else value


def as_json(value: Any) -> str:
    """The value as JSON that both databases accept; a large one is replaced by a note."""
    data = _encode(value)
    if len(data) > JSON_MAX:
        data = _encode({"": TOO_LARGE.format(len(data))})
    return data.decode().replace("\\u0000", "\\ufffd")
