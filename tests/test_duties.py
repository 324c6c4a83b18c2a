"""Upkeep under a hold: one worker at a time, taken over when it dies, and never too quick to judge."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from dray.broker.memory import MemoryBroker
from dray.broker.verbs import Beat, Broker, Filter, Swept
from dray.errors import BrokerAway
from dray.job import Job, State
from dray.worker.duties import HOLD, NAME, Duties
from dray.worker.lifeline import Lifeline

LEASE = 600


class Store:
    """One store, a view of it per worker, and its clock, which is moved by hand."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self.broker = MemoryBroker("dray", clock=lambda: self.now)

    def worker(self, name: str, *, interval: int = 10) -> tuple[Lifeline, Duties]:
        line = Lifeline(self.broker.view(blocking=False), LEASE / 1000)
        return line, Duties(line, name, lease=LEASE, interval=interval)

    async def holder(self) -> str | None:
        doc = (await self.broker.doc(HOLD, NAME)).doc
        return doc.value.decode() if doc else None


def run(test: Callable[[Store], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test(Store()))


def away(*_: object, **__: object) -> Any:
    raise BrokerAway("gone fishing")


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def test_one_holds_the_duties_and_the_others_wait() -> None:
    async def test(store: Store) -> None:
        _, first = store.worker("first")
        _, second = store.worker("second")
        await first.tick()
        await second.tick()
        assert (first.leader, second.leader) == (True, False)
        assert await store.holder() == "first"

    run(test)


def test_who_gives_them_up_is_followed_at_once() -> None:
    async def test(store: Store) -> None:
        _, first = store.worker("first")
        _, second = store.worker("second")
        await first.tick()
        await first.give_up()
        assert not first.leader
        await second.tick()
        assert await store.holder() == "second"
        await first.give_up()  # not its to give
        assert await store.holder() == "second"

    run(test)


def test_who_dies_is_followed_after_a_lease() -> None:
    async def test(store: Store) -> None:
        _, first = store.worker("first")
        _, second = store.worker("second")
        await first.tick()
        store.now += LEASE - 1
        await second.tick()
        assert await store.holder() == "first"
        store.now += 1
        await second.tick()
        assert second.leader
        await asyncio.sleep(LEASE / 1000)  # the first comes back late: it has lost them, and knows it
        await first.tick()
        assert not first.leader
        assert await store.holder() == "second"

    run(test)


def test_they_are_kept_while_the_holder_lives() -> None:
    async def test(store: Store) -> None:
        _, first = store.worker("first")
        _, second = store.worker("second")
        for _ in range(4):
            await first.tick()
            await second.tick()
            await asyncio.sleep(LEASE / 1500)
            store.now += LEASE * 2 // 3
        assert await store.holder() == "first"

    run(test)


def test_a_hold_whose_reply_was_lost_is_recognised() -> None:
    async def test(store: Store) -> None:
        await store.broker.doc(HOLD, NAME, b"first", ttl=LEASE)
        _, first = store.worker("first")
        await first.tick()
        assert first.leader

    run(test)


def test_upkeep_is_done_at_its_pace_and_again_at_once_while_there_is_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(store: Store) -> None:
        line, duties = store.worker("first", interval=3_600_000)
        calls = 0

        async def sweep(*_: object, **__: object) -> Swept:
            nonlocal calls
            calls += 1
            return Swept(more=calls < 5)

        monkeypatch.setattr(line.broker, "sweep", sweep)
        work = asyncio.create_task(duties.run())
        await until(lambda: calls == 5)
        await asyncio.sleep(0.05)
        assert calls == 5
        work.cancel()

    run(test)


def test_no_failure_ends_them(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def test(store: Store) -> None:
        line, duties = store.worker("first")
        tries = 0

        async def sweep(*_: object, **__: object) -> Swept:
            nonlocal tries
            tries += 1
            raise ZeroDivisionError if tries % 2 else BrokerAway("gone fishing")

        monkeypatch.setattr(line.broker, "sweep", sweep)
        work = asyncio.create_task(duties.run())
        await until(lambda: tries >= 4)
        assert not work.done()
        work.cancel()

    run(test)
    assert "upkeep failed" in caplog.text


async def lapsed_job(broker: Broker, store: Store) -> None:
    """A job held by a session whose lease has run out."""
    await broker.put([Job(id="a", task="t")])
    await broker.renew([Beat("s", LEASE)])
    await broker.take("s", 1, ["default"], Filter(), 1)
    store.now += LEASE + 1


async def state(store: Store) -> State:
    (record,) = await store.broker.get(["a"])
    assert record is not None
    return record.state


def test_a_lapsed_session_is_freed() -> None:
    async def test(store: Store) -> None:
        line, duties = store.worker("first")
        await lapsed_job(line.broker, store)
        await duties.tick()
        assert await state(store) is State.READY

    run(test)


def test_who_was_out_of_touch_for_a_lease_gives_the_others_a_lease_to_speak_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(store: Store) -> None:
        line, duties = store.worker("first")
        await duties.tick()
        with monkeypatch.context() as outage:
            for verb in ("doc", "sweep"):
                outage.setattr(line.broker, verb, away)
            for _ in range(3):
                await asyncio.sleep(LEASE / 2000)
                with pytest.raises(BrokerAway):
                    await duties.tick()
        await lapsed_job(line.broker, store)
        await duties.tick()
        assert await state(store) is State.RUNNING
        for _ in range(3):
            await asyncio.sleep(LEASE / 2000)
            await duties.tick()
        assert await state(store) is State.READY

    caplog.set_level(logging.WARNING)
    run(test)
    said = [record.getMessage() for record in caplog.records]
    assert sum("the broker is away" in line for line in said) == 1
    assert sum("answers again" in line for line in said) == 1


def test_a_machine_that_slept_through_its_leases_does_not_expire_its_own_executors() -> None:
    async def test(store: Store) -> None:
        wall = 1_000.0
        line = Lifeline(store.broker, LEASE / 1000, wall=lambda: wall)
        duties = Duties(line, "first", lease=3_600_000, interval=10)
        await duties.tick()
        await lapsed_job(line.broker, store)
        wall += LEASE  # while the monotonic clock stood still
        await duties.tick()
        assert await state(store) is State.RUNNING
        for _ in range(3):
            await asyncio.sleep(LEASE / 2000)
            await duties.tick()
        assert await state(store) is State.READY

    run(test)
