"""Duties under a hold: one worker at a time, taken over when it dies, and never too quick to judge."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from dray.broker.memory import MemoryBroker
from dray.broker.verbs import Beat, Broker, Filter, Swept
from dray.documents.worker_registry import LEADERSHIP, WorkerInfo, read_leader, read_workers, write_worker
from dray.errors import BrokerAway
from dray.job import Job, State
from dray.worker.duties.duties import Duties, Sweep
from dray.worker.duties.leadership import Leadership
from dray.worker.retrying_broker import RetryingBroker

LEASE = 600


class Store:
    """One store, a view of it per worker, and its clock, which is moved by hand."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self.broker = MemoryBroker("dray", clock=lambda: self.now)

    def line(self) -> RetryingBroker:
        return RetryingBroker(self.broker.view(blocking=False), LEASE / 1000)

    def hold(self, worker: str, *, stands_in: bool = False) -> Leadership:
        return Leadership(self.line(), worker, lease=LEASE, stands_in=stands_in)

    async def holder(self) -> str | None:
        holder = read_leader((await self.broker.doc(*LEADERSHIP)).doc)
        return holder.worker if holder else None


def run(test: Callable[[Store], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test(Store()))


def away(*_: object, **__: object) -> Any:
    raise BrokerAway("gone fishing")


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


# The hold


def test_one_holds_the_duties_and_the_others_wait() -> None:
    async def test(store: Store) -> None:
        first, second = store.hold("first"), store.hold("second")
        assert await first.seek()
        assert not await second.seek()
        assert (first.held, second.held) == (True, False)
        assert await store.holder() == "first"

    run(test)


def test_who_gives_it_up_is_followed_at_once_and_does_not_come_back() -> None:
    async def test(store: Store) -> None:
        first, second = store.hold("first"), store.hold("second")
        await first.seek()
        await first.give_up()
        assert not first.held
        assert not await first.seek()
        assert await second.seek()
        assert await store.holder() == "second"
        await first.give_up()  # not its to give
        assert await store.holder() == "second"

    run(test)


def test_who_gives_it_up_while_it_is_being_written_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(store: Store) -> None:
        line = store.line()
        first = Leadership(line, "first", lease=LEASE)
        write, begun, go_on = line.broker.doc, asyncio.Event(), asyncio.Event()

        async def slowly(*args: Any, **options: Any) -> Any:
            begun.set()
            await go_on.wait()
            return await write(*args, **options)

        monkeypatch.setattr(line.broker, "doc", slowly)
        seeking = asyncio.create_task(first.seek())
        await begun.wait()
        leaving = asyncio.create_task(first.give_up())
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(seeking, leaving)
        assert not first.held
        assert await store.holder() is None

    run(test)


def test_who_dies_is_followed_after_a_lease() -> None:
    async def test(store: Store) -> None:
        first, second = store.hold("first"), store.hold("second")
        await first.seek()
        store.now += LEASE - 1
        await second.seek()
        assert await store.holder() == "first"
        store.now += 1
        assert await second.seek()
        await asyncio.sleep(LEASE / 1000)  # the first comes back late: it has lost it, and knows it
        assert not first.held
        assert not await first.seek()
        assert await store.holder() == "second"

    run(test)


def test_it_is_kept_while_the_holder_lives() -> None:
    async def test(store: Store) -> None:
        first, second = store.hold("first"), store.hold("second")
        for _ in range(4):
            await first.seek()
            await second.seek()
            await asyncio.sleep(LEASE / 1500)
            store.now += LEASE * 2 // 3
        assert await store.holder() == "first"

    run(test)


def test_a_hold_whose_reply_was_lost_is_recognised() -> None:
    async def test(store: Store) -> None:
        await store.hold("first").seek()
        again = store.hold("first")
        assert await again.seek()
        assert again.held

    run(test)


def test_who_stands_in_makes_way_for_one_that_can_do_every_duty_but_not_for_its_like() -> None:
    async def test(store: Store) -> None:
        stand_in, other = store.hold("stand-in", stands_in=True), store.hold("other", stands_in=True)
        full, late = store.hold("full"), store.hold("late")
        assert await stand_in.seek()
        assert not await other.seek()
        assert await full.seek()
        assert not await late.seek()
        assert not await other.seek()
        await asyncio.sleep(LEASE / 2900)  # long enough to write it again
        assert not await stand_in.seek()
        assert not stand_in.held
        assert await store.holder() == "full"

    run(test)


def test_a_hold_that_cannot_be_read_is_left_alone_until_it_runs_out() -> None:
    async def test(store: Store) -> None:
        await store.broker.doc(*LEADERSHIP, b"\xff another version's", ttl=LEASE)
        first = store.hold("first")
        assert not await first.seek()
        store.now += LEASE
        assert await first.seek()

    run(test)


def test_the_roster_shows_who_has_it_also_while_another_still_believes_to() -> None:
    async def test(store: Store) -> None:
        for name in ("first", "second"):
            info = WorkerInfo(id=name, host="h", pid=1, started=0, seen=0, leader=name == "first")
            await write_worker(store.broker, info, 60_000)
        assert [info.leader for info in await read_workers(store.broker)] == [True, False]
        await store.hold("second").seek()
        assert [info.leader for info in await read_workers(store.broker)] == [False, True]

    run(test)


# Doing them


class Counting:
    """A duty that says how often it was called, and then does what it is told."""

    def __init__(self, act: Callable[[int], Coroutine[Any, Any, float]], name: str = "counting") -> None:
        self.name, self.calls, self._act = name, 0, act

    async def step(self, line: RetryingBroker) -> float:
        self.calls += 1
        return await self._act(self.calls)


def test_a_duty_is_called_at_its_pace_and_at_once_while_there_is_more() -> None:
    async def test(store: Store) -> None:
        async def act(calls: int) -> float:
            return 0.0 if calls < 5 else 3600.0

        duty = Counting(act)
        work = asyncio.create_task(Duties(store.line(), "a", [duty], lease=LEASE, interval=10).run())
        await until(lambda: duty.calls == 5)
        await asyncio.sleep(0.05)
        assert duty.calls == 5
        work.cancel()

    run(test)


def test_a_duty_that_fails_or_hangs_ends_neither_itself_nor_others(caplog: pytest.LogCaptureFixture) -> None:
    async def test(store: Store) -> None:
        async def fail(calls: int) -> float:
            raise ZeroDivisionError if calls % 2 else BrokerAway("gone fishing")

        async def hang(_: int) -> float:
            return await asyncio.Future[float]()

        async def work(_: int) -> float:
            return 0.01

        failing, hanging, working = Counting(fail, "dividing"), Counting(hang), Counting(work)
        duties = Duties(store.line(), "a", [failing, hanging, working], lease=LEASE, interval=10)
        running = asyncio.create_task(duties.run())
        await until(lambda: failing.calls >= 4 and working.calls >= 10)
        assert hanging.calls == 1
        assert duties.leader
        assert not running.done()
        running.cancel()

    run(test)
    assert "dividing failed" in caplog.text


def test_the_hold_is_kept_however_seldom_upkeep_is_asked_for() -> None:
    async def test(store: Store) -> None:
        duties = Duties(store.line(), "a", [], lease=LEASE, interval=3_600_000)
        running = asyncio.create_task(duties.run())
        await until(lambda: duties.leader)
        for _ in range(8):
            await asyncio.sleep(LEASE / 4000)
            store.now += LEASE // 4
        assert await store.holder() == "a"
        running.cancel()

    run(test)


def test_only_who_holds_them_does_them_and_the_next_one_begins_when_the_first_leaves() -> None:
    async def test(store: Store) -> None:
        async def act(_: int) -> float:
            return 0.01

        duties = [Counting(act), Counting(act)]
        workers = [
            Duties(store.line(), str(place), [duty], lease=60_000, interval=10)
            for place, duty in enumerate(duties)
        ]
        running = []
        for worker in workers:
            running.append(asyncio.create_task(worker.run()))
            await until(lambda: duties[0].calls)
        await asyncio.sleep(0.05)
        assert duties[1].calls == 0
        await workers[0].give_up()
        before = duties[0].calls
        await until(lambda: duties[1].calls > 3)
        assert duties[0].calls <= before + 1
        for task in running:
            task.cancel()

    run(test)


# Upkeep


async def lapsed_job(broker: Broker, store: Store) -> None:
    """A job held by a session whose lease has run out."""
    await broker.put([Job(id="a", task="t")])
    await broker.renew([Beat("far-1/2.1", LEASE)])
    await broker.take("far-1/2.1", 1, ["default"], Filter(), 1)
    store.now += LEASE + 1


async def state(store: Store) -> State:
    (record,) = await store.broker.get(["a"])
    assert record is not None
    return record.state


def test_a_lapsed_session_is_freed_and_its_worker_named(caplog: pytest.LogCaptureFixture) -> None:
    async def test(store: Store) -> None:
        line = store.line()
        await lapsed_job(line.broker, store)
        assert await Sweep(10).step(line) == 0.01
        assert await state(store) is State.READY

    run(test)
    assert "1 job of worker far-1 runs again" in caplog.text


def test_upkeep_is_called_again_at_once_while_there_is_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(store: Store) -> None:
        line = store.line()

        async def sweep(*_: object, **__: object) -> Swept:
            return Swept(more=True)

        monkeypatch.setattr(line.broker, "sweep", sweep)
        assert await Sweep(1000).step(line) == 0

    run(test)


def test_who_was_out_of_touch_for_a_lease_gives_the_others_a_lease_to_speak_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(store: Store) -> None:
        line, sweep = store.line(), Sweep(10)
        await sweep.step(line)
        with monkeypatch.context() as outage:
            outage.setattr(line.broker, "sweep", away)
            for _ in range(3):
                await asyncio.sleep(LEASE / 2000)
                with pytest.raises(BrokerAway):
                    await sweep.step(line)
        await lapsed_job(line.broker, store)
        await sweep.step(line)
        assert await state(store) is State.RUNNING
        for _ in range(3):
            await asyncio.sleep(LEASE / 2000)
            await sweep.step(line)
        assert await state(store) is State.READY

    caplog.set_level(logging.WARNING)
    run(test)
    said = [record.getMessage() for record in caplog.records]
    assert sum("the broker is away" in line for line in said) == 1
    assert sum("answers again" in line for line in said) == 1


def test_a_machine_that_slept_through_its_leases_does_not_expire_its_own_executors() -> None:
    async def test(store: Store) -> None:
        wall = 1_000.0
        line, sweep = RetryingBroker(store.broker, LEASE / 1000, wall=lambda: wall), Sweep(10)
        await sweep.step(line)
        await lapsed_job(line.broker, store)
        wall += LEASE  # while the monotonic clock stood still
        await sweep.step(line)
        assert await state(store) is State.RUNNING
        for _ in range(3):
            await asyncio.sleep(LEASE / 2000)
            await sweep.step(line)
        assert await state(store) is State.READY

    run(test)
