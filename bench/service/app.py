"""What is served: one task that does nothing."""

from __future__ import annotations

from dray import App

app = App("bench")


@app.task
async def noop(number: int = 0) -> int:
    return number
