"""Tasks that are slow where, or when, the bench wants them to be."""

from __future__ import annotations

import asyncio
import os

from dray import App, Context

PACE = float(os.environ.get("BENCH_PACE", "0.05"))
"""Seconds that a job takes on this worker."""


async def work(number: int) -> None:
    await asyncio.sleep(PACE)


async def fetch(ctx: Context, seconds: float) -> None:
    """Takes so long at its first start; any other goes to a place that answers at once."""
    await asyncio.sleep(seconds if ctx.run == 1 else PACE)


def make(url: str) -> App:
    app = App("bench", broker=url)
    app.task(work)
    app.task(name="alone")(fetch)
    app.task(name="twice", speculate=True)(fetch)
    return app


app = make(os.environ.get("BENCH_BROKER", "memory://"))
