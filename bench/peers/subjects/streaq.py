# mypy: ignore-errors
# (the library is not installed where types are checked)
"""streaQ.

Two worker processes, 100 tasks at a time each (plain functions too), uvloop. Results are thrown away
(`ttl=0`) and nothing is logged per task (`silent`) except for the round trip. `bulk` is `enqueue_many`. It
has no blocking enqueue.
"""

from __future__ import annotations

import asyncio
import os

from streaq import Worker

from bench.peers.inside import IO_SECONDS, Producer, begin, mark, note

worker = Worker(
    redis_url=os.environ["BENCH_URL"],
    concurrency=100,
    sync_concurrency=100,
    anyio_kwargs={"use_uvloop": True},
)


@worker.task(ttl=0, silent=True)
async def noop(n: int, payload: str) -> None:
    mark(n)


@worker.task(ttl=0, silent=True)
def plain(n: int, payload: str) -> None:
    mark(n)


@worker.task(ttl=0, silent=True)
async def io(n: int, payload: str) -> None:
    begin(n)
    await asyncio.sleep(IO_SECONDS)
    mark(n)


@worker.task(ttl=0, silent=True)
async def probe(n: int, payload: str) -> None:
    note(n, payload)


@worker.task(ttl=60, silent=True)
async def trip(n: int, payload: str) -> int:
    return n


TASKS = {"noop": noop, "plain": plain, "io": io, "probe": probe, "trip": trip}


class StreaqProducer(Producer):
    async def open(self):
        self.entered = asyncio.Event()
        self.stay = asyncio.create_task(self._stay())
        await self.entered.wait()

    async def _stay(self):
        async with worker:
            self.entered.set()
            await asyncio.Event().wait()

    async def aput(self, task, n, payload):
        return await TASKS[task].enqueue(n, payload)

    async def aput_many(self, task, numbers, payload):
        enqueue = TASKS[task].enqueue
        await worker.enqueue_many([enqueue(n, payload) for n in numbers])

    async def aresult(self, job):
        return (await job.result(30)).result


producer = StreaqProducer
