"""How values are shown: in types that JSON has, and without acting on the terminal."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from time import tzset
from uuid import UUID

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dray.cli.output import age, brief, harmless, now_ms, one_line, plain, rough, stamp
from dray.job import Progress, State


class Colour(Enum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (True, True),
        (2**70, 2**70),
        (1.5, 1.5),
        (float("inf"), None),
        (State.DEAD, "dead"),
        (Colour.RED, 1),
        (b"\x00\xff", "AP8="),
        ((1, "a"), [1, "a"]),
        ({3, 1, 2}, [1, 2, 3]),
        ({1: {"a": b""}, None: 2}, {"1": {"a": ""}, "None": 2}),
        (datetime(2027, 1, 31, 8, tzinfo=UTC), "2027-01-31T08:00:00+00:00"),
        (date(2027, 1, 31), "2027-01-31"),
        (time(8, 30), "08:30:00"),
        (timedelta(minutes=1), 60.0),
        (Decimal("1.50"), "1.50"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Progress(1, 2, "x"), {"done": 1, "total": 2, "note": "x", "data": {}}),
    ],
)
def test_every_value_has_a_form_in_json(value: object, shown: object) -> None:
    assert plain(value) == shown
    json.dumps(plain(value), allow_nan=False)


_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.datetimes()
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner),
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(_VALUES)
def test_no_value_makes_the_printer_stumble(value: object) -> None:
    text = json.dumps(plain(value), allow_nan=False)
    assert json.loads(text) == plain(value)
    assert "\n" not in brief(value)


@given(st.text())
def test_harmless_text_holds_no_control_characters_but_lines_and_tabs(text: str) -> None:
    shown = harmless(text)
    assert not [char for char in shown if (ord(char) < 32 and char not in "\n\t") or 127 <= ord(char) < 160]
    assert harmless(shown) == shown


def test_text_that_turns_around_is_harmless() -> None:
    assert harmless("a\u202eb\u2066c") == "a\\u202eb\\u2066c"
    assert harmless("plain ünïcode ✓ 漢字") == "plain ünïcode ✓ 漢字"


def test_long_text_is_cut_to_one_line() -> None:
    assert one_line("a\n b\t c") == "a b c"
    assert one_line("x" * 100, 10) == "x" * 9 + "…"


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0s"), (999, "0s"), (1_000, "1s"), (90_000, "1m"), (7_200_000, "2h"), (200_000_000, "2d")],
)
def test_lengths_are_told_roughly(ms: int, text: str) -> None:
    assert rough(ms) == text


def test_times_are_told_from_now() -> None:
    assert age(None) == ""
    assert age(now_ms() - 90_000) == "1m ago"
    assert age(now_ms() + 100_000) == "in 1m"
    assert age(datetime.now(UTC) - timedelta(seconds=1)).endswith("ago")


def test_structs_are_shown_by_their_fields() -> None:
    class Inner(msgspec.Struct, array_like=True):
        a: int
        b: str

    assert plain([Inner(1, "x")]) == [{"a": 1, "b": "x"}]


def test_a_time_names_its_zone_whatever_the_zone_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    tzset()
    try:
        there = datetime(2020, 1, 2, 12, 0, tzinfo=timezone(timedelta(hours=9)))
        assert stamp(there).startswith("2020-01-02 03:00:00 UTC (")
    finally:
        monkeypatch.undo()
        tzset()
