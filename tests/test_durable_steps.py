"""Durable steps, seen from a task: every rule of docs/durable.md, in `app.testing()`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dray import (
    App,
    Context,
    EventTimeout,
    JobFailed,
    JobFinished,
    JobNotFound,
    State,
)

EFFECTS: list[Any] = []


@pytest.fixture(autouse=True)
def effects() -> list[Any]:
    EFFECTS.clear()
    return EFFECTS


@pytest.fixture
def app() -> App:
    return App("durable", broker="memory://", result_ttl="60d", done_ttl="60d")


def add(a: int, b: int = 1) -> int:
    EFFECTS.append(("add", a, b))
    return a + b


async def aadd(a: int, b: int = 1) -> int:
    EFFECTS.append(("aadd", a, b))
    return a + b


def refund(value: int) -> None:
    EFFECTS.append(("refund", value))


def test_steps_run_once_and_a_sleep_ends_the_run(app: App) -> None:
    @app.task
    async def order(ctx: Context) -> int:
        EFFECTS.append("start")
        first = await ctx.step(add, 1, 2)
        await ctx.sleep("3d")
        return await ctx.step(aadd, first)

    with app.testing() as t:
        job = order.enqueue()
        t.drain()
        assert job.status() is State.SCHEDULED
        assert sorted(EFFECTS, key=str) == [("add", 1, 2), "start"]
        t.advance("2d")
        assert EFFECTS.count("start") == 1
        t.advance("1d")
        assert job.get(timeout=0) == 4
        assert EFFECTS == ["start", ("add", 1, 2), "start", ("aadd", 3, 1)]
        assert job.info().attempt == 1


def test_the_same_in_a_plain_task(app: App) -> None:
    @app.task
    def order(ctx: Context) -> int:
        EFFECTS.append("start")
        first = ctx.blocking.step(add, 1, 2)
        ctx.blocking.sleep("3d")
        return ctx.blocking.step(add, first)

    with app.testing() as t:
        job = order.enqueue()
        t.drain()
        assert job.status() is State.SCHEDULED
        t.advance("3d")
        assert job.get(timeout=0) == 4
        assert EFFECTS == ["start", ("add", 1, 2), "start", ("add", 3, 1)]


@pytest.mark.parametrize("early", [True, False])
def test_an_event_is_received_whether_it_comes_before_or_after_the_wait(app: App, early: bool) -> None:
    @app.task
    async def approval(ctx: Context) -> Any:
        if early:
            await ctx.sleep("1h")
        return await ctx.event("approved", timeout="7d")

    with app.testing() as t:
        job = approval.enqueue()
        t.drain()
        assert job.send("approved", {"by": "ann"}, id="m1")
        assert not job.send("approved", {"by": "ann"}, id="m1")
        t.advance("1h")
        assert job.get(timeout=0) == {"by": "ann"}
        with pytest.raises(JobFinished):
            job.send("approved")
        with pytest.raises(JobNotFound):
            app.job("default:" + "0" * 32).send("approved")


def test_a_time_out_is_remembered(app: App) -> None:
    @app.task
    async def approval(ctx: Context) -> str:
        try:
            await ctx.event("approved", timeout="7d")
        except EventTimeout:
            EFFECTS.append("late")
        await ctx.sleep("1d")
        return "late"

    with app.testing() as t:
        job = approval.enqueue()
        t.drain()
        assert job.status() is State.WAITING
        t.advance("7d")
        job.send("approved")
        t.advance("1d")
        assert job.get(timeout=0) == "late"


def test_a_child_is_called_once_and_awaited_without_a_slot(app: App) -> None:
    @app.task
    def ship(item: int) -> int:
        EFFECTS.append(("ship", item))
        return item * 2

    @app.task
    async def order(ctx: Context) -> int:
        shipped = await ctx.call(ship.call(4))
        await ctx.sleep("1d")
        return shipped

    with app.testing() as t:
        job = order.enqueue()
        t.drain()
        t.advance("1d")
        assert job.get(timeout=0) == 8
        assert EFFECTS == [("ship", 4)]


def test_gather_of_keyed_steps(app: App) -> None:
    @app.task
    async def render(ctx: Context) -> list[int]:
        parts = await asyncio.gather(*(ctx.step(aadd, page, key=page) for page in range(5)))
        await ctx.sleep("1h")
        return parts

    with app.testing() as t:
        job = render.enqueue()
        t.drain()
        t.advance("1h")
        assert job.get(timeout=0) == [1, 2, 3, 4, 5]
        assert len(EFFECTS) == 5


def test_the_same_name_twice_at_once_without_key_is_an_error(app: App) -> None:
    @app.task
    async def render(ctx: Context) -> None:
        await asyncio.gather(ctx.step(aadd, 1), ctx.step(aadd, 2))

    with app.testing() as t:
        job = render.enqueue()
        t.drain()
        with pytest.raises(JobFailed, match="give each a key="):
            job.get(timeout=0)
        assert job.info().attempt == 1


def test_a_step_is_tried_again_without_a_slot_and_without_an_attempt(app: App) -> None:
    def flaky() -> int:
        EFFECTS.append("try")
        if len(EFFECTS) < 3:
            raise OSError("down")
        return 7

    @app.task(retries=0)
    async def order(ctx: Context) -> int:
        return await ctx.step(flaky, retries=5, backoff="fixed:10s")

    with app.testing() as t:
        job = order.enqueue()
        t.drain()
        assert job.status() is State.RETRYING
        t.advance("10s")
        assert EFFECTS == ["try", "try"]
        t.advance("10s")
        assert job.get(timeout=0) == 7
        assert job.info().attempt == 1


class Declined(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"declined: {code}")
        self.code = code


def decline() -> None:
    EFFECTS.append("decline")
    raise Declined(5)


def test_a_final_error_is_remembered_as_itself_and_ends_the_job_if_it_escapes(app: App) -> None:
    @app.task(retries=3)
    async def order(ctx: Context) -> None:
        try:
            await ctx.step(decline, retries=0)
        except Declined as error:
            EFFECTS.append(error.code)
            await ctx.sleep("1d")
            raise

    with app.testing() as t:
        job = order.enqueue()
        t.drain()
        t.advance("1d")
        with pytest.raises(JobFailed, match="declined: 5"):
            job.get(timeout=0)
        assert EFFECTS == ["decline", 5, 5]
        job.retry()
        t.drain()
        assert EFFECTS == ["decline", 5, 5, "decline", 5]


@pytest.mark.parametrize("end", ["fail", "cancel", "deadline"])
def test_undos_run_in_reverse_order_before_the_end(app: App, end: str) -> None:
    @app.task
    def unpack(value: int) -> None:
        EFFECTS.append(("unpack", value))

    @app.task(retries=0)
    async def order(ctx: Context) -> None:
        await ctx.step(add, 1, undo=refund)
        await ctx.step(aadd, 2, undo=unpack)
        if end == "fail":
            raise ValueError("no")
        await ctx.sleep("30d")

    with app.testing() as t:
        options: Any = {"deadline": "10d"} if end == "deadline" else {}
        job = order.using(**options).enqueue()
        t.drain()
        if end == "cancel":
            job.cancel("stop")
            t.drain()
        t.advance("11d")
        assert job.status() is (State.CANCELLED if end == "cancel" else State.DEAD)
        assert EFFECTS[2:] == [("unpack", 3), ("refund", 2)]
        if end == "fail":
            job.retry()
            t.drain()
            assert EFFECTS[4:6] == [("add", 1, 1), ("aadd", 2, 1)]


def test_a_lambda_is_no_undo(app: App) -> None:
    @app.task
    async def order(ctx: Context) -> None:
        await ctx.step(add, 1, undo=lambda value: None)

    with app.testing() as t:
        job = order.enqueue()
        t.drain()
        with pytest.raises(JobFailed, match="cannot find a lambda"):
            job.get(timeout=0)
        assert not EFFECTS


def test_a_value_of_ten_megabytes_is_a_clear_error(app: App) -> None:
    def big() -> bytes:
        EFFECTS.append("big")
        return bytes(10_000_000)

    @app.task
    async def order(ctx: Context) -> None:
        await ctx.step(big)

    with app.testing() as t:
        job = order.enqueue()
        t.drain()
        with pytest.raises(JobFailed, match=r"step 'big'.*cannot be remembered"):
            job.get(timeout=0)
        assert EFFECTS == ["big"]


def test_helpers_are_remembered(app: App) -> None:
    @app.task
    async def order(ctx: Context) -> None:
        EFFECTS.append((ctx.now(), ctx.random(), ctx.uuid(), ctx.uuid()))
        await ctx.sleep("1d")
        EFFECTS.append((ctx.now(), ctx.random()))

    with app.testing() as t:
        order.enqueue()
        t.drain()
        t.advance("1d")
        first, second, later = EFFECTS
        assert first == second
        assert first[2] != first[3]
        assert (later[0] - first[0]).days == 1


def test_the_first_to_end_is_remembered(app: App) -> None:
    @app.task
    async def order(ctx: Context) -> int:
        won, _ = await ctx.first(ctx.event("paid"), ctx.sleep("3d"))
        await ctx.sleep("1d")
        return won

    @app.task
    def plain(ctx: Context) -> int:
        won, _ = ctx.blocking.first(lambda: ctx.event("paid"), lambda: ctx.sleep("3d"))
        ctx.blocking.sleep("1d")
        return won

    with app.testing() as t:
        jobs = [order.enqueue(), order.enqueue(), plain.enqueue(), plain.enqueue()]
        t.drain()
        jobs[0].send("paid")
        jobs[2].send("paid")
        t.advance("4d")
        assert [job.get(timeout=0) for job in jobs] == [0, 1, 0, 1]


def test_a_task_that_catches_the_suspension_is_dead_with_a_clear_error(app: App) -> None:
    @app.task
    async def order(ctx: Context) -> str:
        try:
            await ctx.sleep("1d")
        except BaseException:
            return "swallowed"
        return "slept"

    @app.task
    def plain(ctx: Context) -> str:
        try:
            ctx.blocking.sleep("1d")
        except BaseException:
            return "swallowed"
        return "slept"

    with app.testing() as t:
        for task in (order, plain):
            job = task.enqueue()
            t.drain()
            with pytest.raises(JobFailed, match="let it pass"):
                job.get(timeout=0)


def test_steps_in_a_speculated_task_are_refused(app: App) -> None:
    @app.task(speculate=True)
    async def order(ctx: Context) -> int:
        return await ctx.step(add, 1)

    with app.testing() as t:
        job = order.enqueue()
        t.drain()
        with pytest.raises(JobFailed, match="speculate"):
            job.get(timeout=0)


def test_a_cancelled_sleeper_ends_and_a_retried_one_goes_on_sleeping(app: App) -> None:
    @app.task
    async def order(ctx: Context) -> None:
        EFFECTS.append("start")
        await ctx.sleep("3d")

    with app.testing() as t:
        job, other = order.enqueue(), order.enqueue()
        t.drain()
        assert job.cancel()
        t.drain()
        assert job.status() is State.CANCELLED
        assert other.retry()
        t.drain()
        assert other.status() is State.SCHEDULED
        assert EFFECTS == ["start"] * 3
        t.advance("3d")
        assert other.status() is State.SUCCEEDED
