"""dray, on the embedded broker or on Redis: whatever BENCH_URL names.

Results are stored, leases are fenced: those are the defaults, and there is nothing to switch off. `bulk` is
`enqueue_many`. The worker gets two executor processes, one per core, and 100 jobs at a time each; the
subject "dray, no settings" is the same without a single option.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

from bench.peers.inside import IO_SECONDS, Producer, begin, mark, note
from dray import App

app = App("bench", broker=os.environ.get("BENCH_URL", "memory://"))


@app.task
async def noop(n: int, payload: str) -> None:
    mark(n)


@app.task
def plain(n: int, payload: str) -> None:
    mark(n)


@app.task
async def io(n: int, payload: str) -> None:
    begin(n)
    await asyncio.sleep(IO_SECONDS)
    mark(n)


@app.task
async def probe(n: int, payload: str) -> None:
    note(n, payload)


@app.task
async def trip(n: int, payload: str) -> int:
    return n


class DrayProducer(Producer):
    def put(self, task: str, n: int, payload: str) -> Any:
        return app.tasks[task].enqueue(n, payload)

    async def aput(self, task: str, n: int, payload: str) -> Any:
        return await app.tasks[task].aenqueue(n, payload)

    def put_many(self, task: str, numbers: Sequence[int], payload: str) -> None:
        call = app.tasks[task].call
        app.enqueue_many(call(n, payload) for n in numbers)

    async def aput_many(self, task: str, numbers: Sequence[int], payload: str) -> None:
        call = app.tasks[task].call
        await app.aenqueue_many(call(n, payload) for n in numbers)

    def result(self, job: Any) -> Any:
        return job.get(timeout=30)

    async def aresult(self, job: Any) -> Any:
        return await job.aget(timeout=30)


producer = DrayProducer
