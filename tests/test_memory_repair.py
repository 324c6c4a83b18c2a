"""The reference, damaged through its own tables: sweeps put it right, and say what was wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from damage import QUEUE, check_sound, furnish, job, swept

from dray.broker.memory.broker import MemoryBroker
from dray.broker.memory.world import World
from dray.broker.verbs import run_blocking
from dray.job import State

NOW = 1_800_000_000_000


def _line_is_gone(world: World) -> None:
    world.queues[QUEUE].line.classes.clear()


def _a_lane_has_a_job_of_nobody(world: World) -> None:
    [class_] = [one for key, one in world.queues[QUEUE].line.classes.items() if key[0] == 1]
    class_.lanes()[0].jobs.add(0, 0, "nobody")


def _a_delayed_job_stands_nowhere(world: World) -> None:
    world.queues[QUEUE].due.remove("later")


def _a_due_entry_of_nobody(world: World) -> None:
    world.queues[QUEUE].due.add(0, 0, "nobody")


def _a_ready_job_is_listed_as_due(world: World) -> None:
    world.queues[QUEUE].due.add(0, 0, "ready-1")


def _a_finished_job_stands_nowhere(world: World) -> None:
    world.queues[QUEUE].ended.remove("done")


def _a_running_job_that_nobody_holds(world: World) -> None:
    world.jobs["held"].runs.clear()


def _a_session_is_gone(world: World) -> None:
    del world.sessions["ann"]


def _a_session_does_not_know_what_it_holds(world: World) -> None:
    world.sessions["ann"].holds.clear()


def _a_run_of_a_ready_job(world: World) -> None:
    world.jobs["ready-1"].runs = dict(world.jobs["held"].runs)


def _a_job_in_another_state_than_its_place(world: World) -> None:
    world.jobs["later"].state = State.READY


def _keys_are_gone(world: World) -> None:
    world.keys.clear()


def _a_key_of_nobody(world: World) -> None:
    world.keys[QUEUE, "x"] = ("nobody", None)


def _a_key_of_a_job_that_has_ended(world: World) -> None:
    world.keys[QUEUE, "x"] = ("dead", None)


def _a_dependency_does_not_know_who_waits(world: World) -> None:
    world.dependants.clear()


def _a_dependency_of_nobody(world: World) -> None:
    world.dependants["held"]["nobody"] = None


def _a_waiting_job_that_waits_for_nothing(world: World) -> None:
    world.jobs["waits"].waiting.clear()


def _an_offer_is_gone(world: World) -> None:
    world.queues[QUEUE].offers.clear()


def _an_offer_of_nobody(world: World) -> None:
    world.queues[QUEUE].offers["nobody"] = None


DAMAGE: list[tuple[Callable[[World], None], str]] = [
    (_line_is_gone, "place"),
    (_a_lane_has_a_job_of_nobody, "place"),
    (_a_delayed_job_stands_nowhere, "place"),
    (_a_due_entry_of_nobody, "place"),
    (_a_ready_job_is_listed_as_due, "place"),
    (_a_finished_job_stands_nowhere, "place"),
    (_a_running_job_that_nobody_holds, "run"),
    (_a_session_is_gone, "run"),
    (_a_session_does_not_know_what_it_holds, "run"),
    (_a_run_of_a_ready_job, "run"),
    (_a_job_in_another_state_than_its_place, "place"),
    (_keys_are_gone, "key"),
    (_a_key_of_nobody, "key"),
    (_a_key_of_a_job_that_has_ended, "key"),
    (_a_dependency_does_not_know_who_waits, "dependency"),
    (_a_dependency_of_nobody, "dependency"),
    (_a_waiting_job_that_waits_for_nothing, "dependency"),
    (_an_offer_is_gone, "offer"),
    (_an_offer_of_nobody, "offer"),
]


@pytest.mark.parametrize(("damage", "kind"), DAMAGE, ids=[one.__name__.strip("_") for one, _ in DAMAGE])
def test_damage_is_mended_and_named(damage: Callable[[World], None], kind: str) -> None:
    broker = MemoryBroker(blocking=True)
    run_blocking(furnish(broker, NOW))
    damage(broker._world)
    assert run_blocking(broker.audit()) != []
    repairs = run_blocking(swept(broker, NOW))
    assert repairs[kind] > 0, repairs
    run_blocking(check_sound(broker, NOW, set()))


def test_damage_beyond_one_stretch_is_found_by_later_sweeps() -> None:
    broker = MemoryBroker(blocking=True)
    run_blocking(furnish(broker, NOW))
    world = broker._world
    run_blocking(broker.put([job("last")], now=NOW))
    world.queues[QUEUE].line.leave(world.jobs["last"].job)
    found = [run_blocking(broker.sweep(4, now=NOW)).repaired for _ in range(len(world.jobs) // 4 + 1)]
    assert found[0] == 0
    assert sum(found) == 1
    assert run_blocking(broker.audit()) == []
