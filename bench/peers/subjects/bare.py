"""The bare loop of dray's design on Redis: what it could reach if a worker did nothing else.

Lanes by task and priority, strict order, a fencing token checked at every completion, results with a TTL,
one round trip that settles what is finished and takes what is next, a bell for idle workers. It leaves out
retries, delays, sweeping, cancelling, limits, events, errors, threads and reconnecting: nobody should run
it.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import hiredis
import msgspec

from bench.peers.inside import IO_SECONDS, Producer, begin, mark, note, run_loop

QUEUE = "bare:{bench}:"
RESULT_TTL = "3600000"
SLOTS = 100

PUT = """
-- KEYS[1]: the queue's prefix. ARGV: id, lane, priority, body of each job.
local at, jobs = KEYS[1], #ARGV / 4
local number = redis.call('INCRBY', at .. 'number', jobs) - jobs
local bodies, places, heads = {}, {}, {}
for job = 0, jobs - 1 do
  local id, lane, priority, body = ARGV[job*4+1], ARGV[job*4+2], ARGV[job*4+3], ARGV[job*4+4]
  bodies[#bodies+1], bodies[#bodies+2] = id, body
  local place = places[lane]
  if not place then place = {}; places[lane] = place; heads[lane] = priority * 2^50 + number + job end
  place[#place+1], place[#place+2] = number + job, id
end
redis.call('HSET', at .. 'bodies', unpack(bodies))
for lane, place in pairs(places) do
  redis.call('ZADD', at .. 'lane:' .. lane, unpack(place))
  redis.call('ZADD', at .. 'lanes', 'NX', heads[lane], lane)
end
if redis.call('EXISTS', at .. 'bell') == 0 then redis.call('RPUSH', at .. 'bell', '') end
return jobs
"""

TURN = """
-- KEYS[1]: the queue's prefix. ARGV: token, jobs wanted, TTL of results, then id and result of each job that
-- is finished. What another token holds is left alone.
local at, token, want, ttl = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3]
if #ARGV > 3 then
  local ids, mine = {}, {}
  for i = 4, #ARGV, 2 do ids[#ids+1] = ARGV[i] end
  for i, holder in ipairs(redis.call('HMGET', at .. 'holders', unpack(ids))) do
    if holder == token then
      mine[#mine+1] = ids[i]
      redis.call('SET', at .. 'result:' .. ids[i], ARGV[i * 2 + 3], 'PX', ttl)
    end
  end
  if #mine > 0 then
    redis.call('HDEL', at .. 'holders', unpack(mine))
    redis.call('SREM', at .. 'held:' .. token, unpack(mine))
    redis.call('HDEL', at .. 'bodies', unpack(mine))
    redis.call('PUBLISH', at .. 'done', table.concat(mine, ' '))
  end
end
local taken, holders = {}, {}
local lanes = want > 0 and redis.call('ZRANGE', at .. 'lanes', 0, 49, 'WITHSCORES') or {}
for i = 1, #lanes, 2 do
  if #taken >= want then break end
  local key = at .. 'lane:' .. lanes[i]
  local popped = redis.call('ZPOPMIN', key, want - #taken)
  for j = 1, #popped, 2 do
    taken[#taken+1] = popped[j]
    holders[#holders+1], holders[#holders+2] = popped[j], token
  end
  local head = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  if head[2] then
    redis.call('ZADD', at .. 'lanes', math.floor(lanes[i+1] / 2^50) * 2^50 + head[2], lanes[i])
  else
    redis.call('ZREM', at .. 'lanes', lanes[i])
  end
end
if #taken == 0 then return taken end
redis.call('HSET', at .. 'holders', unpack(holders))
redis.call('SADD', at .. 'held:' .. token, unpack(taken))
return redis.call('HMGET', at .. 'bodies', unpack(taken))
"""

Body = tuple[str, str, int, str]
encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Body).decode


class Wire(asyncio.Protocol):
    """A connection: commands go out at once, answers come in order; published messages go to `heard`."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader()
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self.heard: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            if self.heard is not None and isinstance(reply, list) and reply[0] == b"message":
                self.heard(reply[2])
            else:
                future = self._waiting.popleft()
                if isinstance(reply, Exception):
                    future.set_exception(reply)
                else:
                    future.set_result(reply)

    def call(self, *args: str | bytes) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._transport.write(hiredis.pack_command(args))  # type: ignore[arg-type]
        return future


async def connect() -> Wire:
    place = urlsplit(os.environ["BENCH_URL"])
    loop = asyncio.get_running_loop()
    return (await loop.create_connection(Wire, place.hostname or "", place.port or 0))[1]


class BareProducer(Producer):
    """Awaited only: blocking is what the loop is not made of."""

    async def open(self) -> None:
        self._wire, self._ear = await connect(), await connect()
        self._sha = await self._wire.call("SCRIPT", "LOAD", PUT)
        self._ends: dict[str, asyncio.Future[None]] = {}
        await self._ear.call("SUBSCRIBE", f"{QUEUE}done")
        self._ear.heard = self._hear
        self._base = os.urandom(6).hex()

    def _hear(self, ids: bytes) -> None:
        for id in ids.decode().split():
            if (end := self._ends.get(id)) is not None and not end.done():
                end.set_result(None)

    def _job(self, task: str, n: int, payload: str) -> tuple[str, str, str, bytes]:
        id = f"{self._base}{n:012x}"
        return id, f"{task}|5", "5", encode((id, task, n, payload))

    async def aput(self, task: str, n: int, payload: str) -> Any:
        job = self._job(task, n, payload)
        if task == "trip":
            self._ends[job[0]] = asyncio.get_running_loop().create_future()
        await self._wire.call("EVALSHA", self._sha, "1", QUEUE, *job)
        return job[0]

    async def aput_many(self, task: str, numbers: Sequence[int], payload: str) -> None:
        for start in range(0, len(numbers), 200):  # what fits on Lua's stack
            jobs = [field for n in numbers[start : start + 200] for field in self._job(task, n, payload)]
            await self._wire.call("EVALSHA", self._sha, "1", QUEUE, *jobs)

    async def aresult(self, job: str) -> Any:
        await self._ends[job]
        del self._ends[job]
        return msgspec.msgpack.decode(await self._wire.call("GET", f"{QUEUE}result:{job}"))


producer = BareProducer


class Loop:
    """One executor."""

    async def open(self) -> None:
        self._wire, self._bell = await connect(), await connect()
        self._sha = await self._wire.call("SCRIPT", "LOAD", TURN)
        self._token = os.urandom(8).hex()
        self._free, self._finished = SLOTS, list[str | bytes]()
        self._ended = asyncio.Event()
        self._ring: asyncio.Future[Any] | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            finished, self._finished = self._finished, []
            taken = await self._wire.call(
                "EVALSHA", self._sha, "1", QUEUE, self._token, str(self._free), RESULT_TTL, *finished
            )
            self._free -= len(taken)
            self._ended.clear()
            for body in taken:
                loop.create_task(self._job(*decode(body)))  # noqa: RUF006 (the loop holds what a job waits for)
            await asyncio.sleep(0)
            if not taken and not self._finished:
                await self._rest()

    async def _rest(self) -> None:
        """Until something is finished, or, with free slots, the bell rings."""
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._ended.wait())]
        if self._free:
            self._ring = self._ring or self._bell.call("BLPOP", f"{QUEUE}bell", "0")
            waits.append(self._ring)
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        waits[0].cancel()
        if self._ring is not None and self._ring.done():
            self._ring = None

    async def _job(self, id: str, task: str, n: int, payload: str) -> None:
        result = await TASKS[task](n, payload)
        self._finished += (id, encode(result))
        self._free += 1
        self._ended.set()


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


async def work() -> None:
    loop = Loop()
    await loop.open()
    await loop.run()


if __name__ == "__main__":
    run_loop(work)
