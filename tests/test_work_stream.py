"""`app.external.astream`: jobs pushed to one worker, fenced like those of any worker, on every broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis_server

from dray import App, BrokerAway, InvalidInput, LeaseLost, SessionLost, State, TooLarge
from dray.admin.held_job import HeldJob, Nack
from dray.admin.work_news import Settlement, StopOrder, WorkNews
from dray.admin.work_stream import WorkStream
from dray.broker.verbs import Broker, run_blocking
from dray.job import Progress

BROKERS = ("memory", "sqlite", "valkey")
Scene = Callable[[App], Awaitable[None]]


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    redis_server.need("valkey")
    with redis_server.running("valkey", tmp_path_factory.mktemp("valkey")) as server:
        yield f"redis://127.0.0.1:{server.port}/0"


@pytest.fixture(params=BROKERS)
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    kind = request.param
    url = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/jobs.db"}.get(kind)
    namespace = f"n{time.monotonic_ns()}"
    app = App("shop", broker=url or request.getfixturevalue("valkey"), namespace=namespace)
    yield app
    assert run_blocking(app.client.thread_link().broker.audit()) == []
    app.close()


def play(app: App, scene: Scene) -> None:
    async def closing() -> None:
        try:
            async with asyncio.timeout(60):
                await scene(app)
        finally:
            await (await broker_of(app)).close()

    asyncio.run(closing())


async def broker_of(app: App) -> Broker:
    return (await app.client.loop_link()).broker


class Reader:
    """Reads a stream and keeps what it said."""

    def __init__(self, stream: WorkStream) -> None:
        self.stream, self.news = stream, WorkNews()

    async def until(self, enough: Callable[[WorkNews], object]) -> WorkNews:
        """The news that was not looked at yet, once there is enough."""
        while not enough(self.news):
            news = await anext(self.stream)
            self.news.jobs += news.jobs
            self.news.settled += news.settled
            self.news.stops += news.stops
            self.news.finishing = self.news.finishing or news.finishing
        return self.news

    async def _next(self, field: str, count: int) -> list[Any]:
        found: list[Any] = getattr(await self.until(lambda news: len(getattr(news, field)) >= count), field)
        setattr(self.news, field, [])
        return found

    async def jobs(self, count: int = 1) -> list[HeldJob]:
        return await self._next("jobs", count)

    async def settled(self, count: int = 1) -> list[Settlement]:
        return await self._next("settled", count)

    async def stops(self, count: int = 1) -> list[StopOrder]:
        return await self._next("stops", count)

    async def end(self) -> None:
        async for news in self.stream:
            assert not news.jobs


@asynccontextmanager
async def reading(app: App, **options: Any) -> AsyncIterator[tuple[WorkStream, Reader]]:
    given: dict[str, Any] = {"credits": 10} | options
    async with app.external.astream(["default"], **given) as stream:
        yield stream, Reader(stream)


def test_jobs_come_up_to_the_credits_and_more_when_some_have_ended(app: App) -> None:
    async def scene(app: App) -> None:
        jobs = [await app.aenqueue("a", n) for n in range(25)]
        async with reading(app) as (stream, reader):
            seen: list[Any] = []
            while len(seen) < 25:
                held = await reader.jobs(1)
                seen += [job.args for job in held]
                assert len(held) <= 10
                for job in held:
                    stream.ack(job.id, job.run, {"size": job.attempt})
            assert seen == [(n,) for n in range(25)]
            await asyncio.sleep(0)
        assert [await job.aget(5) for job in jobs] == [{"size": 1}] * 25

    play(app, scene)


def test_a_stream_without_work_sleeps_until_a_job_comes(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(app: App) -> None:
        broker = await broker_of(app)
        take, takes = broker.take, []

        async def counted(*args: Any, **kwargs: Any) -> Any:
            takes.append(args)
            return await take(*args, **kwargs)

        monkeypatch.setattr(broker, "take", counted)
        async with reading(app, lease=600) as (stream, reader):
            await asyncio.sleep(0.5)
            assert len(takes) <= 2, "it polls"
            await app.aenqueue("a", 1)
            (job,) = await reader.jobs(1)
            stream.ack(job.id, job.run)
            assert (await reader.settled())[0].state is State.SUCCEEDED
            stream.allow(0)
            await app.aenqueue("a", 2)
            await asyncio.sleep(0.2)
            assert not reader.news.jobs, "it has no credits"
            stream.allow(1)
            assert (await reader.jobs(1))[0].args == (2,)

    play(app, scene)


def test_a_job_that_did_not_succeed_is_settled_in_every_way(app: App) -> None:
    async def scene(app: App) -> None:
        call = app.using(retries=1, backoff="fixed:60")
        jobs = [await call.aenqueue("a", n) for n in range(5)]
        async with reading(app) as (stream, reader):
            held = {job.args[0]: job for job in await reader.jobs(5) if job.args}
            stream.nack(held[0].id, held[0].run, error="again")
            stream.nack(held[1].id, held[1].run, how="dead", error="no such file")
            stream.nack(held[2].id, held[2].run, how="crashed", error="SIGSEGV")
            stream.nack(held[3].id, held[3].run, delay="1h")
            told = {one.id: one.state for one in await reader.settled(4)}
            states = [told[job.id] for job in jobs[:4]]
            assert states == [State.RETRYING, State.DEAD, State.READY, State.RETRYING]
            stream.nack(held[4].id, held[4].run, how="give_back")
            (alone,) = await reader.jobs(1)
            assert (alone.id, alone.suspect) == (jobs[2].id, True)
            stream.ack(alone.id, alone.run)
            (back,) = await reader.jobs(1)
            assert (back.id, back.attempt, back.suspect) == (jobs[4].id, 1, False)
            for wrong in ({"how": "maybe"}, {"how": "dead", "delay": 1}, {"delay": -1}):
                with pytest.raises(InvalidInput):
                    stream.nack(back.id, back.run, **wrong)
        assert (await jobs[1].ainfo()).reason == "rejected: no such file"
        assert (await jobs[2].ainfo()).crashes == 1

    play(app, scene)


def test_progress_is_recorded_and_a_cancel_is_pushed(app: App) -> None:
    async def scene(app: App) -> None:
        job = await app.aenqueue("a")
        async with reading(app, lease=600) as (stream, reader):
            (held,) = await reader.jobs(1)
            stream.report(held.id, held.run, Progress(2, 3, "tiles"))
            while (await job.ainfo()).progress != Progress(2, 3, "tiles"):
                await asyncio.sleep(0.02)
            await job.acancel()
            (stop,) = await reader.stops()
            assert stop == StopOrder(held.id, held.run, "cancelled")
            stream.ack(held.id, held.run, 1)
            assert (await reader.settled())[0].state is State.CANCELLED
            stream.report(held.id, held.run, Progress(3, 3))
            (stop,) = await reader.stops()
            assert stop.reason == "lost", "nothing runs there any more"

    play(app, scene)


def test_what_was_reported_just_before_the_end_counts_with_its_progress(app: App) -> None:
    async def scene(app: App) -> None:
        job = await app.aenqueue("a")
        async with reading(app) as (stream, reader):
            (held,) = await reader.jobs(1)
            stream.report(held.id, held.run, Progress(3, 3))
            stream.ack(held.id, held.run, "done")
        assert await job.aget(5) == "done"

    play(app, scene)


def test_saying_it_twice_is_fine_and_what_is_not_held_is_refused(app: App) -> None:
    async def scene(app: App) -> None:
        await app.aenqueue("a")
        await app.using(queue="other").aenqueue("a")
        async with app.external.astream(["other"], credits=1) as others:
            (theirs,) = (await anext(others)).jobs
            async with reading(app) as (stream, reader):
                (held,) = await reader.jobs(1)
                stream.ack(held.id, held.run)
                stream.ack(held.id, held.run)
                await reader.settled()
                stream.ack(held.id, held.run)
                assert (await reader.settled())[0].state is State.SUCCEEDED
                for id, run in ((theirs.id, theirs.run), ("never-was", 1), (held.id, held.run + 1)):
                    stream.ack(id, run)
                    stream.nack(id, run + 5, how="dead")
                    told = await reader.settled(2)
                    assert [type(one.error) for one in told] == [LeaseLost, LeaseLost]
                for wrong in ("", "x" * 300, "\n"):
                    with pytest.raises(InvalidInput):
                        stream.ack(wrong, 1)
            others.ack(theirs.id, theirs.run, "mine")
        assert await app.job(theirs.id).aget(5) == "mine"

    play(app, scene)


def test_an_outcome_that_cannot_be_stored_leaves_the_job_held(app: App) -> None:
    async def scene(app: App) -> None:
        job = await app.aenqueue("a")
        async with reading(app) as (stream, reader):
            (held,) = await reader.jobs(1)
            with pytest.raises(TooLarge):
                stream.ack(held.id, held.run, "x" * 2_000_000)
            assert stream.holds(held.id, held.run)
            stream.ack(held.id, held.run, "shorter")
            await reader.settled()
        assert await job.aget(5) == "shorter"

    play(app, scene)


def test_a_worker_that_leaves_gives_its_jobs_back_and_one_that_is_lost_makes_them_suspect(app: App) -> None:
    async def scene(app: App) -> None:
        for n in range(2):
            await app.aenqueue("a", n)
        async with reading(app, lease=3600) as (stream, reader):
            left = await reader.jobs(2)
        async with reading(app, lease=3600) as (stream, reader):
            held = await reader.jobs(2)
            assert not any(job.suspect for job in held)
            for job in left:
                stream.ack(job.id, job.run)
            told = await reader.settled(2)
            assert [type(one.error) for one in told] == [LeaseLost, LeaseLost], "of a stream that has ended"
            stream.ack(held[0].id, held[0].run)
            await stream.close(lost=True)
        async with reading(app) as (stream, reader):
            (job,) = await reader.jobs(1)
            assert (job.id, job.suspect) == (held[1].id, True)
            stream.ack(job.id, job.run)
            await reader.settled()
        assert await app.job(held[0].id).astatus() is State.SUCCEEDED, (
            "it was said before the worker was lost"
        )

    play(app, scene)


def test_a_worker_that_is_silent_for_a_lease_loses_its_jobs_and_has_no_say(app: App) -> None:
    async def scene(app: App) -> None:
        job = await app.aenqueue("a")
        async with reading(app, lease=0.2) as (stream, reader):
            (late,) = await reader.jobs(1)
            for _ in range(5):
                await asyncio.sleep(0.1)
                stream.beat()
            assert await job.astatus() is State.RUNNING
            with pytest.raises(SessionLost):
                await reader.jobs(1)
        async with reading(app) as (stream, reader):
            (held,) = await reader.jobs(1)
            assert (held.id, held.suspect) == (late.id, True)
            stream.ack(late.id, late.run, "late")
            assert isinstance((await reader.settled())[0].error, LeaseLost)
            stream.ack(held.id, held.run, "in time")
            await reader.settled()
        assert await job.aget(5) == "in time"

    play(app, scene)


def test_a_suspect_comes_when_nothing_else_is_held_and_nothing_comes_beside_it(app: App) -> None:
    async def scene(app: App) -> None:
        jobs = [await app.aenqueue("a", n) for n in range(3)]
        async with reading(app, credits=1) as (stream, reader):
            await reader.jobs(1)
            await stream.close(lost=True)
        async with reading(app, tasks=["b"]) as (stream, reader):
            other = await app.aenqueue("b")
            (held,) = await reader.jobs(1)
            assert held.id == other.id
        async with reading(app) as (stream, reader):
            (first,) = await reader.jobs(1)
            assert (first.id, first.suspect) == (jobs[0].id, True)
            await app.using(priority="high").aenqueue("a", "first")
            await asyncio.sleep(0.2)
            assert not reader.news.jobs
            stream.ack(first.id, first.run)
            seen: list[Any] = []
            while len(seen) < 4:
                for job in await reader.jobs(1):
                    seen.append(job.args)
                    stream.ack(job.id, job.run)
            assert sorted(map(str, seen)) == ["('first',)", "()", "(1,)", "(2,)"]

    play(app, scene)


def test_a_suspect_behind_others_waits_until_they_have_ended(app: App) -> None:
    async def scene(app: App) -> None:
        suspect = await app.aenqueue("a", "suspect")
        async with reading(app) as (stream, reader):
            await reader.jobs(1)
            await stream.close(lost=True)
        first = await app.using(priority="high").aenqueue("a", "first")
        async with reading(app) as (stream, reader):
            (held,) = await reader.jobs(1)
            assert held.id == first.id
            await asyncio.sleep(0.2)
            assert not reader.news.jobs
            assert await suspect.astatus() is State.READY, "another worker could have it"
            stream.ack(held.id, held.run)
            (held,) = await reader.jobs()
            assert (held.id, held.suspect) == (suspect.id, True)

    play(app, scene)


def test_a_job_that_kills_every_worker_is_dead_and_its_neighbour_is_not_blamed(app: App) -> None:
    async def scene(app: App) -> None:
        poison = await app.aenqueue("a", "poison")
        neighbour = await app.aenqueue("a", "neighbour")
        async with reading(app) as (stream, reader):
            await reader.jobs(2)
            await stream.close(lost=True)
        for _ in range(3):
            async with reading(app) as (stream, reader):
                (held,) = await reader.jobs(1)
                assert (held.id, held.suspect) == (poison.id, True)
                await stream.close(lost=True)
        async with reading(app) as (stream, reader):
            (held,) = await reader.jobs(1)
            assert held.id == neighbour.id
            stream.ack(held.id, held.run)
            await reader.settled()
        info = await poison.ainfo()
        assert (info.status, (info.reason or "")[:6]) == (State.DEAD, "poison")
        assert (await neighbour.ainfo()).crashes == 0

    play(app, scene)


def test_a_suspect_that_came_back_is_not_blamed(app: App) -> None:
    async def scene(app: App) -> None:
        job = await app.using(backoff="fixed:0").aenqueue("a")
        async with reading(app) as (stream, reader):
            await reader.jobs(1)
            await stream.close(lost=True)
        ways: tuple[Nack | None, ...] = ("give_back", "retry", None, None)
        for how in ways:
            async with reading(app) as (stream, reader):
                (held,) = await reader.jobs(1)
                assert held.suspect
                if how is not None:
                    stream.nack(held.id, held.run, how=how)
                    await reader.settled()
        info = await job.ainfo()
        assert (info.crashes, info.failures) == (0, 1)

    play(app, scene)


def test_what_does_not_fit_goes_back_and_comes_later_and_what_cannot_be_read_is_dead(app: App) -> None:
    async def scene(app: App) -> None:
        jobs = [await app.aenqueue("a", str(n) * 1000) for n in range(5)]
        async with reading(app, max_bytes=2500) as (stream, _):
            seen: list[HeldJob] = []
            while len(seen) < 5:
                news = await anext(stream)
                assert len(news.jobs) <= 2
                seen += news.jobs
                for job in news.jobs:
                    stream.ack(job.id, job.run)
            assert sorted(job.id for job in seen) == sorted(job.id for job in jobs)

    play(app, scene)


def test_a_stream_ends_when_all_is_settled_or_nothing_is_held(app: App) -> None:
    async def scene(app: App) -> None:
        for n in range(3):
            await app.aenqueue("a", n)
        async with reading(app, credits=2) as (stream, reader):
            first, second = await reader.jobs(2)
            stream.finish(when_idle=True)
            assert (await reader.until(lambda news: news.finishing)).finishing
            stream.ack(first.id, first.run)
            assert (await reader.settled())[0].state is State.SUCCEEDED
            stream.ack(second.id, second.run)
            await reader.end()
        assert await app.job(second.id).astatus() is State.SUCCEEDED
        async with reading(app, credits=2) as (stream, reader):
            (third,) = await reader.jobs(1)
            stream.finish()
            await reader.end()
        async with reading(app, credits=2) as (stream, reader):
            (again,) = await reader.jobs(1)
            assert (again.id, again.suspect, again.attempt) == (third.id, False, 1)

    play(app, scene)


def test_lost_answers_of_the_broker_lose_nothing(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second answer of each verb is lost after it took effect."""

    async def scene(app: App) -> None:
        jobs = [await app.aenqueue("a", n) for n in range(30)]
        broker = await broker_of(app)
        for verb in ("take", "settle", "renew", "wait"):
            monkeypatch.setattr(broker, verb, losing(getattr(broker, verb)))
        async with reading(app, credits=7, lease=600) as (stream, _):
            ended: set[str] = set()
            while len(ended) < 30:
                news = await anext(stream)
                ended |= {one.id for one in news.settled if one.error is None}
                for job in news.jobs:
                    stream.ack(job.id, job.run, job.args[0] if job.args else None)
        monkeypatch.undo()
        assert [await job.aget(5) for job in jobs] == list(range(30))
        assert {(await job.ainfo()).runs for job in jobs} == {1}, "one ran twice"

    play(app, scene)


def losing(verb: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    calls = iter(range(1_000_000))

    async def call(*args: Any, **kwargs: Any) -> Any:
        answer = await verb(*args, **kwargs)
        if next(calls) % 2:
            raise BrokerAway("the answer was lost")
        return answer

    return call


def test_a_worker_that_reports_too_much_has_to_wait() -> None:
    app = App("shop", broker="memory://")

    async def scene(app: App) -> None:
        async with reading(app) as (stream, reader):
            for n in range(1000):
                stream.ack(f"never-was-{n}", 1)
            waiting = asyncio.create_task(stream.room())
            await asyncio.sleep(0.1)
            assert not waiting.done(), "it answers without an end, and nobody reads"
            await reader.settled(1000)
            await waiting

    play(app, scene)


WRONG: dict[str, dict[str, Any]] = {
    "queues": {"queues": []},
    "queue": {"queues": ["no spaces"]},
    "credits": {"credits": 1001},
    "lease": {"lease": 0},
    "tasks": {"tasks": "abc"},
}


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_value_is_refused_by_its_name(field: str) -> None:
    app = App("shop", broker="memory://")
    given: dict[str, Any] = {"queues": ["default"], "credits": 1} | WRONG[field]
    with pytest.raises(InvalidInput, match=field.removesuffix("s")):
        app.external.astream(**given)
