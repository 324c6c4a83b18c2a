"""Options of one call: what they become in the job, and which values are refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from by_hand import Say
from hypothesis import given, settings
from hypothesis import strategies as st

from dray import App, InvalidInput
from dray.codec.payload import pack, unpack
from dray.duration import MAX_DURATION
from dray.job import Job
from dray.options import (
    TABLE,
    Place,
    ScheduledJobOptions,
    TaskOptions,
    TaskSettings,
    Using,
    options_of,
    read_options,
)
from dray.policy import check_job
from dray.schedules.decorators import TICK_OPTIONS, TickOptions
from dray.settings import Settings
from dray.task import Call

pytest_plugins = ["shop"]

NOON = datetime(2031, 5, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def app(memory_app: App) -> App:
    memory_app.clock = lambda: 1_000_000

    @memory_app.task
    def send(to: str = "") -> None: ...

    return memory_app


GOOD: list[tuple[str, Any, str, Any]] = [
    ("delay", 60, "due", 1_060_000),
    ("delay", "1m30s", "due", 1_090_000),
    ("delay", timedelta(milliseconds=5), "due", 1_000_005),
    ("delay", 0, "due", None),
    ("at", NOON, "due", round(NOON.timestamp() * 1000)),
    ("at", NOON.astimezone(timezone(timedelta(hours=5))), "due", round(NOON.timestamp() * 1000)),
    ("at", datetime(2031, 5, 1), "due", round(datetime(2031, 5, 1).timestamp() * 1000)),  # noqa: DTZ001
    ("queue", "email", "queue", "email"),
    ("priority", "low", "priority", 9),
    ("retries", 0, "retries", 0),
    ("backoff", "fixed:3s", "backoff", "fixed:3"),
    ("timeout", 2.5, "timeout", 2500),
    ("timeout", 0, "timeout", MAX_DURATION),
    ("key", "welcome:42", "key", "welcome:42"),
    ("on_duplicate", "raise", "on_duplicate", "raise"),
    ("once", "1d", "once", 86_400_000),
    ("id", "order 17/ü", "id", "order 17/ü"),
    ("group", "tenant 1", "group", "tenant 1"),
    ("ttl", "1h", "ttl", 3_600_000),
    ("ttl", 0, "ttl", None),
    ("deadline", "2h", "deadline", 7_200_000),
    ("deadline", 0.0001, "deadline", 1),
    ("result_ttl", 0, "result_ttl", 0),
    ("tags", ("a", "b"), "tags", ("a", "b")),
    ("description", "why\nnot", "description", "why\nnot"),
    ("headers", {"trace": "1"}, "headers", {"trace": "1"}),
    ("durability", "full", "queue", "default"),
    ("key", None, "key", None),
]


@pytest.mark.parametrize(("option", "value", "field", "stored"), GOOD)
def test_each_option_of_a_call_reaches_the_job(
    app: App, option: str, value: Any, field: str, stored: Any
) -> None:
    job = app.job_builder.build(app.tasks["send"].using(**{option: value}).call())
    assert getattr(job, field) == stored
    check_job(job)
    by_name = app.job_builder.build(app.using(**{option: value}).call("send"))
    assert getattr(by_name, field) == stored


WRONG: list[tuple[str, Any, str]] = [
    ("delay", -1, "seconds, a text like 30s"),
    ("delay", "later", "seconds, a text like 30s"),
    ("delay", "200y", "seconds, a text like 30s"),
    ("at", "2031-05-01", "a datetime is allowed"),
    ("at", 1_900_000_000, "a datetime is allowed"),
    ("at", datetime(1969, 1, 1, tzinfo=UTC), "a time from 1970 to 9999"),
    ("at", datetime(1, 1, 1), "a time from 1970 to 9999"),  # noqa: DTZ001
    ("queue", "e mail", "1-128 characters of A-Z"),
    ("queue", "", "1-128 characters of A-Z"),
    ("priority", -1, "high, normal, low or an integer from 0 to 9"),
    ("priority", 1.0, "high, normal, low or an integer from 0 to 9"),
    ("retries", 1.5, "a whole number from 0"),
    ("backoff", "fast", "exponential, linear or fixed"),
    ("backoff", lambda attempt, error: 1, "exponential, linear or fixed"),
    ("timeout", "x", "seconds, a text like 30s"),
    ("key", "", "1-256 printable characters"),
    ("key", 42, "1-256 printable characters"),
    ("key", "k" * 257, "1-256 printable characters"),
    ("key_ttl", 0, "above 0"),
    ("key_ttl", "x", "seconds, a text like 30s"),
    ("on_duplicate", "skip", "return, raise or replace"),
    ("once", -1, "seconds, a text like 30s"),
    ("id", "a\nb", "1-256 printable characters"),
    ("group", "", "1-256 printable characters"),
    ("ttl", [], "seconds, a text like 30s"),
    ("deadline", 0, "above 0"),
    ("deadline", -1, "seconds, a text like 30s"),
    ("deadline", True, "seconds, a text like 30s"),
    ("deadline", "36526d", "up to 100 years"),
    ("result_ttl", None.__class__, "seconds, a text like 30s"),
    ("tags", "tag", "a list of texts"),
    ("tags", [1], "1-256 printable characters"),
    ("description", b"x", "a text of at most 4096 characters"),
    ("description", "x" * 4097, "a text of at most 4096 characters"),
    ("durability", "max", "normal or full"),
    ("headers", {"a": 1}, "a dict of texts to texts"),
    ("headers", "a=b", "a dict of texts to texts"),
    ("headers", {"a": "x" * 9000}, "at most 8 KiB"),
]


@pytest.mark.parametrize(("option", "value", "allowed"), WRONG)
def test_each_wrong_value_is_refused_by_its_name_before_anything_happens(
    app: App, option: str, value: Any, allowed: str
) -> None:
    for using in (app.tasks["send"].using, app.using):
        with pytest.raises(InvalidInput) as refused:
            using(**{option: value})
        assert refused.value.field == option
        assert allowed in str(refused.value)
    assert app.jobs.find() == []


def test_an_unknown_option_is_refused_with_those_there_are(app: App) -> None:
    with pytest.raises(InvalidInput, match=r"'prio'.*description.*priority"):
        app.tasks["send"].using(prio=1)  # type: ignore[call-arg]


def test_a_delay_and_a_time_together_are_refused(app: App) -> None:
    with pytest.raises(InvalidInput, match="either delay or at"):
        app.using(delay=5, at=NOON)


def test_the_later_of_a_delay_and_a_time_counts_when_they_are_chained(app: App) -> None:
    send = app.tasks["send"]
    assert app.job_builder.build(send.using(at=NOON).using(delay=1).call()).due == 1_001_000
    later = send.using(delay=1).using(at=NOON).call()
    assert app.job_builder.build(later).due == round(NOON.timestamp() * 1000)
    kept = send.using(delay=1, queue="a").using(priority="high").call()
    assert app.job_builder.build(kept).due == 1_001_000
    assert app.job_builder.build(kept).queue == "a"


def test_options_of_one_call_do_not_stick_to_the_task(app: App) -> None:
    send = app.tasks["send"]
    prepared = send.using(queue="a", tags=["x"])
    prepared.call()
    assert app.job_builder.build(send.call()).queue == "default"
    assert app.job_builder.build(prepared.using(queue="b").call()).queue == "b"
    assert app.job_builder.build(prepared.call()).queue == "a"


def test_a_key_ttl_without_a_key_and_an_id_of_another_queue_are_refused_at_enqueue(
    app: App, say: Say
) -> None:
    send = app.tasks["send"]
    with pytest.raises(InvalidInput, match="key_ttl=5000: only a job with a key"):
        say(send.using(key_ttl=5).enqueue)
    foreign = "email:" + "0" * 32
    with pytest.raises(InvalidInput, match="names its queue, which is 'default'"):
        say(send.using(id=foreign).enqueue)
    assert app.jobs.find() == []


def test_a_call_shows_what_it_calls(app: App) -> None:
    assert repr(app.call("send", to="a")) == "<Call send(to='a')>"
    assert repr(Call("send", ("a",), {"copies": 2})) == "<Call send('a', copies=2)>"


words = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=20)
names = st.from_regex(r"[A-Za-z0-9_.-]{1,20}", fullmatch=True)
lengths = st.one_of(
    st.integers(1, 10**6),
    st.floats(0.001, 10**6, allow_nan=False),
    st.timedeltas(timedelta(milliseconds=1), timedelta(days=1000)),
    st.builds("{}{}".format, st.integers(1, 1000), st.sampled_from(["s", "m", "h", "d", "ms"])),
)
usings: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {},
    optional={
        "delay": lengths,
        "queue": names,
        "priority": st.one_of(st.integers(0, 9), st.sampled_from(["high", "normal", "low"])),
        "retries": st.integers(0, 1_000_000),
        "backoff": st.sampled_from(["exponential", "linear:3s", "fixed", "exponential:3,cap=1h,jitter=0.5"]),
        "timeout": lengths,
        "key": words,
        "on_duplicate": st.sampled_from(["return", "raise", "replace"]),
        "once": lengths,
        "id": words,
        "group": words,
        "ttl": lengths,
        "deadline": lengths,
        "result_ttl": lengths,
        "tags": st.lists(words, max_size=5),
        "description": st.text(st.characters(exclude_categories=["Cs"]), max_size=50),
        "headers": st.dictionaries(words, words, max_size=3),
    },
)
_app = App("property", broker="memory://")


@settings(max_examples=60, deadline=None)
@given(usings)
def test_whatever_options_are_accepted_make_a_job_that_brokers_accept_and_keep(given: Using) -> None:
    job = _app.job_builder.build(Call("any", (1,), {}, read_options(given)))
    check_job(job)
    assert unpack(pack(job)) == job
    plain = Job(id="x", task="any")
    for field in ("key", "group", "on_duplicate", "queue", "description", "headers", "retries"):
        assert getattr(job, field) == given.get(field, getattr(plain, field))
    assert (job.due is None) == ("delay" not in given)
    assert set(job.tags) == set(given.get("tags", ()))


@settings(max_examples=60, deadline=None)
@given(usings, usings)
def test_chained_options_are_those_of_both_and_the_later_ones_win(first: Using, second: Using) -> None:
    assert read_options(second, read_options(first)) == read_options({**first, **second})


# the table of options


@pytest.mark.parametrize(
    ("typed", "place"), [(Using, "call"), (TaskSettings, "task"), (ScheduledJobOptions, "schedule")]
)
def test_what_type_checkers_know_is_what_the_table_allows(typed: Any, place: Place) -> None:
    assert sorted(typed.__annotations__) == sorted(options_of(place))


def test_each_option_fills_a_field_that_a_job_has_and_says_what_it_is_for() -> None:
    for option in TABLE.values():
        assert option.field is None or option.field in Job.__struct_fields__
        assert option.help.endswith(".")
        assert (option.json is not None) == ("call" in option.places)
        if option.default == "setting":
            assert option.name in Settings.__struct_fields__


def test_the_checked_options_of_a_task_are_those_of_the_table() -> None:
    fields = [option.field or name for name, option in options_of("task").items()]
    assert sorted(TaskOptions.__struct_fields__) == sorted(fields)


def test_the_options_of_a_schedule_itself_are_in_a_table_as_well() -> None:
    assert list(TickOptions.__annotations__) == list(TICK_OPTIONS)
