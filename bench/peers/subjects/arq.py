# mypy: ignore-errors
# (the library is not installed where types are checked)
"""arq.

One worker process with 100 jobs at a time: a second one races for the same jobs and both become slower. The
pause between polls is 10 ms instead of half a second, results are thrown away (`keep_result=0`) except for
the round trip, which polls every 5 ms. uvloop. Plain functions run in a thread pool by way of
`run_in_executor`, as its documentation shows. It has no bulk call and no blocking enqueue.
"""

from __future__ import annotations

import asyncio
import os

from arq import create_pool, func
from arq.connections import RedisSettings
from arq.worker import Worker

from bench.peers.inside import IO_SECONDS, Producer, begin, mark, note, run_loop

SETTINGS = RedisSettings.from_dsn(os.environ["BENCH_URL"])


async def noop(ctx, n, payload):
    mark(n)


async def plain(ctx, n, payload):
    await asyncio.get_running_loop().run_in_executor(None, mark, n)


async def io(ctx, n, payload):
    begin(n)
    await asyncio.sleep(IO_SECONDS)
    mark(n)


async def probe(ctx, n, payload):
    note(n, payload)


async def trip(ctx, n, payload):
    return n


class ArqProducer(Producer):
    async def open(self):
        self.pool = await create_pool(SETTINGS)

    async def aput(self, task, n, payload):
        return await self.pool.enqueue_job(task, n, payload)

    async def aresult(self, job):
        return await job.result(timeout=30, poll_delay=0.005)


producer = ArqProducer


async def work() -> None:
    functions = [func(one, keep_result=0) for one in (noop, plain, io, probe)]
    worker = Worker(
        [*functions, func(trip, keep_result=60)],
        redis_settings=SETTINGS,
        max_jobs=100,
        poll_delay=0.01,
        handle_signals=False,
    )
    await worker.async_run()


if __name__ == "__main__":
    run_loop(work)
