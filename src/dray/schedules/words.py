"""A cron expression in plain words: "every 5 minutes", "at 03:00 on Monday to Friday".

Takes expressions that `dray.schedules.cron` has checked. Rare ones come out long, but right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Final

import msgspec

from dray.duration import DAY, HOUR, MINUTE, SECOND

DAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS: Final = (
    *("", "January", "February", "March", "April", "May", "June", "July", "August", "September"),
    *("October", "November", "December"),
)
_ORDINALS: Final = ("", "first", "second", "third", "fourth", "fifth")
_TIMES_MOST: Final = 6
"""More times of day than these are not listed one by one."""


class Term(msgspec.Struct, frozen=True):
    """One part of a field between commas. `first` None stands for `*`."""

    first: int | None = None
    last: int = 0
    step: int = 1
    nth: int = 0
    """Which one of a month's weekdays; -1: the last."""
    special: str = ""
    """`L` or `LW` as a day of the month."""

    @property
    def single(self) -> bool:
        return self.first is not None and self.first == self.last and not self.nth


class Field:
    """One of an expression's fields, read into its terms."""

    def __init__(self, text: str, most: int, names: Sequence[str] = ()) -> None:
        self._names = {name[:3].upper(): place for place, name in reversed(list(enumerate(names))) if name}
        self._most = most
        self.starts_with_star = text.startswith("*")
        self.terms = list(dict.fromkeys(self._term(part) for part in text.split(",")))

    def _term(self, text: str) -> Term:
        text, _, step_text = text.partition("/")
        step = int(step_text or 1)
        if text == "*":
            return Term(step=step)
        if text in ("L", "LW"):
            return Term(-1, -1, special=text)
        if text.endswith("L"):
            day = self._number(text[:-1])
            return Term(day, day, nth=-1)
        if "#" in text:
            text, _, nth = text.partition("#")
            day = self._number(text)
            return Term(day, day, nth=int(nth))
        first_text, dash, last_text = text.partition("-")
        first = self._number(first_text)
        last = self._number(last_text) if dash else (self._most if step_text else first)
        if last < first:  # up to Sunday
            last += 7
        return Term(first, last, step)

    def _number(self, text: str) -> int:
        return self._names.get(text, -1) if text in self._names else int(text)

    @property
    def any(self) -> bool:
        """It is `*`."""
        return self.terms == [Term()]

    @property
    def every(self) -> int:
        """The n of `*/n`, 1 of `*`, else 0."""
        return self.terms[0].step if len(self.terms) == 1 and self.terms[0].first is None else 0

    @property
    def values(self) -> list[int]:
        """Its values if these were written one by one, else none."""
        found = [term.first for term in self.terms if term.single and term.first is not None]
        return sorted(found) if len(found) == len(self.terms) else []

    @property
    def span(self) -> tuple[int, int] | None:
        """First and last if it is one range without a step."""
        term = self.terms[0]
        if len(self.terms) > 1 or term.first is None or term.first == term.last or term.step > 1:
            return None
        return (term.first, term.last)

    def listed(self, label: Callable[[int], str] = str) -> str:
        return _and([self._said(term, label) for term in self.terms])

    def _said(self, term: Term, label: Callable[[int], str]) -> str:
        if term.special:
            return "the last weekday" if term.special == "LW" else "the last day"
        if term.first is None:
            return "all" if term.step == 1 else f"every {_ordinal(term.step)}"
        if term.nth:
            which = "last" if term.nth < 0 else _ORDINALS[term.nth]
            return f"the {which} {label(term.first)} of the month"
        if term.first == term.last:
            return label(term.first)
        span = f"{label(term.first)} to {label(term.last)}"
        return span if term.step == 1 else f"every {_ordinal(term.step)} from {span}"


def in_words(fields: Sequence[str]) -> str:
    """Five fields, or six with seconds first."""
    second, minute, hour, day, month, weekday = ["0", *fields] if len(fields) == 5 else fields
    when = _clock(Field(second, 59), Field(minute, 59), Field(hour, 23))
    date = _date(Field(day, 31), Field(month, 12, MONTHS), Field(weekday, 7, DAYS))
    if date:
        return f"{when} {date}"
    return f"{when} every day" if when.startswith("at ") and "every" not in when else when


# the time of day


def _clock(second: Field, minute: Field, hour: Field) -> str:
    times = list(product(hour.values, minute.values, second.values))
    if times and len(times) <= _TIMES_MOST:
        return f"at {_and([_time(*one) for one in times])}"
    if second.values == [0]:
        return _by_minute(minute, hour)
    if second.any and minute.any and hour.any:
        return "every second"
    if second.every and minute.any:
        return _in_hours(_each(second.every, 60, "second", "minute"), hour)
    seconds = f"at {_plural('second', second)} of"
    if minute.any:
        return _in_hours(f"{seconds} every minute", hour)
    return _in_hours(f"{seconds} {_plural('minute', minute)}", hour)


def _by_minute(minute: Field, hour: Field) -> str:
    if minute.every:
        return _in_hours(_each(minute.every, 60, "minute", "hour"), hour)
    if len(minute.values) == 1:
        return _once_an_hour(minute.values[0], hour)
    return _in_hours(f"at {_plural('minute', minute)}", hour, "of ")


def _once_an_hour(minute: int, hour: Field) -> str:
    if hour.every:
        words = _each(hour.every, 24, "hour", "day")
        return words if minute == 0 else f"{words}, at minute {minute}"
    if hour.span is not None:
        return f"every hour from {_time(hour.span[0], minute, 0)} to {_time(hour.span[1], minute, 0)}"
    return f"at minute {minute} of {_plural('hour', hour)}"


def _in_hours(words: str, hour: Field, of: str = "") -> str:
    if hour.any:
        return f"{words} {of}every hour" if of else words
    if hour.span is not None:
        return f"{words} from {_time(hour.span[0], 0, 0)} to {_time(hour.span[1], 59, 0)}"
    if len(hour.values) == 1:
        return f"{words} from {_time(hour.values[0], 0, 0)} to {_time(hour.values[0], 59, 0)}"
    return f"{words} of {_plural('hour', hour)}" if of else f"{words} in {_plural('hour', hour)}"


def _each(step: int, size: int, unit: str, larger: str) -> str:
    """`*/5` minutes is every 5 minutes; `*/7` starts anew with each hour, and is not every 7 minutes."""
    if step == 1:
        return f"every {unit}"
    if size % step == 0:
        return f"every {step} {unit}s" if step < size else f"every {larger}"
    return f"every {_ordinal(step)} {unit} of the {larger}"


def _plural(unit: str, field: Field) -> str:
    if field.every:
        return f"every {unit}" if field.any else f"every {_ordinal(field.every)} {unit}"
    term = field.terms[0]
    if len(field.terms) == 1 and term.step > 1:
        return f"every {_ordinal(term.step)} {unit} from {term.first} to {term.last}"
    return f"{unit}{'' if len(field.values) == 1 else 's'} {field.listed()}"


def _time(hour: int, minute: int, second: int) -> str:
    return f"{hour:02}:{minute:02}" + (f":{second:02}" if second else "")


# the date


def _date(day: Field, month: Field, weekday: Field) -> str:
    months = "" if month.any else f"in {month.listed(MONTHS.__getitem__)}"
    if weekday.any and len(day.values) == 1 and len(month.values) == 1 and day.values[0] > 0:
        return f"on {day.values[0]} {MONTHS[month.values[0]]}"
    days, weekdays = ("" if day.any else _days(day)), ("" if weekday.any else _weekdays(weekday))
    if days and weekdays:
        both = day.starts_with_star or weekday.starts_with_star
        days += f" if that is {weekdays}" if both else f" or on {weekdays}"
    elif weekdays:
        days = f"on {weekdays}"
    return " ".join(part for part in (days, months) if part)


def _days(day: Field) -> str:
    if any(term.special for term in day.terms):
        return f"on {day.listed(lambda value: f'day {value}')} of the month"
    if day.every:
        return f"on every {_ordinal(day.every)} day of the month"
    return f"on {_plural('day', day)} of the month"


def _weekdays(weekday: Field) -> str:
    if weekday.every:
        return _and([DAYS[value] for value in range(0, 7, weekday.every)])
    return weekday.listed(lambda value: DAYS[value % 7])


def _and(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def interval_in_words(ms: int) -> str:
    """
    >>> interval_in_words(5_400_000)
    'every 1 hour 30 minutes'
    """
    parts: list[tuple[int, str]] = []
    for unit, name in (
        (DAY, "day"),
        (HOUR, "hour"),
        (MINUTE, "minute"),
        (SECOND, "second"),
        (1, "millisecond"),
    ):
        amount, ms = divmod(ms, unit)
        if amount:
            parts.append((amount, name))
    if len(parts) == 1 and parts[0][0] == 1:
        return f"every {parts[0][1]}"
    return "every " + " ".join(f"{amount} {name}{'' if amount == 1 else 's'}" for amount, name in parts)
