"""Code that changes while durable jobs are under way: they go on, or are parked until a person decides."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from dray import App, Context, InvalidInput, JobFailed, State
from dray.handle import JobHandle
from dray.testing.harness import Harness

EFFECTS: list[str] = []


@pytest.fixture(autouse=True)
def clean() -> None:
    EFFECTS.clear()


@pytest.fixture
def app() -> App:
    return App("changes", broker="memory://", result_ttl="60d", done_ttl="60d")


def a(value: int = 1) -> int:
    EFFECTS.append("a")
    return value


def b(value: int = 1) -> int:
    EFFECTS.append("b")
    return value


def c() -> int:
    EFFECTS.append("c")
    return 3


def new() -> int:
    EFFECTS.append("new")
    return 9


Order = Callable[[Context], Coroutine[Any, Any, Any]]


def deploy(app: App, function: Order) -> None:
    app.tasks.pop("order", None)
    app.task(name="order")(function)


async def before(ctx: Context) -> int:
    """The code that the jobs of these tests were started with; they sleep at its end, before `c`."""
    await ctx.step(a)
    await ctx.step(b)
    await ctx.sleep("1d")
    return await ctx.step(c)


def changed_while_asleep(t: Harness, after: Order) -> JobHandle[Any]:
    deploy(t.app, before)
    job = t.app.enqueue("order")
    t.drain()
    assert EFFECTS == ["a", "b"]
    deploy(t.app, after)
    t.advance("1d")
    return job


async def added_before(ctx: Context) -> int:
    await ctx.step(new)
    return await before(ctx)


async def removed(ctx: Context) -> int:
    await ctx.step(b)
    await ctx.sleep("1d")
    return await ctx.step(c)


async def renamed(ctx: Context) -> int:
    await ctx.step(a, name="first")
    await ctx.step(b)
    await ctx.sleep("1d")
    return await ctx.step(c)


async def other_arguments(ctx: Context) -> int:
    await ctx.step(a, 2)
    await ctx.step(b)
    await ctx.sleep("1d")
    return await ctx.step(c)


async def other_order(ctx: Context) -> int:
    await ctx.step(b)
    await ctx.step(a)
    await ctx.sleep("1d")
    return await ctx.step(c)


async def added_after(ctx: Context) -> int:
    await ctx.step(a)
    await ctx.step(b)
    await ctx.sleep("1d")
    await ctx.step(new)
    return await ctx.step(c)


@pytest.mark.parametrize(
    ("after", "difference", "effects"),
    [
        (added_before, "the new step 'new' comes where the remembered 'a' should", ["new", "c"]),
        (removed, "the new step 'c' comes where the remembered 'a' should", ["c"]),
        (renamed, "the new step 'first' comes where the remembered 'a' should", ["a", "c"]),
        (other_arguments, "the arguments of step 'a' were (), and are (2) now", ["c"]),
    ],
)
def test_a_change_that_matters_parks_the_job_until_a_person_continues(
    app: App, after: Order, difference: str, effects: list[str]
) -> None:
    with app.testing() as t:
        job = changed_while_asleep(t, after)
        assert job.status() is State.WAITING
        assert job.info().reason == f"changed: {difference}"
        assert EFFECTS == ["a", "b"]
        t.advance("10d")
        assert job.status() is State.WAITING
        assert job.resume()
        assert not job.resume()
        t.advance("1d")
        assert job.get(timeout=0) == 3
        assert EFFECTS[2:] == effects


@pytest.mark.parametrize(("after", "effects"), [(other_order, ["c"]), (added_after, ["new", "c"])])
def test_a_change_that_does_not_matter_goes_on(app: App, after: Order, effects: list[str]) -> None:
    with app.testing() as t:
        job = changed_while_asleep(t, after)
        assert job.get(timeout=0) == 3
        assert EFFECTS[2:] == effects


def test_steps_left_out_at_the_end_do_not_park(app: App) -> None:
    async def shorter(ctx: Context) -> str:
        await ctx.step(a)
        return "done"

    with app.testing() as t:
        assert changed_while_asleep(t, shorter).get(timeout=0) == "done"


def test_a_parked_job_can_be_cancelled(app: App) -> None:
    with app.testing() as t:
        job = changed_while_asleep(t, added_before)
        assert job.cancel()
        t.drain()
        assert job.status() is State.CANCELLED


def test_code_taken_back_before_the_wake_up_goes_on(app: App) -> None:
    with app.testing() as t:
        deploy(app, before)
        job = app.enqueue("order")
        t.drain()
        deploy(app, added_before)
        deploy(app, before)
        t.advance("1d")
        assert job.get(timeout=0) == 3


def test_the_same_difference_found_after_another_parks_again(app: App) -> None:
    async def twice(ctx: Context) -> int:
        await ctx.step(a, 2)
        await ctx.sleep("1d")
        await ctx.step(b, 5)
        return await ctx.step(c)

    async def later(ctx: Context) -> int:
        await ctx.step(a, 2)
        await ctx.sleep("1d")
        await ctx.step(b, 5)
        await ctx.step(new)
        await ctx.sleep("1d")
        return await ctx.step(c)

    async def latest(ctx: Context) -> int:
        await ctx.step(a, 2)
        await ctx.sleep("1d")
        await ctx.step(b, 5)
        await ctx.step(new, name="newer")
        return await ctx.step(c)

    with app.testing() as t:
        job = changed_while_asleep(t, later)
        assert job.resume()
        t.drain()
        assert job.status() is State.SCHEDULED
        deploy(app, latest)
        t.advance("1d")
        assert "'newer'" in (job.info().reason or "")


def test_a_marked_change_applies_to_new_jobs_only(app: App) -> None:
    async def marked(ctx: Context) -> int:
        if ctx.changed("begin-with-new"):
            await ctx.step(new)
        return await before(ctx)

    with app.testing() as t:
        job = changed_while_asleep(t, marked)
        assert job.get(timeout=0) == 3
        assert EFFECTS == ["a", "b", "c"]
        EFFECTS.clear()
        job = app.enqueue("order")
        t.drain()
        t.advance("1d")
        assert job.get(timeout=0) == 3
        assert EFFECTS == ["new", "a", "b", "c"]


def test_a_rerun_from_a_step_keeps_what_came_before(app: App) -> None:
    with app.testing() as t:
        deploy(app, before)
        job = app.enqueue("order")
        t.drain()
        t.advance("1d")
        with pytest.raises(InvalidInput, match="one of"):
            job.rerun(step="gone")
        for step, effects in (("b", ["b", "c"]), ("c", ["c"]), (None, ["a", "b", "c"])):
            EFFECTS.clear()
            again = job.rerun(step=step)
            assert again.id != job.id
            t.drain()
            t.advance("1d")
            assert again.get(timeout=0) == 3
            assert effects == EFFECTS
            assert again.info().headers["dray-rerun"] == job.id


def test_a_rerun_from_a_step_may_have_other_arguments(app: App) -> None:
    @app.task
    async def pay(ctx: Context, amount: int) -> list[int]:
        return [await ctx.step(a, amount), await ctx.step(b, amount)]

    with app.testing() as t:
        job = pay.enqueue(1)
        t.drain()
        again = job.rerun(step="b", args=[5])
        t.drain()
        assert again.get(timeout=0) == [1, 5]


def test_a_job_whose_old_log_is_gone_says_so(app: App) -> None:
    with app.testing() as t:
        deploy(app, before)
        job = app.enqueue("order")
        t.drain()
        t.advance("1d")
        again = job.rerun(step="c")
        app.jobs.delete([job])
        t.drain()
        with pytest.raises(JobFailed, match="one of none"):
            again.get(timeout=0)


def test_the_steps_of_a_job_can_be_read(app: App) -> None:
    with app.testing() as t:
        deploy(app, before)
        job = app.enqueue("order")
        t.drain()
        assert [(step.id, step.status) for step in job.steps()] == [
            ("a", "done"),
            ("b", "done"),
            ("sleep()", "sleeping"),
        ]
