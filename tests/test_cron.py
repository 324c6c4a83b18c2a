"""Cron expressions and intervals: what is read, what is refused, what comes next, how it is said."""

from __future__ import annotations

import sys
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from croniter import croniter  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.errors import InvalidInput
from dray.schedules import cron
from dray.schedules.cron import ALIASES, Cron, Every, Rule


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def upcoming(rule: Rule, after: str, count: int) -> list[str]:
    found: list[str] = []
    tick = rule.next(ms(after))
    while tick is not None and len(found) < count:
        found.append(datetime.fromtimestamp(tick / 1000, UTC).strftime("%m-%d %H:%M:%S"))
        tick = rule.next(tick)
    return found


@pytest.mark.parametrize(
    ("text", "ticks"),
    [
        ("*/20 * * * *", ["01-01 10:20:00", "01-01 10:40:00", "01-01 11:00:00"]),
        ("0 3 * * mon-fri", ["01-02 03:00:00", "01-03 03:00:00", "01-06 03:00:00"]),
        ("  0   3 * *   7 ", ["01-05 03:00:00", "01-12 03:00:00"]),
        ("0 0 * * fri-sun", ["01-03 00:00:00", "01-04 00:00:00", "01-05 00:00:00", "01-10 00:00:00"]),
        ("0 0 1 feb,Mar *", ["02-01 00:00:00", "03-01 00:00:00", "02-01 00:00:00"]),
        ("*/30 * * * * *", ["01-01 10:00:30", "01-01 10:01:00"]),
        ("15 30 10 * * *", ["01-01 10:30:15", "01-02 10:30:15"]),
        ("0 0 13 * FRI", ["01-03 00:00:00", "01-10 00:00:00", "01-13 00:00:00"]),
        ("0 0 */10 * FRI", ["01-31 00:00:00", "02-21 00:00:00"]),
        ("0 0 L * *", ["01-31 00:00:00", "02-28 00:00:00"]),
        (
            "0 0 LW * *",
            ["01-31 00:00:00", "02-28 00:00:00", "03-31 00:00:00", "04-30 00:00:00", "05-30 00:00:00"],
        ),
        ("0 0 * * 2#1", ["01-07 00:00:00", "02-04 00:00:00"]),
        ("0 0 * * 5L", ["01-31 00:00:00", "02-28 00:00:00"]),
        ("0 12 29 2 *", ["02-29 12:00:00", "02-29 12:00:00"]),
        ("5-59/20 * * * *", ["01-01 10:05:00", "01-01 10:25:00", "01-01 10:45:00", "01-01 11:05:00"]),
        ("@hourly", ["01-01 11:00:00"]),
        ("@daily", ["01-02 00:00:00"]),
        ("@MIDNIGHT", ["01-02 00:00:00"]),
        ("@weekly", ["01-05 00:00:00"]),
        ("@monthly", ["02-01 00:00:00"]),
        ("@yearly", ["01-01 00:00:00"]),
    ],
)
def test_the_next_ticks_of_an_expression(text: str, ticks: list[str]) -> None:
    assert upcoming(Cron.parse(text), "2025-01-01T10:00:00", len(ticks)) == ticks


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0 0 30 2 *", "there never is such a day"),
        ("0 0 31 2,4,6,9,11 *", "there never is such a day"),
        ("0 0 * 13 *", "the month field is wrong"),
        ("0 0 31 13 *", "the month field is wrong"),
        ("60 * * * *", "the minute field is wrong"),
        ("0 24 * * *", "the hour field is wrong"),
        ("0 0 0 * *", "the day of month field is wrong"),
        ("0 0 * * 8", "the day of week field is wrong"),
        ("0 0 * * FRI-MON", "the day of week field is wrong"),
        ("61 0 0 * * *", "the second field is wrong"),
        ("*/90 * * * *", "a step of the minute is at most 60; use every"),
        ("0 */48 * * *", "a step of the hour is at most 24"),
        ("*/0 * * * *", "the minute field is wrong"),
        ("* * * *", "five fields"),
        ("* * * * * * *", "five fields"),
        ("", "five fields"),
        ("@reboot", "five fields"),
        ("@every 5m", "five fields"),
        ("1," * 200 + "1 * * * *", "five fields"),
        ("１ * * * *", "the minute field is wrong"),
        ("* * * * \x00", "the day of week field is wrong"),
    ],
)
def test_an_expression_that_cannot_be_meant_is_refused_at_once(text: str, says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Cron.parse(text)
    assert caught.value.field == "cron"
    assert says in caught.value.allowed


@pytest.mark.parametrize("text", [None, 5, b"* * * * *", ["*"]])
def test_what_is_no_text_is_refused(text: Any) -> None:
    with pytest.raises(InvalidInput, match="cron="):
        Cron.parse(text)


@given(st.text(alphabet="0123456789*/-,#LWMONJAN @ \n²ß", max_size=40) | st.text(max_size=40))
def test_no_nonsense_does_anything_but_be_refused_by_its_name(text: str) -> None:
    try:
        rule = Cron.parse(text)
    except InvalidInput as error:
        assert error.field == "cron"  # noqa: PT017
    else:
        assert rule.describe()
        assert rule.next(0) is not None


@pytest.mark.parametrize(
    ("tz", "hint"),
    [
        ("Europe/Lodnon", "did you mean Europe/London"),
        ("europe/london", "did you mean Europe/London"),
        ("", "such as"),
        ("Europe", "such as"),
        ("../../etc/passwd", "such as"),
        ("localtime", "such as"),
        ("a\x00b", "such as"),
        ("x" * 5000, "such as"),
        (None, "such as"),
        (7, "such as"),
        ([], "such as"),
    ],
)
def test_a_zone_that_does_not_exist_is_refused_with_those_that_are_near(tz: Any, hint: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Cron.parse("@daily", tz)
    assert caught.value.field == "tz"
    assert hint in caught.value.allowed


@pytest.fixture
def no_zones(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine without time zone data, as slim images are."""
    for name in [name for name in sys.modules if name.startswith("tzdata.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tzdata", None)
    zoneinfo.reset_tzpath(to=[])
    zoneinfo.ZoneInfo.clear_cache()
    cron._zone.cache_clear()
    yield
    zoneinfo.reset_tzpath()


@pytest.mark.usefixtures("no_zones")
def test_a_machine_without_zones_knows_utc_and_says_what_to_install() -> None:
    assert Cron.parse("@daily").next(0) == 86_400_000
    with pytest.raises(InvalidInput, match="pip install tzdata"):
        Cron.parse("@daily", "Europe/London")
    with pytest.raises(InvalidInput, match="pip install tzdata"):
        Cron("@daily", "Europe/London").next(0)
    assert Cron("@daily", "Europe/London").describe() == "at 00:00 every day, Europe/London time"


# random expressions


def field(least: int, most: int) -> st.SearchStrategy[str]:
    number = st.integers(least, most)
    # From n to n is every day of the week to croniter.
    span = st.tuples(number, number).filter(lambda two: two[0] < two[1]).map(lambda two: f"{two[0]}-{two[1]}")
    step = st.integers(1, most)
    term = number.map(str) | span | st.tuples(span, step).map(lambda two: f"{two[0]}/{two[1]}")
    several = st.lists(term, min_size=1, max_size=3).map(",".join)
    return st.just("*") | step.map(lambda step: f"*/{step}") | several


EXPRESSIONS = st.tuples(field(0, 59), field(0, 23), field(1, 28), field(1, 12), field(0, 6)).map(" ".join)
MOMENTS = st.integers(ms("1999-12-31T00:00:00"), ms("2060-01-01T00:00:00"))


@given(EXPRESSIONS, MOMENTS)
def test_any_expression_is_read_described_and_stored_and_its_ticks_go_up(text: str, after: int) -> None:
    rule = Cron.parse(text, "Australia/Lord_Howe")
    assert rule.describe().endswith(", Australia/Lord_Howe time")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(rule), type=Cron | Every) == rule
    tick = after
    for _ in range(3):
        following = rule.next(tick)
        assert following is not None
        assert following > tick
        assert rule.next(following - 1) == following
        tick = following


@settings(max_examples=60)
@given(EXPRESSIONS, MOMENTS)
def test_the_calendar_is_that_of_croniter(text: str, after: int) -> None:
    fields = text.split()
    if fields[2] != "*" and fields[4] != "*" and "*" in (fields[2][0], fields[4][0]):
        fields[4] = "*"  # "*/2" and a weekday: cron wants both to fit, croniter takes either
        text = " ".join(fields)
    start = datetime.fromtimestamp(after // 1000, UTC).replace(tzinfo=None)
    walk, rule, tick = croniter(text, start), Cron.parse(text), after // 1000 * 1000
    for _ in range(3):
        following = rule.next(tick)
        assert following is not None
        assert datetime.fromtimestamp(following / 1000, UTC).replace(tzinfo=None) == walk.get_next(datetime)
        tick = following


def test_the_end_of_the_calendar_is_no_tick() -> None:
    assert Cron.parse("@yearly").next(ms("9999-06-01T00:00:00")) is None
    assert Cron.parse("* * * * *", "Europe/London").next(ms("9999-12-31T23:59:00")) is None
    assert Cron.parse("* * * * *").next(1 << 52) is None


def test_a_day_that_comes_once_in_a_generation_is_found_from_anywhere() -> None:
    rule = Cron.parse("0 0 29 2 */7", "America/New_York")  # a leap day that is a Sunday
    tick = rule.next(ms("2025-01-01T00:00:00"))
    years: list[int] = []
    while tick is not None and len(years) < 4:
        years.append(datetime.fromtimestamp(tick / 1000, UTC).year)
        tick = rule.next(tick)
    assert years == [2032, 2060, 2088, 2128]


# in plain words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("* * * * *", "every minute"),
        ("* * * * * *", "every second"),
        ("*/10 * * * * *", "every 10 seconds"),
        ("30 * * * * *", "at second 30 of every minute"),
        ("*/5 * * * *", "every 5 minutes"),
        ("*/7 * * * *", "every 7th minute of the hour"),
        ("0 * * * *", "every hour"),
        ("30 * * * *", "every hour, at minute 30"),
        ("5,35 * * * *", "at minutes 5 and 35 of every hour"),
        ("0-29 * * * *", "at minutes 0 to 29 of every hour"),
        ("10-20/5 * * * *", "at every 5th minute from 10 to 20 of every hour"),
        ("0 */2 * * *", "every 2 hours"),
        ("15 */6 * * *", "every 6 hours, at minute 15"),
        ("0 9-17 * * 1-5", "every hour from 09:00 to 17:00 on Monday to Friday"),
        ("*/15 9-17 * * *", "every 15 minutes from 09:00 to 17:59"),
        ("*/5 3 * * *", "every 5 minutes from 03:00 to 03:59"),
        ("0 3 * * *", "at 03:00 every day"),
        ("0 3,15 * * *", "at 03:00 and 15:00 every day"),
        ("30 15 10 * * *", "at 10:15:30 every day"),
        ("30 4 1,15 * *", "at 04:30 on days 1 and 15 of the month"),
        ("0 0 25 12 *", "at 00:00 on 25 December"),
        ("0 0 * JAN-MAR *", "at 00:00 in January to March"),
        ("0 0 * 6,7 SUN", "at 00:00 on Sunday in June and July"),
        ("0 0 * * FRI-SUN", "at 00:00 on Friday to Sunday"),
        ("0 0 * * */2", "at 00:00 on Sunday, Tuesday, Thursday and Saturday"),
        ("0 0 */2 * *", "at 00:00 on every 2nd day of the month"),
        ("0 0 13 * FRI", "at 00:00 on day 13 of the month or on Friday"),
        ("0 0 */2 * FRI", "at 00:00 on every 2nd day of the month if that is Friday"),
        ("0 12 * * MON#2", "at 12:00 on the second Monday of the month"),
        ("0 12 * * 5L", "at 12:00 on the last Friday of the month"),
        ("0 0 L * *", "at 00:00 on the last day of the month"),
        ("0 0 LW * *", "at 00:00 on the last weekday of the month"),
        ("@weekly", "at 00:00 on Sunday"),
    ],
)
def test_expressions_in_plain_words(text: str, words: str) -> None:
    assert Cron.parse(text).describe() == words


def test_every_short_name_has_words_and_ticks() -> None:
    for name in ALIASES:
        assert Cron.parse(name).describe() == Cron.parse(ALIASES[name]).describe()
        assert Cron.parse(name).next(0) == Cron.parse(ALIASES[name]).next(0)
        assert str(Cron.parse(name)) == name


# intervals


@pytest.mark.parametrize(
    ("given", "interval", "words", "text"),
    [
        ("30s", 30_000, "every 30 seconds", "30s"),
        (1, 1_000, "every second", "1s"),
        (timedelta(hours=1), 3_600_000, "every hour", "1h"),
        ("1h30m", 5_400_000, "every 1 hour 30 minutes", "1h30m"),
        ("2d", 172_800_000, "every 2 days", "2d"),
        (1.5, 1_500, "every 1 second 500 milliseconds", "1s500ms"),
    ],
)
def test_intervals_tick_at_their_multiples_for_everybody(
    given: Any, interval: int, words: str, text: str
) -> None:
    rule = Every.parse(given)
    assert (rule.interval, rule.describe(), str(rule)) == (interval, words, text)
    assert Every.parse(text) == rule
    for after in (-1, 0, 1, interval - 1, interval, 1_700_000_000_123):
        tick = rule.next(after)
        assert tick is not None
        assert tick % interval == 0
        assert after < tick <= after + interval


@pytest.mark.parametrize("given", [0, "0s", "999ms", "", "soon", -5, None, "101y", 1e12])
def test_an_interval_below_a_second_or_without_sense_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInput, match="every="):
        Every.parse(given)


def test_an_interval_ends_with_the_times_that_can_be_stored() -> None:
    assert Every.parse("1d").next(1 << 52) is None
