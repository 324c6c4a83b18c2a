"""Pausing a queue, or one task in it."""

from __future__ import annotations

from dray.broker.actions import Pause, Resume, Scope, Speculate
from dray.job import State
from dray.testing.conformance.bench import SECOND, Bench, Theme, job


class TestPausing(Theme):
    async def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(self, bench: Bench) -> None:
        await bench.put(job("a"), job("b", queue="other"))
        await bench.edit(Scope("default"), Pause())
        ann = await bench.worker()
        assert await ann.take_ids(5, ["default", "other"]) == ["b"]
        await bench.edit(Scope("default"), Resume())
        assert await ann.take_ids(5) == ["a"]

    async def test_a_paused_task_does_not_hold_back_the_others(self, bench: Bench) -> None:
        await bench.put(job("a", "one", priority=0), job("b", "two"), job("c", "one", queue="other"))
        await bench.edit(Scope("default", "one"), Pause())
        ann = await bench.worker()
        assert await ann.take_ids(5, ["default", "other"]) == ["b", "c"]
        await bench.edit(Scope("default", "one"), Resume())
        assert await ann.take_ids(5) == ["a"]

    async def test_queue_and_task_are_paused_apart(self, bench: Bench) -> None:
        await bench.put(job())
        await bench.edit(Scope("default"), Pause())
        await bench.edit(Scope("default", "work"), Pause())
        await bench.edit(Scope("default"), Resume())
        ann = await bench.worker()
        assert await ann.take() == []
        await bench.edit(Scope("default", "work"), Resume())
        assert await ann.take_ids() == ["job"]

    async def test_running_jobs_finish_and_new_ones_are_accepted(self, bench: Bench) -> None:
        await bench.put(job("a"))
        ann = await bench.worker()
        taken = await ann.take_one()
        await bench.edit(Scope("default"), Pause())
        assert (await bench.put_one(job("b"))).state == State.READY
        assert (await ann.succeed(taken)).verdict == "accepted"

    async def test_time_goes_on_in_a_paused_queue(self, bench: Bench) -> None:
        await bench.edit(Scope("default"), Pause())
        await bench.put(job("due", due=bench.clock.after(SECOND)), job("old", ttl=SECOND))
        bench.clock.advance(SECOND)
        await bench.sweep()
        assert await bench.states("due", "old") == [State.READY, State.DEAD]

    async def test_a_queue_can_be_paused_before_it_holds_anything(self, bench: Bench) -> None:
        await bench.edit(Scope("new"), Pause())
        await bench.put(job(queue="new"))
        assert await (await bench.worker()).take(5, ["new"]) == []

    async def test_it_is_on_record_who_paused_when_and_why(self, bench: Bench) -> None:
        await bench.edit(Scope("default"), Pause(by="eve", reason="deploy"))
        await bench.edit(Scope("default", "work"), Pause(by="bob"))
        info = await bench.queue()
        assert info is not None
        assert info.paused == Pause("eve", "deploy", bench.clock.time)
        assert info.paused_tasks == {"work": Pause("bob", "", bench.clock.time)}
        await bench.edit(Scope("default"), Resume())
        await bench.edit(Scope("default", "work"), Resume())
        assert await bench.queue() is None

    async def test_resuming_what_is_not_paused_changes_nothing(self, bench: Bench) -> None:
        await bench.put(job())
        await bench.edit(Scope("default"), Resume())
        await bench.edit(Scope("default", "other"), Resume())
        assert await (await bench.worker()).take_ids() == ["job"]

    async def test_a_pause_that_is_only_tried_out_holds_back_nothing(self, bench: Bench) -> None:
        await bench.put(job())
        await bench.edit(Scope("default"), Pause(), dry_run=True)
        assert await (await bench.worker()).take_ids() == ["job"]

    async def test_a_paused_queue_starts_no_second_runs(self, bench: Bench) -> None:
        await bench.put(job(speculate=True))
        ann, bob = await bench.worker("ann"), await bench.worker("bob")
        await ann.take_one()
        await bench.edit("job", Speculate())
        await bench.edit(Scope("default"), Pause())
        assert await bob.take() == []
        await bench.edit(Scope("default"), Resume())
        assert await bob.take_ids() == ["job"]
