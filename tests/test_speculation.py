"""Second runs for slow jobs: who gets one, at what price, and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from dray.broker.actions import Cancel, Delete, Ids
from dray.broker.memory import MemoryBroker
from dray.broker.verbs import Beat, Filter
from dray.job import Job, Outcome, OutcomeKind, Taken, Verdict
from dray.stats.sketch import Sketch
from dray.stats.tallies import SecondRuns, Tally, WorkerTallies, read_second_runs, write_tallies
from dray.stats.task_stats import read_stats
from dray.worker.duties.speculation import SAVED_MOST, SHARE, STATS_EVERY, Speculation, earn
from dray.worker.retrying_broker import RetryingBroker

ANY = Filter()


class Shop:
    """A store with a clock that is moved by hand, two workers, and statistics as told."""

    def __init__(self) -> None:
        self.now = 1_000_000_000
        self.broker = MemoryBroker("dray", clock=lambda: self.now)
        self.duty = Speculation()
        self._requests = 0
        self._version = 0

    def line(self) -> RetryingBroker:
        seconds = lambda: self.now / 1000  # noqa: E731
        return RetryingBroker(self.broker.view(blocking=False), 60, wall=seconds, monotonic=seconds)

    async def tell(self, runs: int, took: float = 0.1, task: str = "resize") -> None:
        """The statistics: so many runs, all of the same length."""
        sketch = Sketch()
        sketch.add([took] * min(runs, 1000))
        tally = Tally(runs=runs, took=sketch, speculate=True)
        told = WorkerTallies(seen=self.now, tasks={task: tally})
        reply = await write_tallies(self.broker, "stats", told, self._version)
        assert reply.doc is not None
        self._version = reply.doc.version

    async def put(self, *ids: str, speculate: bool = True) -> None:
        await self.broker.put([Job(id=id, task="resize", speculate=speculate) for id in ids])

    async def take(self, worker: str, want: int = 100) -> list[Taken]:
        self._requests += 1
        await self.broker.renew([Beat(worker, 10_000_000)])
        return await self.broker.take(worker, self._requests, ["default"], ANY, want)

    async def settle(self, worker: str, taken: Taken, kind: str = "succeeded") -> Verdict:
        outcome = Outcome(id=taken.job.id, run=taken.run, kind=OutcomeKind(kind))
        (reply,) = await self.broker.settle(worker, [outcome])
        return reply.verdict

    async def pass_time(self, seconds: float) -> None:
        self.now += int(seconds * 1000)

    async def step(self) -> float:
        return await self.duty.step(self.line())

    async def second(self) -> SecondRuns:
        known = await read_second_runs(self.broker)
        return known["resize"][0] if known else SecondRuns()


def run(test: Callable[[Shop], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        shop = Shop()
        await test(shop)
        assert await shop.broker.audit() == []

    asyncio.run(main())


async def one_slow(shop: Shop) -> tuple[Taken, Taken]:
    """A job that runs at `ann` for long, and at `bob` since now."""
    await shop.tell(100)
    await shop.put("job")
    (first,) = await shop.take("ann")
    await shop.pass_time(2)
    await shop.step()
    (second,) = await shop.take("bob")
    return first, second


@pytest.mark.parametrize("winner", ["bob", "ann"])
def test_a_slow_job_runs_twice_and_it_is_counted_who_won(winner: str) -> None:
    async def test(shop: Shop) -> None:
        first, second = await one_slow(shop)
        assert (first.run, second.run) == (1, 2)
        await shop.step()
        counted = await shop.second()
        assert (counted.launched, counted.won, counted.wasted) == (1, 0, 0)
        runs = {"ann": first, "bob": second}
        loser = "ann" if winner == "bob" else "bob"
        assert await shop.settle(winner, runs[winner]) is Verdict.ACCEPTED
        assert await shop.settle(loser, runs[loser]) is Verdict.REFUSED
        await shop.step()
        stats = (await read_stats(shop.broker)).tasks["resize"]
        assert (stats.launched, stats.won, stats.wasted) == (1, winner == "bob", winner == "ann")
        assert (await shop.second()).credit == pytest.approx(100 * SHARE - 1)

    run(test)


@pytest.mark.parametrize(
    ("runs", "took", "seconds", "offered"),
    [
        (100, 0.1, 0.9, False),  # shorter than a second
        (100, 0.1, 1.1, True),
        (100, 1.0, 2.5, False),  # three times as long as others are
        (100, 1.0, 3.6, True),
        (19, 0.1, 60.0, False),  # too little is known
    ],
)
def test_slow_means_much_longer_than_most_and_longer_than_a_second(
    runs: int, took: float, seconds: float, offered: bool
) -> None:
    async def test(shop: Shop) -> None:
        await shop.tell(runs, took)
        await shop.put("job")
        await shop.take("ann")
        await shop.pass_time(seconds)
        await shop.step()
        assert len(await shop.take("bob")) == offered

    run(test)


def test_nobody_else_gets_a_second_run() -> None:
    async def test(shop: Shop) -> None:
        await shop.tell(100)
        await shop.put("plain", speculate=False)
        await shop.put("stopping")
        await shop.take("ann")
        await shop.broker.edit(Ids(("stopping",)), Cancel())
        await shop.pass_time(60)
        await shop.step()
        assert await shop.take("bob") == []
        assert (await shop.second()).offered == {}

    run(test)


def test_the_budget_bounds_how_many_and_the_slowest_come_first() -> None:
    async def test(shop: Shop) -> None:
        await shop.tell(60)
        for number in range(10):
            await shop.put(f"j{number}")
            await shop.take("ann")
            await shop.pass_time(1)
        await shop.pass_time(5)
        await shop.step()
        taken = await shop.take("bob")
        assert {one.job.id for one in taken} == {"j0", "j1", "j2"}
        for one in taken:
            await shop.settle("bob", one)
        for _ in range(5):
            await shop.pass_time(STATS_EVERY)
            await shop.step()
        assert await shop.take("bob") == []
        await shop.tell(80)
        await shop.pass_time(STATS_EVERY)
        await shop.step()
        assert [one.job.id for one in await shop.take("bob")] == ["j3"]
        await shop.step()
        counted = await shop.second()
        assert (counted.launched, counted.won) == (4, 3)
        assert counted.launched <= SHARE * 80

    run(test)


def test_credit_is_earned_once_and_saved_up_to_a_bound() -> None:
    second = SecondRuns()
    assert earn(second, 100)
    assert not earn(second, 100)
    assert second.credit == pytest.approx(5)
    earn(second, 1_000_000)
    assert second.credit == SAVED_MOST
    earn(second, 10)  # the statistics were lost: it goes on from there
    assert (second.credit, second.runs) == (SAVED_MOST, 10)


def test_an_offer_that_nobody_took_in_time_costs_nothing() -> None:
    async def test(shop: Shop) -> None:
        await shop.tell(100)
        await shop.put("job")
        (first,) = await shop.take("ann")
        await shop.pass_time(2)
        await shop.step()
        assert (await shop.second()).credit == pytest.approx(4)
        await shop.settle("ann", first)
        await shop.step()
        counted = await shop.second()
        assert (counted.launched, counted.wasted, counted.offered) == (0, 0, {})
        assert counted.credit == pytest.approx(5)

    run(test)


def test_an_offer_whose_job_is_not_kept_any_more_is_paid_for() -> None:
    """It may have been taken: were it free, tasks that keep nothing had second runs without end."""

    async def test(shop: Shop) -> None:
        _, second = await one_slow(shop)
        await shop.settle("bob", second)
        await shop.broker.edit(Ids(("job",)), Delete())
        await shop.step()
        counted = await shop.second()
        assert counted.offered == {}
        assert counted.credit == pytest.approx(4)

    run(test)


@pytest.mark.parametrize("kind", ["retry", "dead", "give_back", "crashed"])
def test_a_second_run_that_comes_to_nothing_is_counted_as_wasted(kind: str) -> None:
    async def test(shop: Shop) -> None:
        _, second = await one_slow(shop)
        await shop.settle("bob", second, kind)
        await shop.step()
        counted = await shop.second()
        if kind == "dead":  # that is an end as good as another, and it was first
            assert (counted.launched, counted.won) == (1, 1)
        else:
            assert (counted.launched, counted.wasted) == (1, 1)

    run(test)


def test_a_retry_of_the_first_run_is_not_taken_for_a_second_one() -> None:
    async def test(shop: Shop) -> None:
        await shop.tell(100)
        await shop.put("job")
        (first,) = await shop.take("ann")
        await shop.pass_time(2)
        await shop.step()
        await shop.settle("ann", first, "retry")
        (again,) = await shop.take("bob")
        assert (again.run, again.attempt) == (2, 2)
        await shop.step()
        assert (await shop.second()).launched == 0

    run(test)


def test_whoever_takes_over_makes_the_offer_that_was_only_written_down() -> None:
    async def test(shop: Shop) -> None:
        await shop.tell(100)
        await shop.put("job")
        await shop.take("ann")
        await shop.pass_time(2)
        edit = MemoryBroker.edit

        async def die(*_: Any, **__: Any) -> Any:
            raise asyncio.CancelledError

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MemoryBroker, "edit", die)
            with pytest.raises(asyncio.CancelledError):
                await shop.step()
        assert MemoryBroker.edit is edit
        assert await shop.take("bob") == []
        shop.duty = Speculation()
        await shop.step()
        assert len(await shop.take("bob")) == 1
        assert (await shop.second()).credit == pytest.approx(4)

    run(test)


def test_two_who_do_it_at_once_do_not_spend_the_same_credit() -> None:
    async def test(shop: Shop) -> None:
        await shop.tell(20)
        await shop.put(*(f"j{n}" for n in range(6)))
        await shop.take("ann")
        await shop.pass_time(2)
        await asyncio.gather(shop.step(), Speculation().step(shop.line()), Speculation().step(shop.line()))
        assert len(await shop.take("bob")) == 1

    run(test)


def test_without_such_tasks_nothing_is_looked_for() -> None:
    async def test(shop: Shop) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MemoryBroker, "find", None)
            assert await shop.step() == STATS_EVERY

    run(test)
