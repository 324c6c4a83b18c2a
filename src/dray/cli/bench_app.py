"""The app that `dray bench` measures with: one task that does nothing."""

from __future__ import annotations

from dray.app import App

app = App("dray-bench")


@app.task
async def nothing() -> None:
    """Cost nothing, so that everything measured is dray's."""
