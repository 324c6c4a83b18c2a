"""What the ticks of a schedule come to: pure, and the same for whoever asks."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dray.duration import DAY, HOUR, MINUTE, SECOND
from dray.errors import DecodeError
from dray.job import Job, State, queue_of
from dray.schedules.cron import Cron, Every
from dray.schedules.schedule import (
    CATCH_UP_MAX,
    GRACE,
    Paused,
    Schedule,
    Step,
    decode,
    delay_of,
    encode,
    job_of,
    step,
    tick_id,
    ticks_between,
)

START = 1_800_000_000_000
"""A full hour."""
NIGHTLY = Cron("0 3 * * *")


def make(**fields: Any) -> Schedule:
    fields.setdefault("rule", Every(10 * SECOND))
    fields.setdefault("job", Job(id="", task="report", queue="reports", payload=b"x", tags=("a",)))
    return Schedule(name="s", task="report", **{"next_run": START} | fields)


def due(schedule: Schedule, now: int, previous: State | None = None) -> Step:
    found = step(schedule, now, previous=previous)
    assert found is not None
    return found


def ticks(found: Step) -> list[int]:
    """Offsets of the ticks that got a job, read off the headers; ids and order are checked on the way."""
    at = [round(datetime.fromisoformat(job.headers["tick"]).timestamp() * 1000) for job in found.jobs]
    assert [job.id for job in found.jobs] == [tick_id("s", "reports", tick) for tick in at]
    assert at == sorted(set(at))
    return [tick - START for tick in at]


def test_nothing_is_due_before_its_time_or_while_paused_or_when_there_is_no_further_tick() -> None:
    assert step(make(), START - 1) is None
    assert step(make(paused=Paused()), START) is None
    assert step(make(next_run=None), START) is None


def test_a_tick_makes_one_job_and_the_schedule_goes_on() -> None:
    found = due(make(last_error="missed 3 ticks: no scheduler ran"), START + 7)
    assert ticks(found) == [0]
    after = found.schedule
    assert (after.next_run, after.last_run, after.run_count) == (START + 10 * SECOND, START, 1)
    assert after.last_job == found.jobs[0].id
    assert after.last_error is None
    assert (found.missed, found.cancel) == (0, None)


def test_the_job_is_the_template_with_the_id_of_its_tick_and_word_of_its_schedule() -> None:
    template = Job(id="", task="report", queue="reports", payload=b"x", tags=("a",), headers={"trace": "1"})
    job = job_of(make(job=template), START)
    assert job.id == tick_id("s", "reports", START)
    assert queue_of(job.id) == "reports"
    assert job.due == START
    assert job.tags == ("a", "schedule:s")
    assert job.headers == {"trace": "1", "schedule": "s", "tick": "2027-01-15T08:00:00+00:00"}
    assert replace(job, id="", due=None, tags=("a",), headers={"trace": "1"}) == template


def test_ids_differ_by_schedule_and_tick_only() -> None:
    ids = {tick_id(name, "q", START + n) for name in ("a", "b", "a-2") for n in range(100)}
    assert len(ids) == 300
    assert tick_id("a", "q", START) == tick_id("a", "q", START) == "q:" + tick_id("a", "z", START)[2:]


def test_late_ticks_each_get_their_job_whatever_is_to_be_done_about_missed_ones() -> None:
    for catch_up in ("skip", "one", "all"):
        found = due(make(catch_up=catch_up), START + GRACE)
        assert ticks(found) == [n * 10 * SECOND for n in range(7)]
        assert found.missed == 0
        assert found.schedule.run_count == 7


def test_skip_drops_what_was_missed_and_says_so() -> None:
    found = due(make(rule=NIGHTLY, next_run=START - 5 * HOUR), START + 2 * DAY)
    assert found.jobs == ()
    assert found.missed == 3
    assert found.schedule.last_error == "missed 3 ticks: no scheduler ran"
    assert found.schedule.next_run == START + 2 * DAY + 19 * HOUR
    assert (found.schedule.run_count, found.schedule.last_run, found.schedule.last_job) == (0, None, None)


def test_skip_still_makes_the_job_of_a_tick_that_is_only_late() -> None:
    found = due(make(rule=NIGHTLY, next_run=START - 5 * HOUR), START + 2 * DAY - 5 * HOUR + 30 * SECOND)
    assert ticks(found) == [2 * DAY - 5 * HOUR]
    assert found.missed == 2


def test_one_makes_one_job_for_all_that_was_missed() -> None:
    found = due(make(rule=NIGHTLY, next_run=START - 5 * HOUR, catch_up="one"), START + 2 * DAY)
    assert ticks(found) == [2 * DAY - 5 * HOUR]
    assert found.missed == 2
    assert found.schedule.last_error == "missed 2 ticks: no scheduler ran"
    on_time = due(
        make(rule=NIGHTLY, next_run=START - 5 * HOUR, catch_up="one"), START + 2 * DAY - 5 * HOUR + SECOND
    )
    assert ticks(on_time) == [2 * DAY - 5 * HOUR]


def test_all_makes_a_job_for_each_up_to_the_cap_and_drops_the_oldest() -> None:
    missed = make(rule=Every(HOUR), catch_up="all", catch_up_cap=5)
    few = due(missed, START + 3 * HOUR + 30 * MINUTE)
    assert ticks(few) == [0, HOUR, 2 * HOUR, 3 * HOUR]
    assert (few.missed, few.schedule.last_error) == (0, None)
    many = due(missed, START + 9 * HOUR + 30 * MINUTE)
    assert ticks(many) == [n * HOUR for n in range(5, 10)]
    assert many.missed == 5
    assert many.schedule.run_count == 5


@pytest.mark.parametrize("rule", [Every(SECOND), Cron("* * * * * *")])
def test_a_year_of_silence_of_a_schedule_of_every_second_is_dealt_with_at_once(rule: Any) -> None:
    found = due(make(rule=rule, catch_up="all", catch_up_cap=CATCH_UP_MAX), START + 365 * DAY)
    assert ticks(found) == [365 * DAY - n * SECOND for n in reversed(range(CATCH_UP_MAX))]
    assert found.missed == 62  # of those that are counted: the late ones take the place of missed ones
    full = make(rule=rule, catch_up="all", catch_up_cap=CATCH_UP_MAX)
    late = step(full, START + DAY, grace=2000 * SECOND)
    assert late is not None
    assert len(late.jobs) == CATCH_UP_MAX
    skipped = due(make(rule=rule), START + 365 * DAY)
    assert len(skipped.jobs) == 61
    assert skipped.schedule.last_error == "missed more than 1000 ticks: no scheduler ran"


def test_a_tick_that_the_rule_does_not_know_any_more_still_gets_its_job() -> None:
    """Time zone data changes between two releases; what was promised is kept."""
    odd = START + 12_345
    assert ticks(due(make(rule=Every(HOUR), next_run=odd), odd + 1)) == [12_345]


def test_a_rule_that_has_no_further_tick_ends() -> None:
    found = due(make(rule=Cron("0 0 1 1 *"), next_run=253_370_764_800_000), 253_370_764_800_000)
    assert len(found.jobs) == 1
    assert found.schedule.next_run is None


UNFINISHED = [state for state in State if not state.finished and state is not State.NOT_FOUND]


@pytest.mark.parametrize("state", UNFINISHED)
def test_overlap(state: State) -> None:
    before = make(last_job="reports:before", last_run=START - 10 * SECOND, run_count=4)
    assert len(due(before, START, state).jobs) == 1
    skipped = due(replace(before, overlap="skip"), START, state)
    assert skipped.jobs == ()
    after = skipped.schedule
    assert after.last_error == f"skipped: the previous run, job reports:before, is {state}"
    assert (after.last_job, after.run_count) == ("reports:before", 4)
    assert after.next_run == START + 10 * SECOND
    instead = due(replace(before, overlap="cancel_previous"), START, state)
    assert (ticks(instead), instead.cancel) == ([0], "reports:before")


@pytest.mark.parametrize("state", [None, State.NOT_FOUND, State.SUCCEEDED, State.DEAD, State.CANCELLED])
def test_a_previous_job_that_is_finished_or_gone_is_in_nobodys_way(state: State | None) -> None:
    for overlap in ("skip", "cancel_previous"):
        found = due(make(overlap=overlap, last_job="reports:before"), START, state)
        assert (ticks(found), found.cancel, found.schedule.last_error) == ([0], None, None)


def test_without_overlap_several_late_ticks_make_one_job_the_newest() -> None:
    for overlap in ("skip", "cancel_previous"):
        assert ticks(due(make(overlap=overlap), START + 35 * SECOND)) == [30 * SECOND]


def test_jitter_delays_each_tick_by_its_own_time_which_everybody_knows() -> None:
    schedule = make(jitter=MINUTE)
    delays = []
    for n in range(300):
        job = job_of(schedule, START + n * 10 * SECOND)
        assert job.due is not None
        delays.append(job.due - START - n * 10 * SECOND)
        assert delays[-1] == delay_of("s", START + n * 10 * SECOND, MINUTE)
    assert all(0 <= delay <= MINUTE for delay in delays)
    assert min(delays) < 5 * SECOND
    assert max(delays) > 55 * SECOND
    assert 20 * SECOND < sum(delays) / 300 < 40 * SECOND
    assert job_of(make(), START).due == START


def test_a_document_is_read_back_and_anything_else_is_refused() -> None:
    for schedule in (make(), make(rule=Cron("@daily", "Asia/Kolkata"), paused=Paused("me", "why", 5))):
        assert decode(encode(schedule)) == schedule
    for value in (b"", b"\xc1", b"\x80", b"nonsense" * 9):
        with pytest.raises(DecodeError):
            decode(value)


@given(
    st.sampled_from([Every(7 * SECOND), Every(90 * MINUTE), Cron("*/7 * * * *"), Cron("0 */5 * * *")]),
    st.lists(st.integers(0, 3 * HOUR), min_size=1, max_size=6),
    st.sampled_from(["skip", "one", "all"]),
)
def test_however_often_it_is_asked_every_tick_comes_to_the_same_job(
    rule: Any, pauses: list[int], catch_up: Any
) -> None:
    """Jobs are those of ticks, none twice, all of them with `all`; the last step leaves nothing behind."""
    first = rule.next(START)
    schedule, now, made = make(rule=rule, next_run=first, catch_up=catch_up, catch_up_cap=1000), START, []
    for pause in pauses:
        now += pause
        found = step(schedule, now)
        assert step(schedule, now) == found
        if found is not None:
            made += ticks(found)
            schedule = found.schedule
    there = [tick - START for tick in ticks_between(rule, first, first, now, 10_000)]
    assert len(set(made)) == len(made) == schedule.run_count
    assert set(made) <= set(there)
    if catch_up == "all" and len(there) < 1000:
        assert made == there
    assert schedule.next_run is not None
    assert schedule.next_run > now
