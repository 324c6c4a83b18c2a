"""The search text: `task:email.* queue:gpu tag:x state:dead error:"timeout" arg.user_id:42 after:1d refused`.

Parts are separated by spaces and all must hold; the same `task`, `queue` or `state` given twice, or values
with commas between, mean any of them. Quotes keep spaces together; a part without a field is searched for in
all words of a job.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

import msgspec

from dray.duration import parse_duration
from dray.errors import InvalidInput, did_you_mean
from dray.job import State

STATES: Final = tuple(state for state in State if state is not State.NOT_FOUND)
LISTS: Final = ("task", "queue", "state")
EXACT: Final = {
    "id": "id",
    "key": "job_key",
    "group": "job_group",
    "parent": "parent",
    "worker": "worker",
    "type": "error_type",
    "fingerprint": "fingerprint",
}
"""Fields that must be equal → their columns."""
FIELDS: Final = (*LISTS, "tag", *EXACT, "error", "after", "before")
PARTS_MAX: Final = 50
_PART = re.compile(r'(?:([A-Za-z_]+(?:\.[^\s:"]+)?):)?(?:"((?:[^"\\]|\\.)*)"|([^\s"]\S*))')


class Terms(msgspec.Struct):
    """A search, taken apart."""

    task: list[str] = []
    """Names, or patterns with `*` and `?`; any of them."""
    queue: list[str] = []
    state: list[str] = []
    tags: list[str] = []
    exact: dict[str, str] = {}
    """Column → value."""
    args: list[tuple[tuple[str, ...], str]] = []
    """Path below the arguments, and the value."""
    errors: list[str] = []
    words: list[str] = []
    after: int | None = None
    before: int | None = None


def parse(text: str, now: int) -> Terms:
    """The parts of a search text; `InvalidInput` names the field that is wrong, and what is allowed."""
    terms, place, parts = Terms(), 0, 0
    while place < len(text):
        if text[place].isspace():
            place += 1
            continue
        match = _PART.match(text, place)
        if match is None or '"' in (match[3] or ""):
            allowed = 'a value follows a field, and a closing " an opening one'
            raise InvalidInput("q", text[place : place + 20], allowed)
        field, quoted, plain = match.groups()
        value = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else plain
        _add(terms, field, value, now, is_quoted=quoted is not None)
        place, parts = match.end(), parts + 1
        if parts > PARTS_MAX:
            raise InvalidInput("q", f"{parts} parts", f"at most {PARTS_MAX} parts are allowed")
    return terms


def _add(terms: Terms, field: str | None, value: str, now: int, *, is_quoted: bool) -> None:
    if field is None:
        terms.words.append(value)
    elif field in LISTS:
        values = [value] if is_quoted else [one for one in value.split(",") if one]
        getattr(terms, field).extend(map(_state, values) if field == "state" else values)
    elif field == "tag":
        terms.tags.append(value)
    elif field in EXACT:
        terms.exact[EXACT[field]] = value
    elif field == "error":
        terms.errors.append(value)
    elif field.startswith("arg."):
        terms.args.append((tuple(field.split(".")[1:]), value))
    elif field in ("after", "before"):
        setattr(terms, field, _time(field, value, now))
    else:
        names = f"{', '.join(FIELDS)} and arg.NAME are allowed; quote a word with a colon"
        raise InvalidInput(field, value, f"there is no such field: {did_you_mean(field, FIELDS)}{names}")


def _state(value: str) -> str:
    if value not in STATES:
        raise InvalidInput("state", value, f"one of {', '.join(STATES)} is allowed")
    return value


def _time(field: str, value: str, now: int) -> int:
    try:
        return now - parse_duration(field, value)
    except InvalidInput:
        pass
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        allowed = "a length of time before now like 30m or 1d, or a time like 2027-01-31T08:00Z, is allowed"
        raise InvalidInput(field, value, allowed) from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
