"""Tasks that do nothing, so that what is measured is dray."""

from __future__ import annotations

import os

from dray import App

app = App("bench", namespace="dray", broker=os.environ.get("BENCH_BROKER", "memory://"))


@app.task
async def noop(payload: str) -> None: ...


@app.task
def plain_noop(payload: str) -> None: ...
