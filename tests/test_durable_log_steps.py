"""The log of a job as people see it: one line per step, with what is known of it."""

from __future__ import annotations

from typing import Any

import pytest

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
)
from dray.durable.steps import StepInfo, steps_of
from dray.errors import NewerVersion
from dray.job import Error

ERROR = Error("OSError", "down", "")


def at(id: str, when: int = 1) -> dict[str, Any]:
    return {"id": id, "call": 1, "at": when}


def steps(*entries: Entry) -> list[StepInfo]:
    return steps_of([pack_entry(entry) for entry in entries])


def test_a_step_that_was_tried_and_then_succeeded_is_one_line() -> None:
    tried = Try(**at("pay", 1), run=1, tries=2, due=50, error=ERROR, shown="(1)")
    (trying,) = steps(tried)
    assert (trying.status, trying.tries, trying.until, trying.error) == ("trying", 2, 50, ERROR)
    undo = UndoCall("shop:refund", False, 3)
    (done,) = steps(tried, Value(**at("pay", 9), value=b"v", shown="(1)", undo=undo))
    assert (done.status, done.value, done.undo, done.at) == ("done", b"v", "shop:refund", 9)
    assert (done.arguments, done.until, done.tries) == ("(1)", None, 2)


@pytest.mark.parametrize(
    ("entries", "status"),
    [
        ([Failure(**at("a"), run=1, error=ERROR)], "failed"),
        ([Sleep(**at("sleep()"), until=5)], "sleeping"),
        ([Wait(**at("event(x)"), name="x", until=5)], "waiting"),
        ([Wait(**at("event(x)"), name="x"), Expired(**at("event(x)"), run=1)], "timed out"),
        (
            [
                Wait(**at("event(x)"), name="x"),
                Mail(**at("event(x)"), name="x", number=1, message="m", body=b""),
            ],
            "done",
        ),
        ([Child(**at("call(x)"), job="q:1")], "waiting"),
        ([Intent(**at("a"), run=1)], "began"),
        ([Winner(**at("first()"), index=0)], "done"),
        ([Marker(**at("changed(x)"), new=True)], "done"),
    ],
)
def test_each_kind_of_step_has_a_status(entries: list[Entry], status: str) -> None:
    (step,) = steps(*entries)
    assert step.status == status


def test_a_child_is_named_and_its_large_result_is_left_out() -> None:
    child = Child(**at("call(x)"), job="q:1", shown="(2)")
    (called,) = steps(child, Value(**at("call(x)"), value=b"", child="q:1", shown="(2)"))
    assert (called.job, called.value, called.status) == ("q:1", None, "done")


def test_what_persons_did_to_the_log_is_no_step() -> None:
    assert steps(Copied(at=1, job="j", count=0), Accepted(at=1, difference="d")) == []


def test_steps_stand_in_the_order_in_which_they_began() -> None:
    found = steps(
        Sleep(**at("sleep()"), until=5),
        Value(**at("b"), value=b""),
        Value(**at("a"), value=b""),
        Value(**at("b"), value=b""),
    )
    assert [step.id for step in found] == ["sleep()", "b", "a"]


def test_a_log_of_a_newer_dray_says_so() -> None:
    with pytest.raises(NewerVersion):
        steps_of([bytes.fromhex("92630a")])
