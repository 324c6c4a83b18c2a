# mypy: ignore-errors
# (the library is not installed where types are checked)
"""taskiq on taskiq-redis.

Redis streams, its only broker on Redis that acknowledges; 100 messages per read. Two worker processes, 100
async tasks each and as many fetched ahead, arguments not parsed with pydantic (`--no-parse`), orjson,
uvloop. Results are stored for the round trip only, and waited for every 5 ms instead of 200. It has no bulk
call and no blocking enqueue.
"""

from __future__ import annotations

import asyncio
import os

from taskiq.serializers import ORJSONSerializer
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from bench.peers.inside import IO_SECONDS, Producer, begin, mark, note

URL = os.environ["BENCH_URL"]


class TripResults(RedisAsyncResultBackend):
    """Results cannot be switched off per task: those of no-ops are dropped here, in taskiq's favour."""

    async def set_result(self, task_id, result):
        if result.return_value is not None:
            await super().set_result(task_id, result)


broker = (
    RedisStreamBroker(URL, consumer_id="0", xread_count=100)
    .with_result_backend(TripResults(URL, result_ex_time=60))
    .with_serializer(ORJSONSerializer())
)


@broker.task(task_name="noop")
async def noop(n, payload):
    mark(n)


@broker.task(task_name="plain")
def plain(n, payload):
    mark(n)


@broker.task(task_name="io")
async def io(n, payload):
    begin(n)
    await asyncio.sleep(IO_SECONDS)
    mark(n)


@broker.task(task_name="probe")
async def probe(n, payload):
    note(n, payload)


@broker.task(task_name="trip")
async def trip(n, payload):
    return n


TASKS = {"noop": noop, "plain": plain, "io": io, "probe": probe, "trip": trip}


class TaskiqProducer(Producer):
    async def open(self):
        await broker.startup()

    async def aput(self, task, n, payload):
        return await TASKS[task].kiq(n, payload)

    async def aresult(self, job):
        return (await job.wait_result(check_interval=0.005, timeout=30)).return_value


producer = TaskiqProducer
