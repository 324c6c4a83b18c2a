"""Ticks of cron rules in zones that change their clocks, over ten years, against two independent answers.

One is counted out here, by no clever way: every wall-clock time that fits an expression is asked which
instants show it. The other is croniter, wherever it keeps to the same rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter  # type: ignore[import-untyped]

from dray.schedules.cron import Cron

ZONES = (
    "UTC",
    "Europe/London",
    "America/New_York",
    "Australia/Lord_Howe",  # by half an hour
    "America/Sao_Paulo",  # at midnight, until 2019
    "Asia/Kolkata",  # by half an hour off, and never
    "Africa/Casablanca",  # backwards for a month, at another time each year
    "America/Nuuk",  # at midnight, and the evening before
)
FIRST, LAST = date(2012, 1, 1), date(2021, 12, 31)
AT_FIXED_TIMES = ("30 1 * * 0", "0 0 * * 0", "59 1-3 29-31 * *", "0 30 2 * * SUN")
AS_HOURS_PASS = ("*/30 1,2 * * 0", "10 * * 11 SUN", "0 */30 0 * * SUN")
"""Clocks are changed on Sundays, but for a few years in Morocco."""
FREQUENT = ("*/5 * * * *", "40 * * * *", "*/7 1-3 * * *", "0,20,40 59 * * * *")


def numbers(field: str, least: int, most: int) -> set[int]:
    """A field without names, read anew."""
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, dash, last = span.partition("-")
        start = least if first == "*" else int(first)
        end = most if first == "*" or (step and not dash) else int(last or first)
        found |= set(range(start, end + 1, int(step or 1)))
    return found


class Expression:
    """Which wall-clock times fit, by comparing each of them with every field."""

    def __init__(self, text: str) -> None:
        fields = text.replace("SUN", "0").split()
        if len(fields) == 5:
            fields = ["0", *fields]
        ranges = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
        self.seconds, self.minutes, self.hours, self.days, self.months, self.weekdays = (
            sorted(numbers(field, *span)) for field, span in zip(fields, ranges, strict=True)
        )
        self.both = "*" in (fields[3][0], fields[5][0])
        self.fixed = not any(field.startswith("*") for field in fields[:3])

    def walls(self, first: date, last: date) -> Iterator[datetime]:
        day = first
        while day <= last:
            by_day, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
            fits = (by_day and by_weekday) if self.both else (by_day or by_weekday)
            if fits and day.month in self.months:
                for hour in self.hours:
                    for minute in self.minutes:
                        for second in self.seconds:
                            yield datetime(day.year, day.month, day.day, hour, minute, second)  # noqa: DTZ001
            day += timedelta(days=1)


def showing(wall: datetime, zone: ZoneInfo) -> list[int]:
    """The instants at which the zone's clocks show this time: none in a gap, two in an overlap."""
    both = {int(wall.replace(tzinfo=zone, fold=fold).timestamp()) for fold in (0, 1)}
    return sorted(at for at in both if datetime.fromtimestamp(at, zone).replace(tzinfo=None) == wall)


def expected(text: str, name: str, first: date = FIRST, last: date = LAST) -> list[int]:
    expression, zone = Expression(text), ZoneInfo(name)
    found: set[int] = set()
    for wall in expression.walls(first, last):
        instants = showing(wall, zone)
        if not expression.fixed:
            found.update(instants)
        else:
            while not instants:  # the first time that the clocks show after the gap
                wall = wall.replace(second=0) + timedelta(minutes=1)
                instants = showing(wall, zone)
            found.add(instants[0])
    return sorted(found)


def ticks(text: str, name: str, start: int, end: int) -> list[int]:
    rule, found = Cron.parse(text, name), []
    tick = rule.next(start * 1000 - 1)
    while tick is not None and tick <= end * 1000:
        assert tick % 1000 == 0
        found.append(tick // 1000)
        tick = rule.next(tick)
    return found


def changes(name: str) -> list[datetime]:
    """The days around which the zone's clocks were changed."""
    zone, day, found = ZoneInfo(name), datetime(2012, 1, 1, tzinfo=UTC), []
    while day.date() <= LAST:
        following = day + timedelta(days=1)
        if day.astimezone(zone).utcoffset() != following.astimezone(zone).utcoffset():
            found.append(day)
        day = following
    return found


@pytest.mark.parametrize("name", ZONES)
@pytest.mark.parametrize("text", [*AT_FIXED_TIMES, *AS_HOURS_PASS])
def test_ten_years_of_ticks_are_those_that_are_counted_out(text: str, name: str) -> None:
    want = expected(text, name)
    assert len(want) > 200
    assert ticks(text, name, want[0], want[-1]) == want


@pytest.mark.parametrize("name", ZONES)
@pytest.mark.parametrize("text", FREQUENT)
def test_around_every_change_of_the_clocks_no_tick_of_a_frequent_rule_is_lost_or_made_up(
    text: str, name: str
) -> None:
    days = changes(name) or [datetime(2015, 3, 29, tzinfo=UTC)]
    for day in days[:: max(1, len(days) // 4)]:
        first, last = (day - timedelta(days=1)).date(), (day + timedelta(days=2)).date()
        want = expected(text, name, first, last)
        assert ticks(text, name, want[0], want[-1]) == want


@pytest.mark.parametrize("name", ZONES)
def test_the_next_tick_is_the_same_from_wherever_it_is_asked(name: str) -> None:
    """Not only from tick to tick: a schedule may be read at any moment, also in the middle of an overlap."""
    days = changes(name)[-3:] or [datetime(2015, 3, 29, tzinfo=UTC)]
    for text in ("30 1 * * *", "*/20 1,2 * * *", "45 23,0,1 * * *"):
        rule = Cron.parse(text, name)
        for day in days:
            want = expected(text, name, day.date() - timedelta(days=2), day.date() + timedelta(days=4))
            start = int(day.timestamp()) - 7200
            for at in range(start, start + 30 * 3600, 1801):
                after = next(tick for tick in want if tick > at)
                assert rule.next(at * 1000) == after * 1000, (text, name, at)
                assert rule.next(at * 1000 + 999) == after * 1000


@pytest.mark.parametrize("name", ZONES)
@pytest.mark.parametrize("text", ["30 1 * * 0", "15 2 26-31 * *"])
def test_croniter_says_the_same_but_for_times_that_come_twice(text: str, name: str) -> None:
    zone = ZoneInfo(name)
    start = datetime(2022, 1, 1, tzinfo=zone)
    end = datetime(2031, 12, 31, tzinfo=zone)
    theirs, walk = set(), croniter(text, start)
    while (at := walk.get_next(datetime)) < end:
        if at.fold == 0:  # the second time of two: it takes both, we the first
            theirs.add(int(at.timestamp()))
    ours = set(ticks(text, name, int(start.timestamp()) + 1, int(end.timestamp()) - 1))
    # What the clocks skip is late here by as much as is left of the gap; there, sometimes, by the whole gap.
    odd = ours ^ theirs
    skipped = {at for at in odd if _after_gap(at, zone)}
    assert odd == skipped
    assert len(ours) == len(theirs)


def _after_gap(at: int, zone: ZoneInfo) -> bool:
    then, before = (datetime.fromtimestamp(moment, zone).utcoffset() for moment in (at, at - 7200))
    assert then is not None
    assert before is not None
    return then > before
