"""When a schedule is due: cron expressions in a time zone, and plain intervals.

Times are whole milliseconds since the epoch. A rule is a value: it has the same ticks on every machine.

cronsim finds the wall-clock times of an expression. Where a zone changes its clocks, this module decides
which instants they are:

- a rule at fixed times (seconds, minutes and hours all without `*`) happens once for every wall-clock time:
  one that the clocks skip happens when they have been put forward, one that comes twice the first time;
- any other rule goes by elapsed time: a time that the clocks skip does not happen, one that comes twice
  happens twice, so that "every five minutes" means just that all year round.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final

import msgspec
from cronsim import CronSim, CronSimError

from dray.duration import format_duration, parse_duration
from dray.errors import InvalidInput, near_names
from dray.schedules.words import in_words, interval_in_words

ALIASES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
EXPRESSION_MAX: Final = 256
TIME_MAX: Final = 1 << 52
"""Later times cannot be stored."""
_FIELDS: Final = ("second", "minute", "hour", "day of month", "month", "day of week")
_SIZES: Final = (60, 60, 24, 31, 12, 7)
_FORMS: Final = (
    "five fields (minute hour day-of-month month day-of-week), six with seconds first, "
    f"or one of {', '.join(ALIASES)} is allowed"
)
_NEVER: Final = "there never is such a day"
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 (wall-clock times have no zone here)
_DAY: Final = 86_400


class Cron(msgspec.Struct, frozen=True, tag="cron"):
    """A cron expression and its time zone. Made by `Cron.parse`, which checks it."""

    expression: str
    tz: str = "UTC"

    @classmethod
    def parse(cls, expression: str, tz: str = "UTC") -> Cron:
        """Check an expression and a zone; one that can never come is refused.

        >>> Cron.parse("0 3 * * mon-fri", "Europe/London")
        Cron(expression='0 3 * * MON-FRI', tz='Europe/London')
        """
        _zone(_zone_name(tz))
        text = _one_writing(expression)
        _check_fields(expression, text)
        try:
            calendar = _calendar(text)
        except CronSimError as error:
            raise InvalidInput("cron", expression, _wording(text, error)) from None
        if _following(calendar, datetime(2000, 1, 1)) is None:  # noqa: DTZ001
            raise InvalidInput("cron", expression, _NEVER)
        return cls(text, tz)

    def next(self, after: int) -> int | None:
        """The first tick later than `after`; None if there is none."""
        zone, calendar = _zone(self.tz), _calendar(self.expression)
        try:
            if _is_fixed(self.expression):
                found = _next_time(calendar, zone, after // 1000)
            else:
                found = _next_passing(calendar, zone, after // 1000)
        except (OverflowError, ValueError):  # the end of the calendar
            return None
        return None if found is None else found * 1000

    def describe(self) -> str:
        """In plain words.

        >>> Cron("0 3 * * MON-FRI", "Europe/London").describe()
        'at 03:00 on Monday to Friday, Europe/London time'
        """
        words = in_words(ALIASES.get(self.expression, self.expression).split())
        return words if self.tz == "UTC" else f"{words}, {self.tz} time"

    def __str__(self) -> str:
        return self.expression


class Every(msgspec.Struct, frozen=True, tag="every"):
    """A fixed interval in milliseconds. Ticks are its multiples since the epoch."""

    interval: int

    @classmethod
    def parse(cls, interval: str | float | timedelta) -> Every:
        """Check an interval: `"30s"`, `"1h30m"`, seconds or a timedelta.

        >>> Every.parse("30s")
        Every(interval=30000)
        """
        length = parse_duration("every", interval)
        if length < 1000:
            raise InvalidInput("every", interval, "an interval from 1 second is allowed")
        return cls(length)

    def next(self, after: int) -> int | None:
        """The first tick later than `after`."""
        tick = (after // self.interval + 1) * self.interval
        return tick if tick < TIME_MAX else None

    def describe(self) -> str:
        """In plain words.

        >>> Every(90_000).describe()
        'every 1 minute 30 seconds'
        """
        return interval_in_words(self.interval)

    def __str__(self) -> str:
        return format_duration(self.interval)


Rule = Cron | Every


# fields


def _one_writing(expression: object) -> str:
    if not isinstance(expression, str) or len(expression) > EXPRESSION_MAX:
        raise InvalidInput("cron", expression, _FORMS)
    text = " ".join(expression.split())
    return text.lower() if text.startswith("@") else text.upper()


def _check_fields(expression: str, text: str) -> None:
    """Refuse expressions that cronsim takes but that cannot be meant."""
    if text.startswith("@"):
        if text not in ALIASES:
            raise InvalidInput("cron", expression, _FORMS)
        return
    fields = text.split()
    if len(fields) not in (5, 6):
        raise InvalidInput("cron", expression, _FORMS)
    for field, name, size in zip(fields[::-1], _FIELDS[::-1], _SIZES[::-1], strict=False):
        for term in field.split(","):
            _, slash, step = term.partition("/")
            if slash and step.isdecimal() and int(step) > size:
                raise InvalidInput(
                    "cron", expression, f"a step of the {name} is at most {size}; use every= for intervals"
                )


def _wording(text: str, error: CronSimError) -> str:
    """cronsim says "Bad day-of-month" also for a day that none of the given months has."""
    fields = text.split()
    if str(error) == "Bad day-of-month":
        with suppress(CronSimError):
            CronSim(" ".join([*fields[:-2], "*", fields[-1]]), _EPOCH)
            return _NEVER
    return f"the {str(error).removeprefix('Bad ').replace('-', ' ')} field is wrong; {_FORMS}"


@lru_cache(maxsize=1024)
def _calendar(expression: str) -> CronSim:
    text = ALIASES.get(expression, expression)
    fields = text.split()
    fields[-1] = fields[-1].replace("-SUN", "-7")  # a week may end on Sunday
    return CronSim(" ".join(fields), _EPOCH)


@lru_cache(maxsize=1024)
def _is_fixed(expression: str) -> bool:
    fields = ALIASES.get(expression, expression).split()
    return not any(field.startswith("*") for field in fields[:-3])


def _following(calendar: CronSim, wall: datetime) -> datetime | None:
    """The first wall-clock time later than `wall` (to the second) that fits."""
    walk = copy.copy(calendar)
    walk.dt = wall
    return next(walk, None)


# zones


def _zone_name(name: object) -> str:
    if not isinstance(name, str) or len(name) > EXPRESSION_MAX:
        raise InvalidInput("tz", name, _unknown_zone(""))
    return name


@lru_cache(maxsize=256)
def _zone(name: str) -> tzinfo:
    if name == "UTC":  # known without any data
        return UTC
    import zoneinfo  # large, and many apps have no zones

    try:
        if name == "localtime":
            raise ValueError(name)  # another zone on every machine
        return zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        raise InvalidInput("tz", name, _unknown_zone(name)) from None


def _unknown_zone(name: str) -> str:
    import zoneinfo

    known = zoneinfo.available_timezones()
    if not known:
        return "this machine has no time zone data, only UTC: install it with `pip install tzdata`"
    lower = {zone.lower(): zone for zone in known}
    near = near_names(name.lower(), lower, 3)
    hint = f"; did you mean {' or '.join(lower[one] for one in near)}?" if near else ""
    return f"the name of an IANA time zone such as Europe/London is allowed{hint}"


def _offset(zone: tzinfo, at: int) -> int:
    """How many seconds the zone's clocks are ahead of UTC."""
    shift = datetime.fromtimestamp(at, zone).utcoffset()
    return 0 if shift is None else int(shift.total_seconds())


def _change(zone: tzinfo, before: int, after: int) -> int:
    """The first second of the offset at `after`, which is not the one at `before`."""
    old = _offset(zone, before)
    while after - before > 1:
        middle = (before + after) // 2
        if _offset(zone, middle) == old:
            before = middle
        else:
            after = middle
    return after


def _wall(seconds: int) -> datetime:
    return _EPOCH + timedelta(seconds=seconds)


def _seconds(wall: datetime) -> int:
    return (wall - _EPOCH) // timedelta(seconds=1)


def _next_time(calendar: CronSim, zone: tzinfo, after: int) -> int | None:
    """The next tick of a rule at fixed times: every wall-clock time happens once."""
    wall: datetime | None = _wall(after + _offset(zone, after))
    while wall is not None:
        wall = _following(calendar, wall)
        if wall is None:
            break
        tick = _instant(zone, wall)
        if tick > after:  # false in the second pass through an hour: the first one counted
            return tick
    return None


def _instant(zone: tzinfo, wall: datetime) -> int:
    """The instant when the clocks first show this time, or have just jumped over it."""
    tick = int(wall.replace(tzinfo=zone).timestamp())
    if _wall(tick + _offset(zone, tick)) == wall:
        return tick
    skipped = _seconds(wall) - _offset(zone, tick)  # by the offset from after the jump: just before it
    return _change(zone, skipped, tick)


def _next_passing(calendar: CronSim, zone: tzinfo, after: int) -> int | None:
    """The next tick of a rule that goes by elapsed time.

    It goes from one change of the clocks to the next; in between, wall-clock time is instants plus an offset.
    """
    while True:
        offset = _offset(zone, after + 1)
        wall = _following(calendar, _wall(after + offset))
        if wall is None:
            return None
        tick = _seconds(wall) - offset
        near = min(tick, after + _DAY)
        if _offset(zone, near) != offset:
            change = _change(zone, after + 1, near)
            after = change - 1
        elif tick == near:
            return tick
        else:
            # No time that fits lies between, whatever the clocks do: they never move by more than a day.
            after = max(near, tick - 2 * _DAY)
