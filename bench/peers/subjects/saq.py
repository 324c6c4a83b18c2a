# mypy: ignore-errors
# (the library is not installed where types are checked)
"""SAQ.

Two worker processes, 100 jobs at a time each, orjson, uvloop, 100 operations at a time instead of 20 on the
enqueueing side. Job records of no-ops are deleted at the end (`ttl=-1`) and have no time limit (a timer per
job); the round trip waits with `refresh(until_complete)`, which listens. It has no bulk call and no
blocking enqueue.
"""

from __future__ import annotations

import asyncio
import os

import orjson
from saq import Job, Queue, Worker

from bench.peers.inside import IO_SECONDS, Producer, begin, mark, note, run_loop


def connect():
    return Queue.from_url(
        os.environ["BENCH_URL"], dump=orjson.dumps, load=orjson.loads, max_concurrent_ops=100
    )


async def noop(ctx, *, n, payload):
    mark(n)


def plain(ctx, *, n, payload):
    mark(n)


async def io(ctx, *, n, payload):
    begin(n)
    await asyncio.sleep(IO_SECONDS)
    mark(n)


async def probe(ctx, *, n, payload):
    note(n, payload)


async def trip(ctx, *, n, payload):
    return n


class SaqProducer(Producer):
    async def open(self):
        self.queue = connect()
        await self.queue.connect()

    async def aput(self, task, n, payload):
        job = Job(task, kwargs={"n": n, "payload": payload}, timeout=0, ttl=60 if task == "trip" else -1)
        return await self.queue.enqueue(job)

    async def aresult(self, job):
        await job.refresh(30)
        return job.result


producer = SaqProducer


async def work() -> None:
    queue = connect()
    await queue.connect()
    await Worker(queue, [noop, plain, io, probe, trip], concurrency=100).start()


if __name__ == "__main__":
    run_loop(work)
