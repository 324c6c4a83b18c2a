"""Durable steps in child processes, which reach the broker through their executor."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from dray import App, Context, JobFailed, State

app_of_children = App("durable-children", broker="memory://", result_ttl="60d", done_ttl="60d", retries=0)


def process() -> int:
    return os.getpid()


def fail(value: str) -> str:
    raise LookupError(value)


def note(value: str) -> None:
    path = os.environ["DRAY_TEST_NOTES"]
    with open(path, "a") as file:  # noqa: PTH123
        file.write(value + "\n")


def made(value: str) -> str:
    note(f"made {value}")
    return value


def unmake(value: str) -> None:
    note(f"unmade {value}")


@app_of_children.task
def twice(value: int) -> int:
    return 2 * value


@app_of_children.task(isolate="process")
async def order(ctx: Context) -> list[Any]:
    pid = await ctx.step(process)
    await ctx.sleep("3d")
    parts = await asyncio.gather(*(ctx.step(made, str(n), key=n) for n in range(3)))
    event = await ctx.event("go", timeout="1d")
    return [pid, parts, event, await ctx.call(twice.call(4))]


@app_of_children.task(isolate="process")
def plain_order(ctx: Context) -> list[Any]:
    steps = ctx.blocking
    pid = steps.step(process)
    steps.sleep("3d")
    event = steps.event("go", timeout="1d")
    return [pid, event, steps.call(twice.call(4))]


@app_of_children.task(isolate="process")
async def doomed(ctx: Context) -> None:
    await ctx.step(made, "x", undo=unmake)
    await ctx.step(fail, "no")


@app_of_children.task(isolate="process")
async def too_large(ctx: Context) -> None:
    await ctx.step(bytes, 300_000)


@pytest.mark.parametrize("task", [order, plain_order])
def test_an_isolated_job_sleeps_waits_and_calls(task: Any, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("DRAY_TEST_NOTES", str(tmp_path / "notes"))
    with app_of_children.testing(isolate=True) as t:
        job = task.enqueue()
        t.drain()
        assert job.status() is State.SCHEDULED
        t.advance("73h")  # the clock of a child runs on while that of the test stands
        assert job.status() is State.WAITING
        job.send("go", {"by": "ann"})
        t.drain()
        result = job.get(timeout=0)
        assert result[0] != os.getpid()
        assert result[-2:] == [{"by": "ann"}, 8]


def test_an_isolated_job_is_undone(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("DRAY_TEST_NOTES", str(tmp_path / "notes"))
    with app_of_children.testing(isolate=True) as t:
        job = doomed.enqueue()
        t.drain()
        with pytest.raises(JobFailed, match="LookupError: no"):
            job.get(timeout=0)
    assert (tmp_path / "notes").read_text().split("\n") == ["made x", "unmade x", ""]


def test_a_limit_is_named_in_an_isolated_job_too() -> None:
    with app_of_children.testing(isolate=True) as t:
        job = too_large.enqueue()
        t.drain()
        with pytest.raises(JobFailed, match="step 'bytes'"):
            job.get(timeout=0)
