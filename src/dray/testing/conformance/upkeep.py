"""`sweep`: bounded steps of upkeep that end, whatever there is to do."""

from __future__ import annotations

from typing import Any

import pytest

from dray.broker.actions import Cancel, Query
from dray.broker.checks import FREE_STEP
from dray.broker.verbs import Beat, Swept
from dray.job import State
from dray.policy import Retention
from dray.testing.conformance.bench import LEASE, MINUTE, SECOND, Bench, Theme, job, jobs


async def sweep_all(bench: Bench, limit: int) -> list[Swept]:
    steps = [await bench.sweep(limit)]
    while steps[-1].more:
        assert len(steps) < 1000, "there is always more to sweep"
        steps.append(await bench.sweep(limit))
    return steps


class TestUpkeep(Theme):
    async def test_there_is_nothing_to_do_in_an_empty_store(self, bench: Bench) -> None:
        assert await bench.sweep() == Swept()

    async def test_due_jobs_become_ready_in_bounded_steps(self, bench: Bench) -> None:
        await bench.put(*jobs(25, due=bench.clock.after(SECOND)))
        bench.clock.advance(SECOND)
        steps = await sweep_all(bench, 10)
        assert max(step.promoted for step in steps) <= 10
        assert sum(step.promoted for step in steps) == 25
        assert len(await bench.find(Query(state=State.READY))) == 25

    async def test_lapsed_sessions_are_freed_in_bounded_steps(self, bench: Bench) -> None:
        await bench.put(*jobs(5))
        for n in range(5):
            await (await bench.worker(f"w{n}")).take()
        bench.clock.advance(LEASE)
        steps = await sweep_all(bench, 2)
        assert max(step.lapsed for step in steps) <= 2
        assert sum(step.freed for step in steps) == 5
        held_by = {name: freed for step in steps for name, freed in step.freed_by.items()}
        assert held_by == {f"w{n}": 1 for n in range(5)}
        assert len(await bench.find(Query(state=State.READY))) == 5

    async def test_a_session_with_a_heap_of_jobs_is_freed_in_bounded_steps(self, bench: Bench) -> None:
        count = FREE_STEP + 5
        await bench.put(*jobs(count), *jobs(5, "due", due=bench.clock.after(LEASE)))
        ann = await bench.worker("ann")
        assert len(await ann.take(count)) == count
        bench.clock.advance(LEASE)
        steps = await sweep_all(bench, 10)
        assert max(step.freed for step in steps) == FREE_STEP
        assert sum(step.freed for step in steps) == count
        assert sum(step.lapsed for step in steps) == 1
        assert steps[0].promoted == 5, "what else there is to do waits for the heap"
        assert all(not step.repairs for step in steps)
        info = await bench.queue()
        assert info is not None
        assert info.counts == {State.READY: count + 5}
        assert (await (await bench.worker("bob")).take_one()).run == 2

    async def test_many_lapsed_sessions_are_freed_in_bounded_steps(self, bench: Bench) -> None:
        await bench.put(*jobs(30))
        for n in range(300):
            beats = [Beat(f"w{n}", LEASE)]
            await bench.broker.renew(beats, now=bench.clock.now)
        ann = await bench.worker("ann")
        await ann.take(30)
        bench.clock.advance(LEASE)
        steps = await sweep_all(bench, 100)
        assert max(step.lapsed for step in steps) == 100
        assert sum(step.lapsed for step in steps) == 301
        assert sum(step.freed for step in steps) == 30

    async def test_a_sound_store_is_never_repaired(self, bench: Bench) -> None:
        limited: dict[str, Any] = {"group": "g", "running_key": "k", "max_running": 1, "rate_key": "r"}
        await bench.put(job("a"), job("b", waits_for=("a",)), job("c", key="k", ttl=MINUTE, **limited))
        await bench.put(job("d", **limited), job("e", due=bench.clock.after(SECOND), queue="other"))
        await bench.put(
            job("orphan", waits_for=("a", "b"), orphan="wait", queue="other"), job("f", once=MINUTE)
        )
        ann, bob = await bench.worker("ann"), await bench.worker("bob")
        repairs = [(await bench.sweep()).repairs]
        held = await ann.take(2)
        repairs.append((await bench.sweep()).repairs)
        await ann.kill(held[0])
        await ann.retry(held[1], at=bench.clock.after(SECOND))
        held = await bob.take(9, ["other", "default"])
        repairs.append((await bench.sweep()).repairs)
        await bench.edit(held[0].job.id, Cancel())
        for _ in range(4):
            bench.clock.advance(10 * SECOND)
            repairs.append((await bench.sweep()).repairs)
        assert repairs == [{}] * 7

    async def test_expired_jobs_are_buried_in_bounded_steps(self, bench: Bench) -> None:
        await bench.put(*jobs(25, ttl=SECOND))
        bench.clock.advance(SECOND)
        steps = await sweep_all(bench, 10)
        assert max(step.expired for step in steps) <= 10
        assert sum(step.expired for step in steps) == 25

    async def test_old_records_are_pruned_in_bounded_steps(self, bench: Bench) -> None:
        await bench.reopen("short", Retention(done_ttl=SECOND))
        await bench.put(*jobs(15), *jobs(10, "other", queue="other"))
        ann = await bench.worker()
        for taken in await ann.take(99, ["default", "other"]):
            await ann.succeed(taken)
        bench.clock.advance(SECOND)
        steps = await sweep_all(bench, 10)
        assert max(step.pruned for step in steps) <= 10
        assert sum(step.pruned for step in steps) == 25
        assert await bench.broker.queues(now=bench.clock.now) == []

    async def test_every_kind_of_work_has_its_own_limit(self, bench: Bench) -> None:
        await bench.reopen("short", Retention(done_ttl=SECOND))
        await bench.put(job("done"), job("held"))
        ann, bob = await bench.worker("ann"), await bench.worker("bob")
        await ann.succeed(await ann.take_one())
        await bob.take_one()
        await bench.put(*jobs(30, "due", due=bench.clock.after(SECOND)), *jobs(30, "old", ttl=SECOND))
        bench.clock.advance(LEASE)
        swept = await bench.sweep(2)
        assert (swept.promoted, swept.expired, swept.pruned) == (2, 2, 1)
        assert (swept.lapsed, swept.freed) == (2, 1)

    async def test_when_no_more_is_left_nothing_is_left(self, bench: Bench) -> None:
        await bench.put(job("old", ttl=SECOND), *(job(f"w{n}", waits_for=("old",)) for n in range(30)))
        bench.clock.advance(SECOND)
        await sweep_all(bench, 10)
        assert len(await bench.find(Query(state=State.CANCELLED))) == 30

    async def test_a_fan_out_beyond_one_step_is_forwarded_to_the_last(self, bench: Bench) -> None:
        await bench.put(job("a"), *jobs(1500, "b", waits_for=("a",), queue="other"))
        ann = await bench.worker()
        await ann.succeed(await ann.take_one())
        await sweep_all(bench, 100)
        info = await bench.queue("other")
        assert info is not None
        assert info.counts == {State.READY: 1500}

    async def test_a_sweep_repeated_at_the_same_time_finds_nothing(self, bench: Bench) -> None:
        await bench.put(job("due", due=bench.clock.after(SECOND)), job("old", ttl=SECOND))
        await (await bench.worker()).take(0)
        bench.clock.advance(MINUTE)
        assert await bench.sweep() != Swept()
        assert await bench.sweep() == Swept()

    async def test_two_sweepers_do_everything_once(self, bench: Bench) -> None:
        await bench.put(*jobs(10, due=bench.clock.after(SECOND)))
        other = await bench.open()
        bench.clock.advance(SECOND)
        counts = [(await bench.sweep(6)).promoted, (await other.sweep(6, now=bench.clock.now)).promoted]
        assert sum(counts) == 10
        assert len(await (await bench.worker()).take(99)) == 10

    @pytest.mark.parametrize("count", [0, 3])
    async def test_jobs_that_need_nothing_are_left_alone(self, bench: Bench, count: int) -> None:
        await bench.put(*jobs(count), job("later", due=bench.clock.after(MINUTE)), job("fresh", ttl=MINUTE))
        before = await bench.everything()
        bench.clock.advance(SECOND)
        assert await bench.sweep() == Swept()
        assert await bench.everything() == before
