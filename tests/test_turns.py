"""Which queues an executor asks, and whose turn it is."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from dray.app import App
from dray.broker.memory import MemoryBroker
from dray.broker.verbs import Filter, Wake
from dray.documents.queue_state import dedicate
from dray.job import Job, Taken
from dray.settings.queue_choice import place, stages
from dray.worker.executor.turns import TakeRequest, Turns, queues_of

OWN = {"default": False, "email": False, "gpu": True}


def taken(queue: str, count: int) -> list[Taken]:
    return [Taken(Job(id=f"{queue}-{n}", task="t", queue=queue), 1) for n in range(count)]


def serving(*listed: str, known: tuple[str, ...] = (), slots: int = 1) -> Turns:
    turns = Turns(listed, OWN, slots)
    turns.serve(known, turns.dedicated)
    return turns


def test_names_are_strict_and_the_queues_of_a_pattern_share_its_place() -> None:
    known = ("b", "tenant-1", "tenant-2", "high", "gpu")
    assert stages(("high", "tenant-*", "b"), ("gpu",), known) == [("high",), ("tenant-1", "tenant-2"), ("b",)]
    assert stages(("tenant-*", "all"), ("gpu",), known) == [("tenant-1", "tenant-2"), ("b", "high")]
    assert stages(("all", "tenant-2"), (), known)[1] == ("tenant-2",), "its own name counts before a pattern"
    assert stages(("all",), (), ("all", "a")) == [("a", "all")]


@pytest.mark.parametrize(
    ("entries", "queue", "where"),
    [
        (("gpu",), "gpu", 0),
        (("all",), "gpu", None),
        (("g*", "gpu"), "gpu", 1),
        (("g?u",), "gxu", 0),
        (("g?u",), "gu", None),
        (("tenant-*",), "tenants", None),
        (("a.b*",), "axb", None),
        (("*",), "anything", 0),
        ((), "default", None),
    ],
)
def test_only_its_very_name_serves_a_dedicated_queue(
    entries: tuple[str, ...], queue: str, where: int | None
) -> None:
    assert place(entries, {"gpu"}, queue) == where


def test_without_a_list_it_serves_what_the_tasks_name_but_no_dedicated_queue() -> None:
    app = App("t", broker="memory://")
    options: list[dict[str, Any]] = [{}, {"queue": "email"}, {"queue": "gpu", "dedicated": True}]
    for number, one in enumerate(options):
        app.task(name=f"t{number}", **one)(lambda: None)
    app.task(name="also-gpu", queue="gpu")(lambda: None)
    tick = app.task(name="tick")(lambda: None)
    app.every("1h", queue="reports")(tick)
    assert queues_of(app) == {"default": False, "email": False, "gpu": True, "reports": False}
    assert Turns((), queues_of(app), 1).queues == ("default", "email", "reports")
    assert Turns(("gpu",), queues_of(app), 1).queues == ("gpu",)


def test_a_list_of_names_is_asked_as_it_stands() -> None:
    turns = serving("b", "a")
    assert turns.next_request(5, repeats=False) == TakeRequest(("b", "a"), 5)
    assert turns.took(TakeRequest(("b", "a"), 5), taken("a", 5)), "there may be more"
    assert not turns.took(TakeRequest(("b", "a"), 5), taken("a", 4))
    assert turns.cold() == ()


def test_queues_with_work_take_turns() -> None:
    turns = serving()
    assert turns.next_request(1, repeats=False).queues == (), "nothing is known to have work"
    turns.heard(Wake(work=True, queues=("default", "email")))
    asked: list[str] = []
    for _ in range(6):
        ask = turns.next_request(1, repeats=False)
        asked += ask.turns
        assert turns.took(ask, taken(ask.turns[0], 1))
    assert asked == ["default", "email"] * 3


def test_a_turn_is_a_share_of_the_slots() -> None:
    turns = serving("all", known=tuple(f"q{n}" for n in range(100)), slots=32)
    turns.heard(Wake(work=True, queues=("q1", "q2")))
    both = ("q1", "q2")
    assert turns.next_request(32, repeats=False) == TakeRequest(both, 32, both, share=16)
    turns.heard(Wake(work=True, queues=turns.queues))
    ask = turns.next_request(32, repeats=False)
    assert (len(ask.queues), ask.share) == (8, 4), "not one each: that would be many small takes"
    assert turns.next_request(2, repeats=False) == TakeRequest(("q1",), 2, ("q1",), share=2)


def test_of_several_turns_only_those_that_gave_their_share_come_again() -> None:
    turns = serving("all", known=("a", "b", "c"), slots=8)
    turns.heard(Wake(work=True, queues=("a", "b", "c")))
    ask = turns.next_request(6, repeats=False)
    assert ask == TakeRequest(("a", "b", "c"), 6, ("a", "b", "c"), share=2)
    assert turns.took(ask, taken("a", 2) + taken("b", 1) + taken("c", 2))
    assert turns.next_request(4, repeats=False).queues == ("a", "c")
    assert turns.cold() == ("b",)


def test_a_take_of_some_tasks_only_uses_up_the_turn_but_not_the_queue() -> None:
    turns = serving()
    turns.heard(Wake(work=True, queues=("default", "email")))
    asked = []
    for _ in range(4):
        ask = turns.next_request(1, repeats=False)
        asked.append(ask.queues[0])
        turns.passed(ask)
    assert asked == ["default", "email"] * 2


def test_an_empty_queue_is_not_asked_again_until_it_is_heard_of() -> None:
    turns = serving()
    turns.heard(Wake(work=True, queues=("default", "email")))
    ask = turns.next_request(1, repeats=False)
    assert ask.queues == ("default",)
    assert turns.took(ask, []), "email is left"
    ask = turns.next_request(4, repeats=False)
    assert ask == TakeRequest(("email",), 4, ("email",), share=4)
    assert not turns.took(ask, [])
    assert turns.next_request(4, repeats=False).queues == ()
    turns.heard(Wake(work=True))
    assert turns.next_request(1, repeats=False).turns == ("default",), "who does not say where means anywhere"


def test_a_named_queue_comes_before_those_that_take_turns_and_uses_up_no_turn() -> None:
    turns = serving("high", "tenant-*", "low", known=("tenant-1", "tenant-2"))
    assert turns.next_request(3, repeats=False) == TakeRequest(("high", "low"), 3)
    turns.heard(Wake(work=True, queues=("tenant-2", "tenant-1")))
    ask = turns.next_request(2, repeats=False)
    assert ask == TakeRequest(("high", "tenant-1"), 1, ("tenant-1",))
    assert turns.took(ask, taken("high", 1))
    assert turns.next_request(2, repeats=False).turns == ("tenant-1",)


def test_a_take_that_was_not_answered_is_repeated_as_it_was() -> None:
    turns = serving()
    turns.heard(Wake(work=True, queues=("email",)))
    ask = turns.next_request(7, repeats=False)
    turns.heard(Wake(work=True, queues=("default",)))
    assert turns.next_request(1, repeats=True) == ask


def test_new_queues_are_found_and_an_operators_dedication_counts() -> None:
    async def main() -> None:
        broker = MemoryBroker("t")
        turns = Turns(("all",), OWN, 1)
        await turns.refresh(broker)
        assert list(turns.queues) == []
        await broker.put([Job(id="1", task="t", queue="tenant-1"), Job(id="2", task="t", queue="gpu")])
        assert await turns.refresh(broker)
        assert turns.queues == ("tenant-1",)
        assert not await turns.refresh(broker)
        await dedicate(broker, "tenant-1", True)
        assert await turns.refresh(broker)
        assert list(turns.queues) == []
        assert turns.dedicated == {"gpu", "tenant-1"}
        await dedicate(broker, "tenant-1", False)
        assert await turns.refresh(broker)
        assert turns.queues == ("tenant-1",)
        own = Turns((), OWN, 1)
        await dedicate(broker, "email", True)
        await own.refresh(broker)
        assert own.queues == ("default",)

    asyncio.run(main())


def test_a_look_finds_work_in_queues_that_had_none_but_not_all_the_time() -> None:
    async def main() -> None:
        broker = MemoryBroker("t")
        turns = Turns((), OWN, 1)
        looks = Counter[str]()
        wait = broker.wait

        async def counted(*args: Any) -> Wake:
            looks["look"] += 1
            return await wait(*args)

        broker.wait = counted  # type: ignore[method-assign,assignment]
        await broker.put([Job(id="1", task="t", queue="email")])
        await turns.look(broker, Filter(), "s", 10.0)
        assert turns.next_request(1, repeats=False).turns == ("email",)
        for later in range(9):
            await turns.look(broker, Filter(), "s", 10.0 + later / 100)
        assert looks["look"] == 1
        await turns.look(broker, Filter(), "s", 10.2)
        assert looks["look"] == 2

    asyncio.run(main())
