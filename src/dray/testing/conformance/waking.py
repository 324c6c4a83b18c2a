"""`wait`: asleep until there is something to do, something to hear, or something that ended.

These tests run in real time. They never conclude anything from a pause: each waits for a condition, and the
time it may take is only a bound.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from dray.broker.actions import Cancel, Delete, Pause, Resume, Scope, SetLimits, Speculate
from dray.broker.verbs import Broker, Filter, Interest, Wake, run_blocking
from dray.job import OutcomeKind, State
from dray.testing.conformance.bench import HOUR, Bench, OpenBroker, Theme, Worker, job, jobs

PATIENCE = 20.0
"""How long a wake-up may take at the very most."""
WORK = Interest(queues=("default",))


class RealTime(Theme):
    @pytest.fixture
    def bench(self, open_broker: OpenBroker) -> Bench:
        bench = Bench(open_broker)
        bench.clock.real = True
        return bench


async def asleep(bench: Bench, interest: Interest) -> Callable[[], Awaitable[Wake]]:
    """Start a `wait` beside the test; the answer awaits its end.

    The short pause lets it fall asleep before the test goes on. The tests hold without it, as news that came
    before the sleep count as well.
    """
    if bench.blocking:
        return _asleep_in_thread(bench, interest)
    broker = await bench.open()
    task = asyncio.ensure_future(broker.wait(interest, PATIENCE))
    await asyncio.sleep(0.02)
    return lambda: asyncio.wait_for(task, 2 * PATIENCE)


def _asleep_in_thread(bench: Bench, interest: Interest) -> Callable[[], Awaitable[Wake]]:
    async def play() -> Wake:
        broker = await bench.opener()
        try:
            return await broker.wait(interest, PATIENCE)
        finally:
            await broker.close()

    pool = ThreadPoolExecutor(1)
    future = pool.submit(lambda: run_blocking(play()))
    time.sleep(0.02)

    async def answer() -> Wake:
        try:
            return future.result(2 * PATIENCE)
        finally:
            pool.shutdown()

    return answer


async def no_news(broker: Broker, interest: Interest) -> bool:
    return await broker.wait(interest, 0) == Wake()


class TestWaitingForWork(RealTime):
    async def test_nothing_to_do_is_known_after_the_timeout(self, bench: Bench) -> None:
        start = time.monotonic()
        assert await bench.broker.wait(WORK, 0.1) == Wake()
        assert 0.09 <= time.monotonic() - start < PATIENCE

    async def test_waiting_costs_no_work(self, bench: Bench) -> None:
        await bench.put(job(due=bench.clock.after(HOUR)), job("other", queue="other"))
        start, worked = time.monotonic(), time.process_time()
        await bench.broker.wait(WORK, 0.5)
        assert time.process_time() - worked < 0.5 * (time.monotonic() - start)

    async def test_work_that_is_there_is_told_at_once(self, bench: Bench) -> None:
        await bench.put(job())
        assert await bench.broker.wait(WORK, PATIENCE) == Wake(work=True, queues=("default",))
        assert await bench.broker.wait(WORK, 0) == Wake(work=True, queues=("default",))

    async def test_a_wake_names_the_queues_with_work(self, bench: Bench) -> None:
        queues = tuple(f"q{number}" for number in range(20))
        answer = await asleep(bench, Interest(queues=queues))
        await bench.put(job("a", queue="q7"))
        assert (await answer()).queues == ("q7",)
        await bench.put(job("b", queue="q15"), job("elsewhere", queue="z"))
        for timeout in (PATIENCE, 0):
            wake = await bench.broker.wait(Interest(queues=queues), timeout)
            assert wake == Wake(work=True, queues=("q7", "q15"))

    async def test_the_names_of_queues_are_told_as_soon_as_they_hold_a_job(self, bench: Bench) -> None:
        assert not {"a", "b"} & set(await bench.broker.queue_names())
        await bench.put(job("a", queue="a"), job("b", queue="b"))
        names = await bench.broker.queue_names()
        assert {"a", "b"} <= set(names)
        assert len(names) == len(set(names))

    async def test_a_put_wakes_who_sleeps(self, bench: Bench) -> None:
        answer = await asleep(bench, Interest(queues=("other", "default")))
        await bench.put(job())
        assert (await answer()).work

    async def test_a_due_time_wakes_who_sleeps_and_not_before(self, bench: Bench) -> None:
        due = bench.clock.after(200)
        await bench.put(job(due=due))
        assert (await bench.broker.wait(WORK, PATIENCE)).work
        assert bench.clock.time >= due - 1

    async def test_a_job_put_with_an_earlier_due_time_shortens_the_sleep(self, bench: Bench) -> None:
        await bench.put(job("late", due=bench.clock.after(HOUR)))
        answer = await asleep(bench, WORK)
        await bench.put(job("soon", due=bench.clock.after(200)))
        assert (await answer()).work

    async def test_a_rate_that_has_room_again_wakes_who_sleeps(self, bench: Bench) -> None:
        await bench.put(*jobs(2, rate="5/s"))
        ann = await bench.worker()
        assert len(await ann.take(2)) == 1
        assert (await ann.broker.wait(WORK, PATIENCE)).work
        assert len(await ann.take(2)) == 1

    @pytest.mark.parametrize("kind", list(OutcomeKind))
    async def test_a_slot_that_is_free_again_wakes_who_sleeps(self, bench: Bench, kind: OutcomeKind) -> None:
        await bench.put(*jobs(2, max_running=1))
        ann = await bench.worker()
        taken = await ann.take_one()
        answer = await asleep(bench, WORK)
        await ann.settle(taken, kind)
        assert (await answer()).work

    async def test_a_worker_that_died_wakes_who_sleeps(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        await ann.take_one()
        answer = await asleep(bench, WORK)
        await ann.leave()
        assert (await answer()).work

    async def test_a_job_released_by_another_queue_wakes_who_sleeps(self, bench: Bench) -> None:
        await bench.put(job("a", queue="other"), job("b", waits_for=("a",)))
        ann = await bench.worker()
        taken = await ann.take_one(["other"])
        answer = await asleep(bench, WORK)
        await ann.succeed(taken)
        assert (await answer()).work

    @pytest.mark.parametrize("how", ["resume", "limit"])
    async def test_an_operator_that_lets_go_wakes_who_sleeps(self, bench: Bench, how: str) -> None:
        await bench.put(*jobs(2))
        ann = await bench.worker()
        await ann.take_one()
        await bench.edit(Scope("default"), Pause() if how == "resume" else SetLimits(max_running=1))
        answer = await asleep(bench, WORK)
        await bench.edit(Scope("default"), Resume() if how == "resume" else SetLimits(max_running=2))
        assert (await answer()).work

    async def test_a_second_run_on_offer_wakes_another_session(self, bench: Bench) -> None:
        await bench.put(job(speculate=True))
        ann, bob = await bench.worker("ann"), await bench.worker("bob")
        await ann.take_one()
        answer = await asleep(bench, Interest(queues=("default",), session="bob"))
        await bench.edit("job", Speculate())
        assert await answer() == Wake(work=True, queues=("default",))
        assert await no_news(ann.broker, Interest(queues=("default",), session="ann"))
        assert await bob.take_ids() == ["job"]

    @pytest.mark.parametrize("why", ["unknown", "paused", "limit", "rate", "later", "elsewhere"])
    async def test_what_a_take_could_not_get_wakes_nobody(self, bench: Bench, why: str) -> None:
        """Or a worker that takes, gets nothing and waits again would spin."""
        await self.hold_back(bench, why)
        ann = await bench.worker()
        knows = Filter(tasks=frozenset({"work"}))
        await ann.take(5, filter=knows)
        assert await ann.take(5, filter=knows) == []
        assert await no_news(ann.broker, Interest(queues=("default",), filter=knows, session="ann"))

    @staticmethod
    async def hold_back(bench: Bench, why: str) -> None:
        match why:
            case "unknown":
                await bench.put(job(task="new"))
            case "paused":
                await bench.put(job())
                await bench.edit(Scope("default"), Pause())
            case "limit":
                await bench.put(*jobs(2, max_running=1))
            case "rate":
                await bench.put(*jobs(2, rate="1/h"))
            case "later":
                await bench.put(job(due=bench.clock.after(HOUR)))
            case "elsewhere":
                await bench.put(job(queue="other"))


class TestWordForASession(RealTime):
    async def test_a_cancellation_wakes_the_session_that_runs_the_job(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        taken = await ann.take_one()
        answer = await asleep(bench, Interest(session="ann"))
        await bench.edit("job", Cancel())
        assert await answer() == Wake(told=True)
        assert (await ann.beat()).cancelled == (("job", 1),)
        await ann.settle(taken, OutcomeKind.CANCELLED)
        assert await no_news(ann.broker, Interest(session="ann"))

    async def test_a_run_that_lost_the_race_is_told(self, bench: Bench) -> None:
        await bench.put(job(speculate=True))
        ann, bob = await bench.worker("ann"), await bench.worker("bob")
        await ann.take_one()
        await bench.edit("job", Speculate())
        fast = await bob.take_one()
        answer = await asleep(bench, Interest(session="ann"))
        await bob.succeed(fast)
        assert await answer() == Wake(told=True)
        assert (await ann.beat()).lost == (("job", 1),)

    async def test_a_session_that_is_unknown_is_told_at_once(self, bench: Bench) -> None:
        assert await bench.broker.wait(Interest(session="nobody"), PATIENCE) == Wake(told=True)

    async def test_a_session_that_holds_jobs_in_peace_hears_nothing(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        await ann.take_one()
        assert await no_news(ann.broker, Interest(session="ann"))


class TestWatching(RealTime):
    @pytest.mark.parametrize("end", ["succeeded", "dead", "cancelled", "deleted"])
    async def test_the_end_of_a_watched_job_wakes_its_watcher(self, bench: Bench, end: str) -> None:
        await bench.put(job())
        [record] = await bench.broker.get(["job"], watch="me", now=bench.clock.now)
        assert record is not None
        assert record.state == State.READY
        answer = await asleep(bench, Interest(watcher="me"))
        if end in ("cancelled", "deleted"):
            await bench.edit("job", Cancel() if end == "cancelled" else Delete())
        else:
            ann = await bench.worker()
            taken = await ann.take_one()
            await (ann.succeed(taken) if end == "succeeded" else ann.kill(taken))
        wake = await answer()
        assert (wake.work, wake.told, wake.finished) == (False, False, ("job",))
        [record] = await bench.broker.get(["job"], now=bench.clock.now)
        assert wake.records.get("job", record) == record

    async def test_an_end_between_get_and_wait_is_not_missed(self, bench: Bench) -> None:
        await bench.put(job())
        await bench.broker.get(["job"], watch="me", now=bench.clock.now)
        await bench.edit("job", Cancel())
        assert await bench.broker.wait(Interest(watcher="me"), PATIENCE) == Wake(finished=("job",))

    async def test_a_job_that_has_ended_before_is_read_and_not_watched(self, bench: Bench) -> None:
        await bench.put(job())
        await bench.edit("job", Cancel())
        [record] = await bench.broker.get(["job"], watch="me", now=bench.clock.now)
        assert record is not None
        assert record.state == State.CANCELLED
        assert await no_news(bench.broker, Interest(watcher="me"))

    async def test_an_end_is_told_once_however_often_it_was_asked_for(self, bench: Bench) -> None:
        await bench.put(job())
        for _ in range(3):
            await bench.broker.get(["job", "job"], watch="me", now=bench.clock.now)
        await bench.edit("job", Cancel())
        assert await bench.broker.wait(Interest(watcher="me"), PATIENCE) == Wake(finished=("job",))
        assert await no_news(bench.broker, Interest(watcher="me"))

    async def test_a_failed_attempt_is_not_the_end(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        await bench.broker.get(["job"], watch="me", now=bench.clock.now)
        await ann.retry(await ann.take_one())
        await ann.give_back(await ann.take_one())
        assert await no_news(bench.broker, Interest(watcher="me"))
        await ann.succeed(await ann.take_one())
        assert (await bench.broker.wait(Interest(watcher="me"), PATIENCE)).finished == ("job",)

    async def test_every_watcher_is_told_of_its_own_jobs(self, bench: Bench) -> None:
        await bench.put(job("a"), job("b"), job("c"))
        await bench.broker.get(["a", "b"], watch="me", now=bench.clock.now)
        await bench.broker.get(["b", "c"], watch="you", now=bench.clock.now)
        ann = await bench.worker()
        for taken in await ann.take(3):
            await ann.succeed(taken)
        me = await bench.broker.wait(Interest(watcher="me"), PATIENCE)
        you = await bench.broker.wait(Interest(watcher="you"), PATIENCE)
        assert (sorted(me.finished), sorted(you.finished)) == (["a", "b"], ["b", "c"])

    async def test_an_orphan_that_is_cancelled_is_told_too(self, bench: Bench) -> None:
        await bench.put(job("a"), job("b", waits_for=("a",)))
        await bench.broker.get(["b"], watch="me", now=bench.clock.now)
        await bench.edit("a", Cancel())
        assert (await bench.broker.wait(Interest(watcher="me"), PATIENCE)).finished == ("b",)

    async def test_one_wait_serves_every_interest(self, bench: Bench) -> None:
        await bench.put(*jobs(3))
        ann = await bench.worker()
        [first, _] = await ann.take(2)
        await bench.broker.get(["job-0000"], watch="me", now=bench.clock.now)
        await bench.edit("job-0001", Cancel())
        await ann.succeed(first)
        wake = await bench.broker.wait(Interest(queues=("default",), session="ann", watcher="me"), PATIENCE)
        assert wake == Wake(work=True, told=True, finished=("job-0000",), queues=("default",))

    async def test_a_thousand_jobs_are_watched_by_one_waiter(self, bench: Bench) -> None:
        many = jobs(1000)
        await bench.put(*many)
        await bench.broker.get([one.id for one in many], watch="me", now=bench.clock.now)
        ann: Worker = await bench.worker()
        for taken in await ann.take(1000):
            await ann.succeed(taken)
        finished: list[str] = []
        while len(finished) < 1000:
            wake = await bench.broker.wait(Interest(watcher="me"), PATIENCE)
            assert wake.finished
            finished += wake.finished
        assert sorted(finished) == [one.id for one in many]
