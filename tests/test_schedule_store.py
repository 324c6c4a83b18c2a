"""Schedules that code declares, and the broker: nothing known is lost, two versions of the code get along."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from msgspec.structs import replace

from dray.broker.memory import MemoryBroker
from dray.documents.worker_registry import WorkerInfo, delete_worker, write_worker
from dray.duration import HOUR, MINUTE
from dray.job import Job
from dray.schedules.cron import Cron, Every
from dray.schedules.schedule import KIND, Paused, Schedule, step
from dray.schedules.store import (
    UNDECLARED_FOR,
    Reconciled,
    read_schedule,
    reconcile,
    remove_undeclared,
    rewrite,
)

START = 1_800_000_000_000
Test = Callable[["Place"], Coroutine[Any, Any, None]]


def declared(name: str = "s", **fields: Any) -> Schedule:
    fields.setdefault("rule", Every(HOUR))
    return Schedule(name=name, task="t", job=Job(id="", task="t"), origin="code", **fields)


class Place:
    """A broker whose clock is set by hand, and workers that start and end."""

    def __init__(self) -> None:
        self.now = START
        self.broker = MemoryBroker("dray", clock=lambda: self.now).view(blocking=False)

    async def start(self, worker: str, *schedules: Schedule, tasks: tuple[str, ...] = ("t",)) -> Reconciled:
        """A worker starts: it reconciles, and is on the roster from then on."""
        self.now += MINUTE
        info = WorkerInfo(id=worker, host="h", pid=1, started=self.now, seen=self.now, tasks=tasks)
        await write_worker(self.broker, info, 10**9)
        return await reconcile(self.broker, schedules, started=info.started)

    async def end(self, worker: str) -> None:
        await delete_worker(self.broker, worker)

    async def get(self, name: str = "s") -> Schedule:
        found, _ = await read_schedule(self.broker, name)
        assert found is not None
        return found

    async def names(self) -> list[str]:
        return [doc.name for doc in await self.broker.docs(KIND)]

    async def tick(self, name: str = "s") -> None:
        """Some time later it is due."""
        before = await self.get(name)
        assert before.next_run is not None
        self.now = before.next_run
        due = step(before, self.now)
        assert due is not None
        await rewrite(self.broker, name, lambda _: due.schedule)


def in_place(test: Test) -> None:
    asyncio.run(test(Place()))


def test_what_is_known_of_a_schedule_outlives_a_restart() -> None:
    async def test(place: Place) -> None:
        assert (await place.start("w1", declared())).created == ("s",)
        await place.tick()
        await rewrite(
            place.broker, "s", lambda one: None if one is None else replace(one, paused=Paused("me"))
        )
        before = await place.get()
        await place.end("w1")
        assert await place.start("w2", declared()) == Reconciled()
        after = await place.get()
        assert replace(after, declared=before.declared) == before
        assert (after.run_count, after.last_job is None, after.paused) == (1, False, Paused("me"))

    in_place(test)


def test_another_rule_counts_from_now_on_and_other_changes_leave_the_tick() -> None:
    async def test(place: Place) -> None:
        await place.start("w1", declared())
        await place.tick()
        before = await place.get()
        changed = declared(overlap="skip", jitter=5)
        assert (await place.start("w2", changed)).changed == ("s",)
        after = await place.get()
        assert (after.overlap, after.jitter, after.next_run) == ("skip", 5, before.next_run)
        assert after.updated == place.now > before.updated
        rule = Cron("*/5 * * * *")
        assert (await place.start("w3", declared(rule=rule))).changed == ("s",)
        after = await place.get()
        assert (after.rule, after.next_run, after.run_count) == (rule, rule.next(place.now), 1)

    in_place(test)


def test_an_older_worker_does_not_undo_what_a_newer_one_declares() -> None:
    async def test(place: Place) -> None:
        await place.start("old", declared())
        old = place.now
        await place.start("new", declared(rule=Every(2 * HOUR)))
        place.now += MINUTE
        # The old worker replaces one of its processes.
        again = await reconcile(place.broker, [declared()], started=old)
        assert again.refused == ("s",)
        assert (await place.get()).rule == Every(2 * HOUR)

    in_place(test)


def test_a_schedule_that_is_gone_from_the_code_goes_with_the_last_worker_that_declares_it() -> None:
    async def test(place: Place) -> None:
        await place.start("old", declared("stays"), declared("goes"))
        assert (await place.start("new", declared("stays"))).removed == ()
        assert await place.names() == ["goes", "stays"]
        assert await remove_undeclared(place.broker) == []
        await place.end("old")
        assert await remove_undeclared(place.broker) == ["goes"]
        assert await place.names() == ["stays"]
        # Rolled back: it is there again, from the start.
        assert (await place.start("older", declared("stays"), declared("goes"))).created == ("goes",)

    in_place(test)


def test_a_schedule_whose_task_nobody_knows_stays_for_an_hour() -> None:
    async def test(place: Place) -> None:
        await place.start("theirs", declared("theirs"))
        await place.end("theirs")
        assert (await place.start("ours", tasks=("other",))).removed == ()
        assert (await place.get("theirs")).undeclared == place.now
        place.now += UNDECLARED_FOR - 1
        assert await remove_undeclared(place.broker) == []
        place.now += 1
        assert await remove_undeclared(place.broker) == ["theirs"]

    in_place(test)


def test_a_worker_that_comes_back_in_time_finds_its_schedule_as_it_was() -> None:
    async def test(place: Place) -> None:
        await place.start("theirs", declared("theirs"))
        await place.tick("theirs")
        await place.end("theirs")
        await place.start("ours", tasks=("other",))
        assert await place.start("theirs-again", declared("theirs")) == Reconciled()
        after = await place.get("theirs")
        assert (after.undeclared, after.run_count) == (None, 1)

    in_place(test)


def test_nothing_is_removed_while_no_worker_is_at_work_nor_what_is_paused_or_made_by_a_user() -> None:
    async def test(place: Place) -> None:
        await place.start("w1", declared("left"), declared("paused"))
        await rewrite(
            place.broker, "paused", lambda one: None if one is None else replace(one, paused=Paused())
        )
        await rewrite(place.broker, "mine", lambda _: replace(declared("mine"), origin="user"))
        await place.end("w1")
        place.now += 10 * UNDECLARED_FOR
        assert await remove_undeclared(place.broker) == []
        # One that has not said yet what it knows does not count.
        await place.start("w2", tasks=())
        assert await remove_undeclared(place.broker) == []
        assert (await place.start("w3")).removed == ("left",)
        assert await place.names() == ["mine", "paused"]

    in_place(test)


def test_a_schedule_that_a_user_made_is_not_taken_over_by_code_of_the_same_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(place: Place) -> None:
        mine = replace(declared(rule=Every(5 * HOUR)), origin="user")
        await rewrite(place.broker, "s", lambda _: mine)
        assert (await place.start("w", declared())).refused == ("s",)
        assert await place.get() == mine

    in_place(test)
    assert "schedule s was made at run time" in caplog.text


def test_many_processes_that_start_at_once_agree() -> None:
    async def test(place: Place) -> None:
        schedules = [declared(f"s{n}") for n in range(20)]
        replies = await asyncio.gather(
            *(reconcile(place.broker, schedules, started=START) for _ in range(8)), return_exceptions=True
        )
        assert [reply for reply in replies if isinstance(reply, BaseException)] == []
        assert len(await place.names()) == 20
        assert await reconcile(place.broker, schedules, started=START) == Reconciled()

    in_place(test)


def test_a_document_of_another_version_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def test(place: Place) -> None:
        await place.broker.doc(KIND, "newer", b"\x93who knows")
        await place.start("w", declared())
        assert await place.names() == ["newer", "s"]

    with caplog.at_level(logging.WARNING):
        in_place(test)
    assert "newer" in caplog.text
