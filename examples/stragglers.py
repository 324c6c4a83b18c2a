"""One download in fifty hangs on a bad line. Marked `speculate=True`, it is begun again on another worker.

python examples/stragglers.py
"""

from __future__ import annotations

import asyncio
import time

from beside import worker_for

import dray
from dray import App, Context

app = App("stragglers", lease="3s")
HANGS = 60.0
"""Seconds."""


@app.task(speculate=True)  # to fetch a page twice does no harm
async def fetch(ctx: Context, page: int) -> str:
    bad_line = page % 50 == 49 and ctx.run == 1
    await asyncio.sleep(HANGS if bad_line else 0.02)
    return f"page {page} by run {ctx.run}"


def main() -> None:
    with worker_for(__file__), worker_for(__file__):
        began = time.monotonic()
        pages = dray.gather(app.enqueue_many([fetch.call(page) for page in range(100)]), timeout=50)
        print("in time:", time.monotonic() - began < HANGS)
        print(pages[0], "-", pages[49])
        while (told := app.stats().tasks["fetch"]).won < 2:
            time.sleep(0.1)
        print(f"second runs: {told.launched} launched, {told.won} won, {told.wasted} wasted")
        print("half of all runs took less than a second:", told.duration.p50 < 1)


if __name__ == "__main__":
    main()
