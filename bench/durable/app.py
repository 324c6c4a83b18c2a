"""A plain task, one of ten steps, and one that sleeps."""

from __future__ import annotations

import os

from dray import App, Context

STEPS = 10

app = App("durable", namespace="dray", broker=os.environ.get("BENCH_BROKER", "memory://"))


@app.task(result_ttl=0)
async def plain(n: int) -> None:
    """Nothing: what is measured is taking and settling it."""


async def nothing(n: int) -> int:
    return n


@app.task(result_ttl=0)
async def steps(ctx: Context, n: int) -> None:
    for step in range(STEPS):
        await ctx.step(nothing, step)


@app.task(result_ttl=0)
async def nap(ctx: Context, n: int) -> None:
    await ctx.sleep("1h")
