"""The log of a durable job: stored bytes, identities, limits, and what counts as a change."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from dray.broker.durable import MEMO_BYTES_MAX, MEMOS_MAX
from dray.durable.copying import entries_before
from dray.durable.entries import (
    Accepted,
    Child,
    Copied,
    Entry,
    Expired,
    Failure,
    Intent,
    Mail,
    Marker,
    Sleep,
    Try,
    UndoCall,
    Value,
    Wait,
    Winner,
    pack_entry,
    unpack_entry,
)
from dray.durable.identity import child_id, digest_of, key_text, name_of, show
from dray.durable.journal import Journal
from dray.durable.references import pack_error, rebuild_error, reference_to, resolve
from dray.errors import DecodeError, InvalidInput, NewerVersion, StepFailed, TooLarge
from dray.job import Error

ERROR = Error("ValueError", "no", "tb")
UNDO = UndoCall("shop:refund", False, 3, "fixed:5s")


def at(id: str, call: int = 1) -> dict[str, Any]:
    return {"id": id, "call": call, "at": 10}


GOLDEN: list[tuple[Entry, str]] = [
    (
        Value(**at("a"), value=b"\x01\x05", digest="d", shown="(1)", undo=UNDO),
        "9901a161010ac4020105a164a328312994ab73686f703a726566756e64c203a866697865643a3573a0",
    ),
    (
        Failure(**at("a"), run=2, error=ERROR, raised=b"r", digest="d", shown="(1)"),
        "9902a161010a0293aa56616c75654572726f72a26e6fa27462c40172a164a3283129",
    ),
    (
        Try(**at("a"), run=2, tries=1, due=99, error=ERROR, digest="d", shown="(1)"),
        "9a03a161010a02016393aa56616c75654572726f72a26e6fa27462a164a3283129",
    ),
    (Sleep(**at("sleep()"), until=99), "9504a7736c6565702829010a63"),
    (Wait(**at("event(paid)"), name="paid", until=None), "9605ab6576656e74287061696429010aa470616964c0"),
    (
        Mail(**at("event(paid)"), name="paid", number=1, message="m", body=b"\x01\xc0"),
        "9806ab6576656e74287061696429010aa47061696401a16dc40201c0",
    ),
    (Expired(**at("event(paid)"), run=2), "9507ab6576656e74287061696429010a02"),
    (
        Child(**at("call(ship)"), job="q:1", digest="d", shown="(1)"),
        "9708aa63616c6c287368697029010aa3713a31a164a3283129",
    ),
    (Winner(**at("first()"), index=1), "9509a766697273742829010a01"),
    (Intent(**at("a"), run=2, digest="d", shown="(1)"), "970aa161010a02a164a3283129"),
    (Marker(**at("changed(x)", 0), new=True), "950baa6368616e676564287829000ac3"),
    (Accepted(at=10, difference="d"), "930c0aa164"),
    (Copied(at=10, job="q:1", count=3), "940d0aa3713a3103"),
]
"""Entries as stored. Only ever added to: what one release wrote, the next ones read."""


@pytest.mark.parametrize(("entry", "stored"), GOLDEN, ids=lambda part: type(part).__name__)
def test_stored_entries_stay_readable(entry: Entry, stored: str) -> None:
    assert pack_entry(entry).hex() == stored
    assert unpack_entry(bytes.fromhex(stored)) == entry


def test_an_entry_of_a_newer_form_is_told_from_a_broken_one() -> None:
    with pytest.raises(NewerVersion):
        unpack_entry(bytes.fromhex("92630a"))
    with pytest.raises(DecodeError):
        unpack_entry(b"\xc1")


# identity


def test_an_operation_is_named_by_its_function_and_the_count_of_calls_or_a_key() -> None:
    journal = Journal("j")
    names = [journal.claim("pay")[0]]
    journal.release("pay")
    names += [journal.claim("pay")[0], journal.claim("pay", "x")[0]]
    assert names == ["pay", "pay#2", "pay[x]"]
    assert name_of(partial(print, 1), None) == "print"
    assert name_of(lambda: 1, "given") == "given"
    assert key_text(5) == "5"


def test_wrong_names_and_keys_are_refused() -> None:
    journal = Journal("j")
    journal.claim("pay")
    with pytest.raises(InvalidInput, match="give each a key="):
        journal.claim("pay")
    journal.claim("pay", "x")
    with pytest.raises(InvalidInput, match="a key of its own"):
        journal.claim("pay", "x")
    with pytest.raises(InvalidInput, match="name="):
        name_of(lambda: 1, None)


def test_the_digest_of_equal_arguments_is_the_same_in_every_process() -> None:
    assert digest_of(({"b": 1, "a": 2}, {3, 1, 2}), {}) == digest_of(({"a": 2, "b": 1}, {1, 2, 3}), {})
    assert digest_of((1,), {}) != digest_of((2,), {})
    assert digest_of((datetime(2026, 1, 1, tzinfo=UTC),), {"x": b"y"}) == "b609c8fdadd0b1bd"
    assert digest_of((object(),), {}) == ""


def test_arguments_are_shown_in_short() -> None:
    assert show((1, "x"), {"b": 2}) == "(1, 'x', b=2)"
    assert len(show(("x" * 1000,), {})) <= 121


def test_the_id_of_a_child_follows_from_parent_and_operation() -> None:
    assert child_id("p", "call(ship)", "q") == child_id("p", "call(ship)", "q")
    assert child_id("p", "call(ship)", "q") != child_id("p", "call(ship)#2", "q")


# references


def test_an_undo_is_found_by_its_module_and_name() -> None:
    assert resolve(reference_to(pack_entry)) is pack_entry
    with pytest.raises(InvalidInput, match="lambda"):
        reference_to(lambda value: None)
    with pytest.raises(LookupError):
        resolve("dray.durable.entries:gone")
    with pytest.raises(LookupError):
        resolve("dray_gone:f")


class Odd(Exception):
    def __init__(self, code: int, *, tag: object = None) -> None:
        super().__init__(f"odd {code}")
        self.code, self.tag = code, tag


def rebuilt(error: Exception, name: str) -> Exception:
    return rebuild_error("j", "s", Error(name, str(error), "tb"), pack_error(error))


def test_an_error_is_rebuilt_with_its_class_and_fields() -> None:
    found = rebuilt(Odd(5), f"{__name__}.Odd")
    assert isinstance(found, Odd)
    assert (str(found), found.code) == ("odd 5", 5)
    assert type(rebuilt(KeyError("k"), "KeyError")) is KeyError


def test_an_error_that_cannot_be_rebuilt_is_described() -> None:
    for found in (rebuilt(Odd(5), "gone.Odd"), rebuilt(Odd(5, tag=object()), f"{__name__}.Odd")):
        assert isinstance(found, StepFailed)
        assert found.message == "odd 5"


# what a log says


def log_of(*entries: Entry, forget: int = 0) -> Journal:
    return Journal("j", [pack_entry(entry) for entry in entries], forget)


def test_a_replay_by_hand_forgets_final_errors_and_keeps_values() -> None:
    log = (
        Value(**at("a"), value=b"1"),
        Failure(**at("b", 2), run=1, error=ERROR),
        Failure(**at("c", 3), run=2, error=ERROR),
        Expired(**at("event(x)", 4), run=1),
    )
    kept = {id: memory.done is not None for id, memory in log_of(*log, forget=1).memories.items()}
    assert kept == {"a": True, "b": False, "c": True, "event(x)": False}
    assert all(memory.done is not None for memory in log_of(*log).memories.values())


def test_the_log_is_limited_and_keeps_room_for_undos() -> None:
    value = Value(**at("last"), value=b"", undo=UNDO)
    journal = log_of(value)
    journal.length = MEMOS_MAX - 4
    with pytest.raises(TooLarge, match=r"step 'last' of job j .* 10,000 entries"):
        journal.pack(value)
    journal.pack(value, reserve=False)
    journal.length, journal.size = 1, MEMO_BYTES_MAX
    with pytest.raises(TooLarge, match="16 MiB"):
        journal.pack(value)


def test_ten_thousand_entries_are_read_in_linear_time() -> None:
    log = [pack_entry(Value(**at(f"s[{n}]", n), value=b"")) for n in range(MEMOS_MAX)]
    journal = Journal("j", log)
    for n in range(MEMOS_MAX):
        id, _, memory = journal.claim("s", str(n))
        assert memory is not None
        assert memory.id == id
    assert not journal.replaying


def test_a_new_step_where_a_remembered_one_should_come_is_a_change() -> None:
    journal = log_of(Value(**at("a", 1), value=b""), Value(**at("b", 2), value=b""))
    _, call, memory = journal.claim("new")
    assert memory is None
    assert [skipped.id for skipped in journal.skipped(call)] == ["a"]
    journal.claim("a")
    assert [skipped.id for skipped in journal.skipped(3)] == ["b"]
    journal.claim("b")
    assert not journal.skipped(9)


def test_what_was_accepted_or_copied_is_not_compared() -> None:
    value = Value(**at("a"), value=b"", digest="d", shown="(1)")
    strict = log_of(value)
    assert strict.changed_arguments(strict.memories["a"], "e", "(2)") == (
        "the arguments of step 'a' were (1), and are (2) now"
    )
    accepted = log_of(value, Accepted(at=1, difference="x"))
    copied = log_of(Copied(at=1, job="j", count=1), value)
    for journal in (accepted, copied):
        assert not journal.changed_arguments(journal.memories["a"], "e", "(2)")
        assert not journal.skipped(5)


def test_a_marker_answers_by_whether_the_job_was_past_it() -> None:
    assert log_of().says_changed("changed(x)") is None
    assert log_of(Value(**at("a"), value=b"")).says_changed("changed(x)") is False
    for new in (True, False):
        marked = log_of(Marker(**at("changed(x)", 0), new=new), Value(**at("a"), value=b""))
        assert marked.says_changed("changed(x)") is new


def test_a_rerun_copies_what_was_called_before_the_step() -> None:
    log: list[Entry] = [
        Value(**at("a", 1), value=b"", undo=UNDO),
        Try(**at("c", 3), run=1, tries=1, due=1, error=ERROR),
        Value(**at("b", 2), value=b""),
        Value(**at("c", 3), value=b""),
        Value(**at("d", 4), value=b""),
    ]
    assert [(entry.id, entry.call) for entry in entries_before(log, "c")] == [("a", 1), ("b", 2)]
    assert all(entry.undo is None for entry in entries_before(log, "c") if isinstance(entry, Value))
    with pytest.raises(InvalidInput, match="a, c, b, d"):
        entries_before(log, "gone")
