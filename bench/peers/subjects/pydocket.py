# mypy: ignore-errors
# (the library is not installed where types are checked)
"""docket (pydocket).

Two worker processes, 50 tasks at a time each (its pool has 100 connections; with 100 tasks it runs out of
them and leaves jobs lying), uvloop. It looks for work every 10 ms instead of 250
(`minimum_check_interval`): ten times the rate. Records of finished tasks are not kept (`execution_ttl=0`)
except in the session that measures round trips. `bulk` is `add_many`. It has no blocking enqueue and no
plain functions.
"""

from __future__ import annotations

import asyncio
import logging
import os
from datetime import timedelta

from docket import Docket, Worker

from bench.peers.inside import IO_SECONDS, Producer, begin, mark, note, run_loop


async def noop(n: int, payload: str) -> None:
    mark(n)


async def io(n: int, payload: str) -> None:
    begin(n)
    await asyncio.sleep(IO_SECONDS)
    mark(n)


async def probe(n: int, payload: str) -> None:
    note(n, payload)


async def trip(n: int, payload: str) -> int:
    return n


TASKS = {"noop": noop, "io": io, "probe": probe, "trip": trip}


def connect():
    kept = timedelta(seconds=60 if os.environ.get("BENCH_RESULTS") else 0)
    docket = Docket("bench", os.environ["BENCH_URL"], execution_ttl=kept)
    for one in TASKS.values():
        docket.register(one)
    return docket


class DocketProducer(Producer):
    async def open(self):
        self.docket = connect()
        await self.docket.__aenter__()

    async def aput(self, task, n, payload):
        return await self.docket.add(TASKS[task])(n, payload)

    async def aput_many(self, task, numbers, payload):
        call = self.docket.call  # every call of it makes a key
        await self.docket.add_many(call(TASKS[task])(n, payload) for n in numbers)

    async def aresult(self, job):
        return await job.get_result(timeout=timedelta(seconds=30))


producer = DocketProducer


async def work() -> None:
    logging.disable(logging.WARNING)
    often = timedelta(milliseconds=10)
    async with connect() as docket, Worker(docket, concurrency=50, minimum_check_interval=often) as worker:
        await worker.run_forever()


if __name__ == "__main__":
    run_loop(work)
