"""The facts: states and moves as data, and the words that are let in."""

from __future__ import annotations

import string
from enum import StrEnum

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray import job as facts
from dray.errors import InvalidInput
from dray.job import (
    FINISHED,
    PLACES,
    PRIORITIES,
    TRANSITIONS,
    Job,
    Move,
    Place,
    Record,
    Run,
    Sign,
    State,
    check_name,
    check_word,
    parse_priority,
    queue_of,
)

STORED = [state for state in State if state is not State.NOT_FOUND]
UNFINISHED = [state for state in STORED if state not in FINISHED]
BY_HAND = {Move.REPLAYED, Move.DELETED}
NAME_LETTERS = string.ascii_letters + string.digits + "_.-"


def moves_from(state: State) -> dict[Move, frozenset[State]]:
    return {move: table[state] for move, table in TRANSITIONS.items() if state in table}


def reachable(start: State, without: frozenset[Move] | set[Move] = frozenset()) -> set[State]:
    """Every state that some row of moves leads to."""
    found: set[State] = set()
    todo = [start]
    for state in todo:
        after = {s for move, states in moves_from(state).items() if move not in without for s in states}
        todo += sorted(after - found)
        found |= after
    return found


def test_every_state_but_not_found_has_a_place_and_every_place_is_used() -> None:
    assert set(PLACES) == set(STORED)
    assert set(PLACES.values()) == set(Place)


def test_every_move_is_in_the_table_and_leads_from_somewhere_to_somewhere() -> None:
    assert set(TRANSITIONS) == set(Move)
    for move, table in TRANSITIONS.items():
        assert table, move
        for before, after in table.items():
            assert after, (move, before)
            assert all(isinstance(state, State) for state in (before, *after))


def test_a_job_comes_into_being_by_put_alone_and_is_gone_by_delete_alone() -> None:
    assert set(moves_from(State.NOT_FOUND)) == {Move.PUT}
    assert set(TRANSITIONS[Move.PUT]) == {State.NOT_FOUND}
    assert {
        move for move, table in TRANSITIONS.items() if State.NOT_FOUND in set().union(*table.values())
    } == {Move.DELETED}


def test_every_state_can_be_reached_from_put() -> None:
    assert reachable(State.NOT_FOUND) >= set(STORED)


@pytest.mark.parametrize("state", UNFINISHED)
def test_every_unfinished_state_can_end_each_way_without_anyone_interfering(state: State) -> None:
    assert reachable(state, BY_HAND | {Move.RESCHEDULED}) >= FINISHED


@pytest.mark.parametrize("state", UNFINISHED)
def test_every_unfinished_state_can_be_cancelled(state: State) -> None:
    assert TRANSITIONS[Move.CANCELLED][state] == {State.CANCELLED}


@pytest.mark.parametrize("state", sorted(FINISHED))
def test_a_finished_state_is_left_only_by_hand(state: State) -> None:
    assert state.finished
    assert set(moves_from(state)) == {*BY_HAND, Move.REVIVED}
    assert TRANSITIONS[Move.REPLAYED][state] == {State.READY}
    assert TRANSITIONS[Move.REVIVED][state] == {State.WAITING}


def test_success_comes_only_from_a_run_and_a_run_only_from_ready() -> None:
    into_success = {
        move for move, table in TRANSITIONS.items() if State.SUCCEEDED in set().union(*table.values())
    }
    assert into_success == {Move.SUCCEEDED}
    assert set(TRANSITIONS[Move.SUCCEEDED]) == {State.RUNNING}
    into_running = {
        (move, before)
        for move, table in TRANSITIONS.items()
        for before, after in table.items()
        if State.RUNNING in after and before is not State.RUNNING
    }
    assert into_running == {(Move.TAKEN, State.READY)}


def test_moves_and_signs_share_no_word() -> None:
    assert {str(move) for move in Move} & {str(sign) for sign in Sign} == set()


@pytest.mark.parametrize("state", STORED)
def test_the_diagram_shows_every_state(state: State) -> None:
    assert facts.__doc__ is not None
    diagram = facts.__doc__[facts.__doc__.index("put ─") :]
    assert str(state) in diagram


@pytest.mark.parametrize("enum", [State, Place, Move, Sign, facts.Verdict, facts.OutcomeKind])
def test_words_are_enums_that_equal_their_text(enum: type[StrEnum]) -> None:
    for member in enum:
        assert member == member.name.lower()
        assert f"{member}" == member.value
        assert enum(member.value) is member
        assert hash(member) == hash(member.value)


def test_finished_means_succeeded_dead_or_cancelled() -> None:
    assert {str(state) for state in State if state.finished} == {"succeeded", "dead", "cancelled"}


@pytest.mark.parametrize("number", range(10))
def test_every_digit_is_a_priority(number: int) -> None:
    assert parse_priority(number) == number


@pytest.mark.parametrize(
    ("name", "band"), [("high", range(4)), ("normal", range(4, 7)), ("low", range(7, 10))]
)
def test_a_named_priority_lies_in_its_band(name: str, band: range) -> None:
    assert parse_priority(name) == PRIORITIES[name]
    assert PRIORITIES[name] in band


def test_the_default_priority_is_normal() -> None:
    assert Job(id="a", task="t").priority == PRIORITIES["normal"]


@pytest.mark.parametrize("value", [-1, 10, 1.0, True, False, None, "HIGH", "5", "", "urgent", b"high", [1]])
def test_anything_else_is_no_priority(value: object) -> None:
    with pytest.raises(InvalidInput, match="priority=") as caught:
        parse_priority(value)
    assert caught.value.field == "priority"


@given(st.text(NAME_LETTERS, min_size=1, max_size=128))
def test_a_name_of_allowed_letters_is_returned_as_it_is(name: str) -> None:
    assert check_name("queue", name) == name


@pytest.mark.parametrize("length", [1, 2, 127, 128])
def test_a_name_of_allowed_length_is_taken(length: int) -> None:
    assert check_name("queue", "q" * length)


@pytest.mark.parametrize("length", [0, 129, 256, 257, 100_000])
def test_a_name_too_short_or_too_long_is_refused(length: int) -> None:
    with pytest.raises(InvalidInput, match="1-128 characters"):
        check_name("queue", "q" * length)


@given(
    st.text(NAME_LETTERS, max_size=60),
    st.characters(exclude_characters=NAME_LETTERS, exclude_categories=()),
    st.text(NAME_LETTERS, max_size=60),
)
def test_one_other_character_anywhere_spoils_a_name(before: str, odd: str, after: str) -> None:
    with pytest.raises(InvalidInput):
        check_name("queue", before + odd + after)


@pytest.mark.parametrize(
    "value", ["mail\n", "\nmail", "ma\nil", "mail\r", "mail ", "mail\0", "mäil", "mail：a", "a:b", "a/b", "٣"]
)
def test_names_that_only_look_right_are_refused(value: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_name("task", value)
    assert caught.value.field == "task"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [None, 1, b"mail", ["mail"], ("m",), 1.5])
def test_what_is_no_text_is_neither_name_nor_word(value: object) -> None:
    with pytest.raises(InvalidInput, match="queue="):
        check_name("queue", value)
    with pytest.raises(InvalidInput, match="key="):
        check_word("key", value)


@pytest.mark.parametrize("length", [1, 128, 129, 255, 256])
def test_a_word_of_allowed_length_is_taken(length: int) -> None:
    assert check_word("key", "ü" * length)


@pytest.mark.parametrize("length", [0, 257, 100_000])
def test_a_word_too_short_or_too_long_is_refused(length: int) -> None:
    with pytest.raises(InvalidInput, match="1-256 printable characters"):
        check_word("key", "ü" * length)


@given(st.text(st.characters(exclude_categories=()), max_size=300))
def test_a_word_is_taken_exactly_when_short_and_printable(text: str) -> None:
    if 1 <= len(text) <= 256 and text.isprintable():
        assert check_word("id", text) == text
        assert text.encode().decode() == text  # so that every store can keep it
    else:
        with pytest.raises(InvalidInput):
            check_word("id", text)


@given(
    st.text(string.printable.strip(), max_size=100), st.characters(categories=["Cc", "Cs", "Zl", "Zp", "Cf"])
)
def test_a_control_character_or_half_a_surrogate_spoils_a_word(text: str, odd: str) -> None:
    for spoilt in (odd, text + odd, odd + text, text + odd + text):
        with pytest.raises(InvalidInput):
            check_word("id", spoilt)


@pytest.mark.parametrize("value", ["welcome:42", "a b", "naïve", "订单-42", "🚚", "{x}", "'; --", "%s", "*"])
def test_words_may_be_anything_printable(value: str) -> None:
    assert check_word("key", value) == value


@given(st.text(NAME_LETTERS, min_size=1, max_size=128), st.uuids())
def test_a_generated_id_names_its_queue(queue: str, number: object) -> None:
    made = f"{queue}:{str(number).replace('-', '')}"
    assert queue_of(made) == queue
    assert check_word("id", made) == made


@pytest.mark.parametrize(
    "made_up",
    [
        "",
        "order-42",
        "mail:",
        ":" + "0" * 32,
        "mail:" + "0" * 31,
        "mail:" + "0" * 33,
        "mail:" + "A" * 32,
        "mail:" + "g" * 32,
        "mail:" + "0" * 32 + "\n",
        "mail:x:" + "0" * 32,
        "ma il:" + "0" * 32,
        "q" * 129 + ":" + "0" * 32,
        "mail:" + "٣" * 32,
    ],
)
def test_any_other_id_names_no_queue(made_up: str) -> None:
    assert queue_of(made_up) is None


@given(st.text(max_size=300))
def test_whatever_the_id_the_queue_it_names_is_a_valid_name(text: str) -> None:
    queue = queue_of(text)
    assert queue is None or check_name("queue", queue) == queue


@pytest.mark.parametrize(
    ("state", "run", "failures", "attempt"),
    [
        (State.WAITING, 0, 0, 0),
        (State.SCHEDULED, 0, 0, 0),
        (State.READY, 0, 0, 0),
        (State.READY, 1, 0, 0),  # given back, or its worker crashed: no attempt is used up
        (State.READY, 2, 1, 1),
        (State.RUNNING, 1, 0, 1),
        (State.RUNNING, 3, 0, 1),  # twice taken over
        (State.RUNNING, 2, 1, 2),
        (State.RETRYING, 1, 1, 1),
        (State.RETRYING, 3, 3, 3),
        (State.SUCCEEDED, 1, 0, 1),
        (State.SUCCEEDED, 4, 2, 3),
        (State.DEAD, 0, 0, 0),  # expired or dropped before its first run
        (State.DEAD, 1, 1, 1),  # its failures count the one that ended it
        (State.DEAD, 4, 4, 4),
        (State.CANCELLED, 0, 0, 0),
        (State.CANCELLED, 1, 0, 1),
    ],
)
def test_the_attempt_of_a_record(state: State, run: int, failures: int, attempt: int) -> None:
    record = Record(job=Job(id="a", task="t"), state=state, created=0, run=run, failures=failures)
    assert record.attempt == attempt
    assert record.id == "a"


def test_the_attempt_that_crashed_too_often_is_the_one_after_the_last_failure() -> None:
    job = Job(id="a", task="t", max_crashes=2)
    record = Record(job=job, state=State.DEAD, created=0, run=3, failures=1, crashes=2)
    assert record.attempt == 2


@pytest.mark.parametrize("value", [Job(id="a", task="t"), Run(1, "s", 0), facts.Error("E", "m")])
def test_facts_cannot_be_changed(value: msgspec.Struct) -> None:
    with pytest.raises(AttributeError):
        setattr(value, value.__struct_fields__[0], None)


def test_a_job_is_stored_as_a_row_whose_first_cell_is_the_version() -> None:
    row = msgspec.msgpack.decode(msgspec.msgpack.encode(Job(id="a", task="t")))
    assert isinstance(row, list)
    assert row[:4] == [facts.ENVELOPE_VERSION, "a", "t", "default"]
    assert Job.__struct_fields__[0] == "version"


def test_two_jobs_never_share_their_headers() -> None:
    one, two = Job(id="a", task="t"), Job(id="b", task="t")
    assert one.headers == two.headers == {}
    assert one.headers is not two.headers
