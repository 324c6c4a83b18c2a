"""The reference, damaged through its own tables: sweeps put it right, and say what was wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from damage import HOUR, QUEUE, check_sound, furnish, job, swept

from dray.broker.memory.broker import MemoryBroker
from dray.broker.memory.store import JobStore
from dray.broker.verbs import run_blocking
from dray.job import State, Suspension

NOW = 1_800_000_000_000


def _line_is_gone(store: JobStore) -> None:
    store.queues[QUEUE].line.classes.clear()


def _a_lane_has_a_job_of_nobody(store: JobStore) -> None:
    [class_] = [one for key, one in store.queues[QUEUE].line.classes.items() if key[0] == 1]
    class_.lanes()[0].jobs.add(0, 0, "nobody")


def _a_delayed_job_stands_nowhere(store: JobStore) -> None:
    store.queues[QUEUE].due.remove("later")


def _a_due_entry_of_nobody(store: JobStore) -> None:
    store.queues[QUEUE].due.add(0, 0, "nobody")


def _a_ready_job_is_listed_as_due(store: JobStore) -> None:
    store.queues[QUEUE].due.add(0, 0, "ready-1")


def _a_finished_job_stands_nowhere(store: JobStore) -> None:
    store.queues[QUEUE].ended.remove("done")


def _a_running_job_that_nobody_holds(store: JobStore) -> None:
    store.jobs["held"].runs.clear()


def _a_session_is_gone(store: JobStore) -> None:
    del store.sessions["ann"]


def _a_session_does_not_know_what_it_holds(store: JobStore) -> None:
    store.sessions["ann"].holds.clear()


def _a_run_of_a_ready_job(store: JobStore) -> None:
    store.jobs["ready-1"].runs = dict(store.jobs["held"].runs)


def _a_job_in_another_state_than_its_place(store: JobStore) -> None:
    store.jobs["later"].state = State.READY


def _keys_are_gone(store: JobStore) -> None:
    store.keys.clear()


def _a_key_of_nobody(store: JobStore) -> None:
    store.keys[QUEUE, "x"] = ("nobody", None)


def _a_key_of_a_job_that_has_ended(store: JobStore) -> None:
    store.keys[QUEUE, "x"] = ("dead", None)


def _a_dependency_does_not_know_who_waits(store: JobStore) -> None:
    store.dependants.clear()


def _a_dependency_of_nobody(store: JobStore) -> None:
    store.dependants["held"]["nobody"] = True


def _a_parent_that_waits_for_nothing(store: JobStore) -> None:
    store.jobs["parent"].waiting.clear()


def _a_suspended_job_that_is_ready(store: JobStore) -> None:
    store.jobs["ready-1"].suspended = Suspension(parked=True)


def _a_job_that_is_not_woken(store: JobStore) -> None:
    store.queues[QUEUE].due.remove("awaits")


def _a_message_that_woke_nobody(store: JobStore) -> None:
    store.jobs["awaits"].mailboxes["go"] = store.jobs["awaits"].mailboxes["other"]


def _a_job_remembered_by_one_that_is_no_node(store: JobStore) -> None:
    store.dependants["held"]["ready-1"] = False


def _a_waiting_job_that_waits_for_nothing(store: JobStore) -> None:
    store.jobs["waits"].waiting.clear()


def _an_offer_is_gone(store: JobStore) -> None:
    store.queues[QUEUE].offers.clear()


def _an_offer_of_nobody(store: JobStore) -> None:
    store.queues[QUEUE].offers["nobody"] = None


def _the_moment_of_a_deadline_without_one(store: JobStore) -> None:
    store.jobs["ready-1"].deadline = NOW + 9


DAMAGE: list[tuple[Callable[[JobStore], None], str]] = [
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
    (_a_parent_that_waits_for_nothing, "dependency"),
    (_a_suspended_job_that_is_ready, "record"),
    (_a_job_that_is_not_woken, "place"),
    (_a_message_that_woke_nobody, "dependency"),
    (_a_job_remembered_by_one_that_is_no_node, "dependency"),
    (_an_offer_is_gone, "offer"),
    (_an_offer_of_nobody, "offer"),
    (_the_moment_of_a_deadline_without_one, "record"),
]


@pytest.mark.parametrize(("damage", "kind"), DAMAGE, ids=[one.__name__.strip("_") for one, _ in DAMAGE])
def test_damage_is_mended_and_named(damage: Callable[[JobStore], None], kind: str) -> None:
    broker = MemoryBroker(blocking=True)
    run_blocking(furnish(broker, NOW))
    damage(broker._store)
    assert run_blocking(broker.audit()) != []
    repairs = run_blocking(swept(broker, NOW))
    assert repairs[kind] > 0, repairs
    run_blocking(check_sound(broker, NOW, set()))


def test_a_deadline_that_was_lost_counts_from_the_due_time_again() -> None:
    broker = MemoryBroker(blocking=True)
    run_blocking(broker.put([job("far", due=NOW + 24 * HOUR, deadline=HOUR)], now=NOW))
    broker._store.jobs["far"].deadline = None
    run_blocking(swept(broker, NOW))
    assert broker._store.jobs["far"].deadline == NOW + 25 * HOUR


def test_damage_beyond_one_stretch_is_found_by_later_sweeps() -> None:
    broker = MemoryBroker(blocking=True)
    run_blocking(furnish(broker, NOW))
    store = broker._store
    run_blocking(broker.put([job("last")], now=NOW))
    store.queues[QUEUE].line.leave(store.jobs["last"].job)
    found = [run_blocking(broker.sweep(4, now=NOW)).repaired for _ in range(len(store.jobs) // 4 + 1)]
    assert found[0] == 0
    assert sum(found) == 1
    assert run_blocking(broker.audit()) == []
