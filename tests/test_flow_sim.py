"""Flows in the simulation: nothing is found in the program, and every planted bug is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from sim.flows import first_violation, make_app, simulate_flows

from dray import chord, group
from dray.broker.memory import broker as memory_broker
from dray.broker.memory import outbox
from dray.broker.memory.store import Post
from dray.flows import placement, tasks
from dray.job import Job, Move, State
from dray.testing.harness import Harness

SEEDS = range(3)
PLANTED = range(12)
"""Seeds in which a planted bug must be found."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", SEEDS)
def test_flows_end_well_whatever_fails_meanwhile(seed: int) -> None:
    played = simulate_flows(seed)
    assert played.checks > 5
    assert sum(played.broker.replays.values()) > 3


@pytest.mark.slow
def test_flows_end_well_in_many_more_plays() -> None:
    for seed in range(100, 200):
        simulate_flows(seed)


def delivered_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    real = outbox.deliver

    def twice(store: Any, post: Post, now: int) -> None:
        real(store, post, now)
        real(store, post, now)

    monkeypatch.setattr(memory_broker, "deliver", twice)


def test_messages_that_arrive_twice_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    delivered_twice(monkeypatch)
    simulate_flows(1)


# planted bugs


def counts_instead_of_naming(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that arrives twice counts twice."""
    real = outbox.deliver

    def count(store: Any, post: Post, now: int) -> None:
        for _ in range(2):
            entry = store.jobs.get(post.id)
            again = post.kind == "dependency" and entry is not None and post.sender not in entry.waiting
            if again and entry.waiting and entry.suspended is None:
                post = Post("dependency", post.id, next(iter(entry.waiting)), post.state)
            real(store, post, now)

    monkeypatch.setattr(memory_broker, "deliver", count)


def revives_what_has_succeeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay runs every dependant again, not only those that it had cancelled."""
    real = outbox._revive

    def revive(store: Any, entry: Any, dependency: str, now: int) -> None:
        if entry.state is State.SUCCEEDED:
            store.begin_again(entry, now)
            store.move(entry, Move.REVIVED, State.WAITING)
            store.line_up(entry, Move.RELEASED, None, now)
            store.tell_revived(entry)
        else:
            real(store, entry, dependency, now)

    monkeypatch.setattr(outbox, "_revive", revive)


def commits_after_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are put first, and the flow is written down when all is done."""

    async def write_and_place(broker: Any, head: Any, jobs: list[Job], graph: list[bytes]) -> str | None:
        for first in range(0, len(jobs), 3):
            await broker.put(jobs[1:][first : first + 3])
        return await placement.place(broker, jobs, None)

    monkeypatch.setattr(placement, "_write_and_place", write_and_place)


def leaves_placing_to_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """No leader finishes what a client has begun."""

    async def nothing(broker: Any) -> int:
        return 0

    monkeypatch.setattr("sim.flows.place_flows", nothing)


def ends_with_its_last_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flow does not wait for nodes beside its last ones."""
    monkeypatch.setattr(tasks, "is_unfinished", lambda standing: False)


def takes_the_last_job_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A map that was interrupted while it put its items takes the end of an item for the whole of it."""
    monkeypatch.setattr(tasks._Map, "_put_step", lambda self, jobs: placement.put_nodes(self._broker, jobs))


@pytest.mark.parametrize(
    "plant",
    [
        counts_instead_of_naming,
        revives_what_has_succeeded,
        commits_after_the_jobs,
        leaves_placing_to_clients,
        ends_with_its_last_nodes,
        takes_the_last_job_for_all,
    ],
)
def test_a_planted_bug_is_found(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    try:
        found = first_violation(PLANTED)
    except Exception as error:  # a bug may also stop the program
        found = repr(error)
    assert found


def test_10_000_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app(None, lambda: 0, {})
    with Harness(app, limit=20_000) as t:
        job = chord(group(app.call("one", n) for n in range(10_000)), app.call("total")).enqueue()
        monkeypatch.setattr(asyncio, "sleep", _at_once)
        t.drain()
        assert job.get(timeout=0) == sum(range(10_000))
        assert job.flow.status() == "succeeded"


_real_sleep = asyncio.sleep


async def _at_once(seconds: float) -> None:
    await _real_sleep(0)
