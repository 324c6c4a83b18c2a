"""Durable operations in plain tasks, which block in a thread, and in tasks behind middleware."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dray import App, Context, EventTimeout, InvalidInput, JobFailed, State

EFFECTS: list[Any] = []


@pytest.fixture(autouse=True)
def clean() -> None:
    EFFECTS.clear()


@pytest.fixture
def app() -> App:
    return App("plain", broker="memory://", result_ttl="60d", done_ttl="60d")


def charge(value: int = 1) -> int:
    EFFECTS.append("charge")
    return value


async def acharge(value: int = 1) -> int:
    EFFECTS.append("acharge")
    return value


def refund(value: int) -> None:
    EFFECTS.append("refund")


def test_a_step_runs_in_the_thread_of_its_task(app: App) -> None:
    def where() -> str:
        return threading.current_thread().name

    @app.task
    def order(ctx: Context) -> bool:
        return ctx.blocking.step(where) == threading.current_thread().name

    with app.testing() as t:
        job = order.enqueue()
        t.drain()
        assert job.get(timeout=0) is True


def test_an_async_function_may_be_a_step_of_a_plain_task(app: App) -> None:
    @app.task
    def order(ctx: Context) -> Any:
        return ctx.step(acharge, 4)

    with app.testing() as t:
        job = order.enqueue()
        t.drain()
        assert job.get(timeout=0) == 4


def test_a_step_is_tried_again_without_a_thread(app: App) -> None:
    def flaky() -> int:
        EFFECTS.append(threading.active_count())
        if len(EFFECTS) < 3:
            raise OSError("down")
        return 7

    @app.task(retries=0)
    def order(ctx: Context) -> int:
        return ctx.blocking.step(flaky, retries=5, backoff="fixed:10s")

    with app.testing() as t:
        job = order.enqueue()
        t.drain()
        assert job.status() is State.RETRYING
        t.advance("20s")
        assert job.get(timeout=0) == 7


def test_events_time_out_and_undos_run_in_the_thread(app: App) -> None:
    @app.task
    def order(ctx: Context) -> None:
        ctx.blocking.step(charge, undo=refund)
        try:
            ctx.blocking.event("paid", timeout="1d")
        except EventTimeout:
            EFFECTS.append("late")
            raise

    with app.testing() as t:
        job = order.enqueue()
        t.drain()
        t.advance("1d")
        with pytest.raises(JobFailed, match="did not arrive in time"):
            job.get(timeout=0)
        assert EFFECTS == ["charge", "late", "refund"]


def test_changed_code_parks_at_once(app: App) -> None:
    @app.task(name="order")
    def before(ctx: Context) -> None:
        ctx.blocking.step(charge)
        ctx.blocking.sleep("1d")

    def after(ctx: Context) -> None:
        ctx.blocking.step(charge, name="pay")
        ctx.blocking.sleep("1d")

    with app.testing() as t:
        job = app.enqueue("order")
        t.drain()
        del app.tasks["order"]
        app.task(name="order")(after)
        t.advance("1d")
        assert job.info().parked
        assert job.resume()
        t.drain()
        assert job.status() is State.SUCCEEDED
        assert EFFECTS == ["charge", "charge"]


def test_a_cancel_ends_a_wait_in_the_thread(app: App) -> None:
    started = threading.Event()

    def slow() -> None:
        started.set()
        time.sleep(0.3)

    @app.task
    def order(ctx: Context) -> None:
        ctx.blocking.step(slow, undo=undo_slow)
        ctx.blocking.sleep("1d")

    with app.testing() as t, t.worker():
        job = order.enqueue()
        assert started.wait(20)
        job.cancel("enough")
        while not job.status().finished:
            time.sleep(0.02)
        assert job.status() is State.CANCELLED
        assert EFFECTS == ["undo slow"]


def undo_slow(value: None) -> None:
    EFFECTS.append("undo slow")


def test_middleware_sees_each_run_and_lets_the_suspension_pass(app: App) -> None:
    @app.middleware
    async def around(ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        EFFECTS.append(f"run {ctx.run}")
        return await call_next()

    @app.task
    def plain(ctx: Context) -> int:
        ctx.blocking.sleep("1d")
        return ctx.blocking.step(charge, 5)

    @app.task
    async def order(ctx: Context) -> int:
        await ctx.sleep("1d")
        return await ctx.step(acharge, 6)

    with app.testing() as t:
        jobs = [plain.enqueue(), order.enqueue()]
        t.advance("1d")
        assert [job.get(timeout=0) for job in jobs] == [5, 6]
        assert EFFECTS.count("run 1") == EFFECTS.count("run 2") == 2


def test_middleware_of_a_plain_task_must_not_block_the_loop(app: App) -> None:
    @app.middleware
    async def around(ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        ctx.blocking.step(charge)
        return await call_next()

    @app.task(retries=0)
    def plain() -> int:
        return 1

    with app.testing() as t:
        job = plain.enqueue()
        t.drain()
        with pytest.raises(JobFailed, match="would block the worker's event loop"):
            job.get(timeout=0)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"key": ""}, "key"),
        ({"name": "no name"}, "name"),
        ({"retries": -1}, "retries"),
        ({"backoff": "sometimes"}, "backoff"),
        ({"undo": 5}, "undo"),
    ],
)
def test_wrong_options_are_refused_at_the_call(app: App, options: dict[str, Any], problem: str) -> None:
    @app.task
    def order(ctx: Context) -> None:
        try:
            ctx.blocking.step(charge, **options)
        except InvalidInput as error:
            EFFECTS.append(error.field)

    with app.testing() as t:
        order.enqueue()
        t.drain()
        assert [problem] == EFFECTS
