"""Durations, rates, backoffs, and the check every job passes before it is put."""

from __future__ import annotations

import contextlib
import random
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.duration import DAY, HOUR, MAX_DURATION, MINUTE, SECOND, format_duration, parse_duration
from dray.errors import InvalidInput
from dray.job import Job
from dray.policy import (
    Backoff,
    Rate,
    Retention,
    check_batch,
    check_job,
    retry_delay,
)


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (30, 30_000),
        (0, 0),
        (0.25, 250),
        ("30", 30_000),
        ("1.5", 1500),
        ("30s", 30_000),
        ("5m", 300_000),
        ("1h", HOUR),
        ("1h30m", 90 * MINUTE),
        ("250ms", 250),
        ("1m250ms", 60_250),
        ("2d", 2 * DAY),
        ("1.5h", 90 * MINUTE),
        (" 30s ", 30_000),
        (timedelta(minutes=1, microseconds=1), 60_000),
        (timedelta(microseconds=1), 1),
        (0.0001, 1),
        (0.1 + 0.2, 300),
        ("36525d", MAX_DURATION),
    ],
)
def test_a_duration_is_seconds_or_text_or_timedelta(value: Any, ms: int) -> None:
    assert parse_duration("timeout", value) == ms


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        -1,
        -0.001,
        float("nan"),
        float("inf"),
        10**30,
        1e300,
        timedelta(seconds=-1),
        timedelta.max,
        "",
        " ",
        "s",
        "-5s",
        "5x",
        "5 s",
        "1m1h",
        "1s1s",
        "1e3",
        "nan",
        "inf",
        "1_0",
        "٣s",
        "9" * 5000,
        "9" * 400 + "d",
        "36526d",
        b"30s",
        [30],
        1 + 0j,
    ],
)
def test_a_wrong_duration_is_refused_by_the_name_of_its_field(value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_duration("lease", value)
    assert caught.value.field == "lease"


@given(st.integers(0, MAX_DURATION))
def test_a_formatted_duration_reads_back_the_same(ms: int) -> None:
    assert parse_duration("ttl", format_duration(ms)) == ms


@given(st.text("0123456789.smhd -", max_size=12) | st.text(max_size=12))
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidInput):
        assert 0 <= parse_duration("ttl", text) <= MAX_DURATION


@pytest.mark.parametrize(
    ("text", "count", "period", "burst"),
    [
        ("100/m", 100, MINUTE, 1),
        ("1000/s", 1000, SECOND, 100),
        ("100/m+20", 100, MINUTE, 20),
        ("1/d", 1, DAY, 1),
        ("10000/h", 10_000, HOUR, 1),
    ],
)
def test_a_rate_is_read_from_its_text(text: str, count: int, period: int, burst: int) -> None:
    assert Rate.parse(text) == Rate(count, period, burst)
    assert str(Rate.parse(text)) == text
    assert Rate.parse(text) is Rate.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "100",
        "0/m",
        "-1/m",
        "1.5/s",
        "1/w",
        "1/m+0",
        "1/m+",
        "1/ms",
        "2000000/s",
        "1/d+1000",
        None,
        5,
        ["1/m"],
    ],
)
def test_a_wrong_rate_is_refused(text: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        Rate.parse(text)
    assert caught.value.field == "rate"


PERIODS = st.sampled_from([SECOND, MINUTE, HOUR, DAY])


@st.composite
def rates(draw: st.DrawFn) -> Rate:
    period = draw(PERIODS)
    count = draw(st.integers(1, 50 * period))
    default = Rate.parse(f"{count}/{'smhd'[[SECOND, MINUTE, HOUR, DAY].index(period)]}")
    burst = draw(st.none() | st.integers(1, 50))
    return default if burst is None else Rate(count, period, burst)


@given(rates())
def test_a_rate_reads_back_from_its_text(rate: Rate) -> None:
    assert Rate.parse(str(rate)) == rate


def test_any_window_of_a_rate_holds_at_most_rate_times_window_plus_burst() -> None:
    for seed in range(60):
        chance = random.Random(seed)
        period = chance.choice([SECOND, MINUTE, HOUR])
        count = chance.randint(1, chance.choice([5, 100, 30 * period]))
        rate = Rate(count, period, chance.choice([1, 2, 7, 500]))
        starts = _starts(rate, chance, arrivals=150)
        _assert_no_window_is_over(rate, starts)


def _starts(rate: Rate, chance: random.Random, arrivals: int) -> list[tuple[int, int]]:
    """(time, how many started) for arrivals at random times, each taking a random part of what is free."""
    now, tat, starts = 1_700_000_000_000, 0, []
    scale = max(1, rate.interval * rate.burst // 1000)
    for _ in range(arrivals):
        now += chance.choice([0, 1, chance.randint(0, 3), chance.randint(0, 2 * scale)])
        free = rate.available(tat, now)
        n = chance.choice([free, min(free, 1), chance.randint(0, free)])
        if n:
            tat = rate.spend(tat, now, n)
            starts.append((now, n))
    return starts


def _assert_no_window_is_over(rate: Rate, starts: list[tuple[int, int]]) -> None:
    for first in range(len(starts)):
        total = 0
        for now, n in starts[first:]:
            total += n
            window = now - starts[first][0]
            assert total * rate.period <= rate.count * window + rate.burst * rate.period


@given(st.integers(1, 50_000), PERIODS)
def test_constant_demand_uses_at_least_95_percent_of_a_rate(count: int, period: int) -> None:
    _assert_used(count, period)


@pytest.mark.parametrize("count", [1, 19, 20, 29, 999, 1000, 1001, 33_334, 47_619, 49_999, 50_000])
def test_constant_demand_uses_awkward_rates_too(count: int) -> None:
    _assert_used(count, SECOND)


def _assert_used(count: int, period: int) -> None:
    rate = Rate.parse(f"{count}/{'smhd'[[SECOND, MINUTE, HOUR, DAY].index(period)]}")
    start = now = 1_700_000_000_000
    tat = done = 0
    for _ in range(400):
        free = rate.available(tat, now)
        assert free >= 1
        tat = rate.spend(tat, now, free)
        done += free
        now = rate.free_at(tat, now)
    assert done * rate.period >= 0.95 * rate.count * (now - start)


@given(rates(), st.integers(0, 2**50), st.integers(0, 2**40))
def test_free_at_is_the_first_moment_with_something_available(rate: Rate, tat: int, now: int) -> None:
    free_at = rate.free_at(tat, now)
    assert free_at >= now
    assert rate.available(tat, free_at) >= 1
    assert (free_at == now) == (rate.available(tat, now) >= 1)
    if free_at > now:
        assert rate.available(tat, free_at - 1) == 0
        assert free_at <= -(-tat // 1000)


@given(rates(), st.integers(2**20, 2**40), st.integers(0, 2**40), st.integers(0, 60_000))
def test_a_clock_that_goes_back_a_little_lets_no_more_through(
    rate: Rate, now: int, ahead: int, back: int
) -> None:
    tat = now * 1000 + min(ahead, rate.burst * rate.interval)
    earlier = now - back
    assert rate.available(tat, earlier) <= rate.available(tat, now)
    assert rate.spend(tat, earlier) >= tat + rate.interval
    assert rate.free_at(tat, earlier) <= max(earlier, -(-tat // 1000))


@given(rates(), st.integers(2**37, 2**40), st.integers(0, 2**40))
def test_a_clock_that_goes_back_far_holds_nothing_up_for_as_long(rate: Rate, now: int, ahead: int) -> None:
    """As does a limit that was raised: a tat beyond what starts could have brought counts for nothing."""
    longest = -(-rate.burst * rate.interval // 1000) + 60_000
    tat = now * 1000 + min(ahead, rate.burst * rate.interval)
    earlier = max(0, now - longest - 86_400_000)
    assert rate.free_at(tat, earlier) - earlier <= longest
    assert rate.available(tat, now - longest - 1) == rate.burst


def test_the_default_backoff_is_2_4_8_seconds_up_to_600() -> None:
    backoff = Backoff()
    assert [backoff.delay(n, lambda: 0.5) for n in (1, 2, 3, 9, 10, 10**6)] == [
        2000,
        4000,
        8000,
        512_000,
        600_000,
        600_000,
    ]


@pytest.mark.parametrize(
    ("text", "delays"),
    [
        ("exponential", [2000, 4000, 8000]),
        ("exponential:3", [3000, 9000, 27_000]),
        ("exponential:base=3,cap=5,jitter=0", [3000, 5000, 5000]),
        ("linear", [2000, 4000, 6000]),
        ("linear:10s", [10_000, 20_000, 30_000]),
        ("linear:1m,cap=90s", [60_000, 90_000, 90_000]),
        ("fixed:5s", [5000, 5000, 5000]),
        ("fixed:250ms,jitter=0.5", [250, 250, 250]),
        ("fixed:0", [0, 0, 0]),
    ],
)
def test_a_backoff_is_read_from_its_text(text: str, delays: list[int]) -> None:
    backoff = Backoff.parse(text)
    assert [backoff.delay(n, lambda: 0.5) for n in (1, 2, 3)] == delays
    assert Backoff.parse(str(backoff)) == backoff


@pytest.mark.parametrize(
    "text",
    [
        "",
        "random",
        "exponential:",
        "exponential:0.5",
        "exponential:3s",
        "exponential:nan",
        "exponential:cap=-1",
        "exponential:jitter=2",
        "exponential:jitter=10%",
        "exponential:cap=5,cap=6",
        "exponential:cap=5,3",
        "exponential:step=5",
        "linear:x",
        "fixed:-1s",
        "fixed 5s",
        None,
        5,
        ["fixed"],
    ],
)
def test_a_wrong_backoff_is_refused(text: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        Backoff.parse(text)
    assert caught.value.field == "backoff"


@st.composite
def backoffs(draw: st.DrawFn) -> Backoff:
    kind: Any = draw(st.sampled_from(["exponential", "linear", "fixed"]))
    base = draw(st.floats(1, 1e6) | st.integers(1, 100).map(float))
    share = draw(st.just(0.0) | st.floats(0.001, 1))
    return Backoff(kind, base, draw(st.integers(0, MAX_DURATION)), share)


@given(backoffs())
def test_a_backoff_reads_back_from_its_text(backoff: Backoff) -> None:
    assert Backoff.parse(str(backoff)) == backoff


@given(backoffs(), st.integers(1, 10**6) | st.just(10**400), st.floats(0, 1, exclude_max=True))
def test_a_delay_is_within_the_jitter_and_never_over_the_cap(backoff: Backoff, n: int, chance: float) -> None:
    middle = msgspec.structs.replace(backoff, jitter=0).delay(n, lambda: 0.5)
    delay = backoff.delay(n, lambda: chance)
    assert 0 <= delay <= backoff.cap
    assert abs(delay - middle) <= middle * backoff.jitter + 1


def test_delays_at_the_cap_are_still_spread() -> None:
    chance = random.Random(1)
    assert len({Backoff().delay(50, chance.random) for _ in range(100)}) > 90


def test_a_function_may_say_the_delay() -> None:
    assert retry_delay(lambda n, error: n * 1.5, 2, ValueError(), random.random) == 3000
    assert retry_delay(Backoff("fixed", jitter=0), 2, ValueError(), random.random) == 2000


@pytest.mark.parametrize("answer", [-1, float("nan"), float("inf"), None, True, "soon", [1], 1e12])
def test_a_function_that_says_no_delay_is_named(answer: Any) -> None:
    def my_backoff(attempt: int, error: BaseException) -> Any:
        return answer

    with pytest.raises(InvalidInput, match="my_backoff"):
        retry_delay(my_backoff, 1, ValueError(), random.random)


def test_retention_has_the_documented_defaults() -> None:
    assert Retention() == Retention(HOUR, DAY, DAY, None)


ID = "default:" + "0a" * 16
FULL = Job(
    id="email:" + "0a" * 16,
    task="email.send",
    queue="email",
    payload=b"x",
    priority=0,
    created=2**52,
    due=0,
    ttl=1,
    key="welcome:42",
    key_ttl=1,
    once=MAX_DURATION,
    on_duplicate="replace",
    group="tenant é",
    rate="100/m+5",
    rate_key="r",
    max_running=1,
    running_key="k",
    max_ready=1,
    overflow="drop-oldest",
    waits_for=("a", "b"),
    orphan="wait",
    parent="p",
    tags=("x", "y"),
    description="d" * 4096,
    retries=1_000_000,
    backoff="linear:10s",
    timeout=1,
    max_crashes=1,
    result_ttl=0,
    isolate="process",
    speculate=True,
    headers={"traceparent": "é" * 4000},
    deadline=MAX_DURATION,
)


def test_good_jobs_pass() -> None:
    check_job(Job(id=ID, task="t"))
    check_job(Job(id="my own id: " + "z" * 32, task="t"))
    check_job(FULL)


LENGTHS = ["ttl", "deadline", "key_ttl", "once", "timeout"]
WORDS = ["id", "key", "group", "rate_key", "running_key", "parent"]
NOT_INTS: list[Any] = [True, 1.0, "1", b"1", [1]]
WRONG_HEADERS: list[Any] = [{"a": 1}, {1: "a"}, {"a": "x" * 8192}, {"\ud800": ""}, None, [], "", ()]
WRONG: list[tuple[str, Any]] = [
    *[
        (field, value)
        for field in ("queue", "task")
        for value in ("", "a b", "é", "a" * 129, "a\n", None, 1, ["a"])
    ],
    *[(field, value) for field in WORDS for value in ("", "a" * 257, "a\n", "\ud800", 1, b"a", ["a"])],
    ("id", None),
    ("id", "other:" + "0a" * 16),
    *[(field, value) for field in LENGTHS for value in (*NOT_INTS, 0, -1, MAX_DURATION + 1)],
    *[("result_ttl", value) for value in (*NOT_INTS, -1, MAX_DURATION + 1)],
    *[(field, value) for field in ("created", "due") for value in (*NOT_INTS, -1, 2**52 + 1)],
    *[("version", value) for value in (*NOT_INTS, 0, -1, None)],
    *[("priority", value) for value in (*NOT_INTS, -1, 10, "high", None)],
    *[("retries", value) for value in (*NOT_INTS, -1, 1_000_001, None)],
    *[(f, value) for f in ("max_running", "max_ready", "max_crashes") for value in (*NOT_INTS, 0, -1)],
    *[(f, value) for f in ("on_duplicate", "overflow", "orphan") for value in ("", "x", None, 1, ["wait"])],
    ("created", None),
    ("max_crashes", None),
    ("rate", "fast"),
    ("rate", 5),
    ("backoff", "slow"),
    ("backoff", 5),
    ("isolate", ""),
    ("isolate", 1),
    ("speculate", 0),
    ("speculate", None),
    *[("payload", value) for value in ("x", bytearray(b"x"), None)],
    *[("waits_for", value) for value in (["a"], ("",), ("a", "a"), (FULL.id,), (1,), None, "ab", 0)],
    ("waits_for", tuple(map(str, range(100_001)))),
    *[("tags", value) for value in (["a"], ("",), (1,), None, "ab", tuple("a" * 101))],
    *[("description", value) for value in ("d" * 4097, None, 1, "\ud800", b"")],
    *[("headers", value) for value in WRONG_HEADERS],
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_job(msgspec.structs.replace(FULL, **{field: value}))
    assert caught.value.field == field


def test_a_key_ttl_needs_a_key() -> None:
    with pytest.raises(InvalidInput, match="key_ttl"):
        check_job(Job(id=ID, task="t", key_ttl=5))


ANYTHING = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.lists(st.integers())
)


ALSO_NAMES = {"key": "key_ttl", "queue": "id", "node": "owner", "on_duplicate": "node"}
"""Fields that may make another one wrong."""


@given(st.sampled_from(Job.__struct_fields__), ANYTHING)
def test_any_value_in_any_field_passes_or_is_refused_by_name(field: str, value: Any) -> None:
    named = field
    try:
        check_job(msgspec.structs.replace(FULL, **{field: value}))
    except InvalidInput as error:
        named = error.field
    assert named in {field, ALSO_NAMES.get(field)}


def _jobs(waits: dict[str, tuple[str, ...]]) -> list[Job]:
    return [Job(id=id, task="t", waits_for=needed) for id, needed in waits.items()]


@pytest.mark.parametrize(
    "waits",
    [
        {"a": ("b",), "b": ("a",)},
        {"a": ("b",), "b": ("c",), "c": ("d",), "d": ("b", "x")},
        {str(n): (str((n + 1) % 20_000),) for n in range(20_000)},
    ],
    ids=["two", "behind a tail", "twenty thousand"],
)
def test_a_batch_that_waits_for_itself_is_refused(waits: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_batch(_jobs(waits))
    assert caught.value.field == "waits_for"


def test_the_circle_is_named() -> None:
    with pytest.raises(InvalidInput, match="b -> c -> b"):
        check_batch(_jobs({"a": ("b",), "b": ("c",), "c": ("b",)}))


def test_a_batch_without_a_circle_passes() -> None:
    check_batch([])
    check_batch(_jobs({"a": ("b", "c"), "b": ("c", "elsewhere"), "c": ()}))
    check_batch(_jobs({str(n): (str(n + 1),) for n in range(20_000)}))


def test_a_batch_checks_each_job() -> None:
    with pytest.raises(InvalidInput, match="priority"):
        check_batch([Job(id="a", task="t"), Job(id="b", task="t", priority=10)])


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=14))
def test_circles_are_found_as_a_plain_search_finds_them(edges: list[tuple[int, int]]) -> None:
    links: dict[int, set[int]] = {n: set() for n in range(9)}
    for here, there in edges:
        if here != there:
            links[here].add(there)
    batch = _jobs({str(n): tuple(map(str, needed)) for n, needed in links.items()})
    if _has_circle(links):
        with pytest.raises(InvalidInput, match="waits_for"):
            check_batch(batch)
    else:
        check_batch(batch)


def _has_circle(links: dict[int, set[int]]) -> bool:
    reached = {n: set(needed) for n, needed in links.items()}
    for _ in links:
        for seen in reached.values():
            seen.update(*(links[n] for n in list(seen)))
    return any(n in seen for n, seen in reached.items())
