"""Lengths of time: as people write them, and as whole milliseconds."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from dray.errors import InvalidInput

SECOND: Final = 1_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
MAX_DURATION: Final = 36_525 * DAY
"""A hundred years: more is a mistake in units, and sums with a time must stay below 2**53."""

_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_DURATION = re.compile(rf"(?:{_NUMBER}d)?(?:{_NUMBER}h)?(?:{_NUMBER}m(?!s))?(?:{_NUMBER}s)?(?:{_NUMBER}ms)?")
PLAIN_NUMBER = re.compile(_NUMBER)
_UNITS: Final = (("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND), ("ms", 1))
_DURATION_FORMS = (
    "seconds, a text like 30s, 5m, 1h30m, 250ms or 2d, or a timedelta, up to 100 years, is allowed"
)


def parse_duration(field: str, value: str | int | float | timedelta | None) -> int:
    """Whole milliseconds of a length of time: seconds, `"30s"`, `"1h30m"`, `"250ms"`, `"2d"` or a timedelta.

    A text without a unit is seconds: environment variables are texts. A length above zero is at least one
    millisecond, because zero often means "off".

    >>> parse_duration("timeout", "1h30m")
    5400000
    """
    length = _milliseconds(value)
    if length is None or not 0 <= length <= MAX_DURATION:
        raise InvalidInput(field, value, _DURATION_FORMS)
    return round(length) or (1 if length else 0)


def _milliseconds(value: object) -> int | float | None:
    if isinstance(value, timedelta):
        return value / timedelta(milliseconds=1)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value * 1000
    if not isinstance(value, str):
        return None
    text = value.strip()
    if PLAIN_NUMBER.fullmatch(text):
        return float(text) * 1000
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        return None
    return sum(float(number) * unit for number, (_, unit) in zip(match.groups("0"), _UNITS, strict=True))


def format_duration(ms: int) -> str:
    """The shortest text that `parse_duration` reads back as the same number.

    >>> format_duration(5_400_000)
    '1h30m'
    """
    parts = []
    rest = ms
    for name, unit in _UNITS:
        amount, rest = divmod(rest, unit)
        if amount:
            parts.append(f"{amount}{name}")
    return "".join(parts) or "0s"
