"""Drives a server, in a process of its own: a line of JSON says what to do, a line of JSON tells how it went.

python -m bench.service.client
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from bench.service import crowd
from bench.service.wire import connect, request
from dray import App
from dray.serve.rpc import dray_pb2 as pb
from dray.worker.process import new_event_loop

CREDITS = 100
"""Jobs that a stream holds at a time."""
Spec = dict[str, Any]
Turn = Callable[[], Awaitable[None]]
"""Makes one request, or one cycle of them; raises if it was not answered as it should be."""


async def measure(turns: list[Turn], count: int) -> dict[str, object]:
    """As many turns as asked for, by all connections together; each makes one after the other."""
    left = iter(range(count))
    times: list[float] = []

    async def go(turn: Turn) -> None:
        for _ in left:
            began = time.perf_counter()
            await turn()
            times.append(time.perf_counter() - began)

    await asyncio.gather(*(turn() for turn in turns))  # once, so that connections and code are warm
    began = time.perf_counter()
    await asyncio.gather(*(go(turn) for turn in turns))
    return {"seconds": time.perf_counter() - began, "times": times}


# HTTP


async def http(spec: Spec) -> dict[str, object]:
    lines = [await connect(spec["port"]) for _ in range(spec["connections"])]
    try:
        makers = {"floor": _floor, "submit": _submit, "batch": _batch, "get": _get, "trip": _trip}
        return await measure([makers[spec["kind"]](line, spec) for line in lines], spec["count"])
    finally:
        for line in lines:
            line.close()


def _job(queue: str = "default") -> bytes:
    return json.dumps({"task": "noop", "args": [1], "queue": queue}).encode()


def _asking(line: Any, sent: bytes, status: int) -> Turn:
    async def turn() -> None:
        reply = await line.ask(sent)
        if reply.status != status:
            raise RuntimeError(f"{reply.status}: {reply.body.decode()}")

    return turn


def _floor(line: Any, spec: Spec) -> Turn:
    body = None if spec.get("empty") else _job() if "batch" not in spec else _jobs(spec["batch"])
    once = _asking(line, request("GET" if body is None else "POST", "/", body), 200)

    async def turn() -> None:
        for _ in range(spec.get("times", 1)):
            await once()

    return turn


def _submit(line: Any, spec: Spec) -> Turn:
    return _asking(line, request("POST", "/api/jobs", _job()), 201)


def _jobs(count: int) -> bytes:
    return b'{"jobs":[' + b",".join([_job()] * count) + b"]}"


def _batch(line: Any, spec: Spec) -> Turn:
    return _asking(line, request("POST", "/api/jobs/batch", _jobs(spec["batch"])), 200)


def _get(line: Any, spec: Spec) -> Turn:
    return _asking(line, request("GET", f"/api/jobs/{spec['id']}"), 200)


def _trip(line: Any, spec: Spec) -> Turn:
    """Submit a job for which a worker waits, and wait for its result."""

    async def turn() -> None:
        accepted = await line.ask(request("POST", "/api/jobs", _job("trip")))
        id = json.loads(accepted.body)["id"]
        ended = await line.ask(request("GET", f"/api/jobs/{id}/result?wait=60"))
        if ended.status != 200:
            raise RuntimeError(f"{ended.status}: {ended.body.decode()}")

    return turn


# gRPC


async def rpc(spec: Spec) -> dict[str, object]:
    """A channel for every connection: gRPC would put all calls on one."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    target = f"127.0.0.1:{spec['port']}"
    channels = [grpc.aio.insecure_channel(target, options=options) for _ in range(spec["connections"])]
    try:
        makers = {"floor": _nothing, "enqueue": _enqueue, "batch": _enqueue_batch, "cycle": _cycle}
        return await measure([makers[spec["kind"]](channel, spec) for channel in channels], spec["count"])
    finally:
        for channel in channels:
            await channel.close()


def _method(channel: Any, name: str, answer: Any) -> Any:
    return channel.unary_unary(
        f"/dray.v1.TaskQueue/{name}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=answer.FromString,
    )


def _calling(call: Any, message: Any) -> Turn:
    async def turn() -> None:
        await call(message)

    return turn


def _nothing(channel: Any, spec: Spec) -> Turn:
    call = channel.unary_unary("/floor.Floor/Nothing")
    sent = _wanted().SerializeToString() * spec.get("batch", 1)

    async def turn() -> None:
        for _ in range(spec.get("times", 1)):
            await call(sent)

    return turn


def _wanted(queue: str = "default") -> pb.EnqueueRequest:
    return pb.EnqueueRequest(task="noop", args_json="[1]", queue=queue)


def _enqueue(channel: Any, spec: Spec) -> Turn:
    return _calling(_method(channel, "Enqueue", pb.EnqueueResponse), _wanted())


def _enqueue_batch(channel: Any, spec: Spec) -> Turn:
    many = pb.EnqueueBatchRequest(jobs=[_wanted()] * spec["batch"])
    return _calling(_method(channel, "EnqueueBatch", pb.EnqueueBatchResponse), many)


def _cycle(channel: Any, spec: Spec) -> Turn:
    fetch = _method(channel, "FetchAndHold", pb.FetchAndHoldResponse)
    ack = _method(channel, "Ack", pb.SettleResponse)
    wanted = pb.FetchAndHoldRequest(queues=["held"], limit=1, wait=30)

    async def turn() -> None:
        (held,) = (await fetch(wanted)).jobs
        await ack(pb.AckRequest(id=held.id, token=held.token))

    return turn


async def work(spec: Spec) -> dict[str, object]:
    """Drain jobs over a stream per connection, as workers do whose jobs take no time."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    target = f"127.0.0.1:{spec['port']}"
    channels = [grpc.aio.insecure_channel(target, options=options) for _ in range(spec["connections"])]
    drain = _Drain(spec["count"])
    serve = drain.echo if spec["kind"] == "floor" else drain.serve
    began = time.perf_counter()
    serving = [asyncio.create_task(serve(channel)) for channel in channels]
    try:
        await asyncio.wait([asyncio.create_task(drain.over.wait()), *serving], return_when="FIRST_COMPLETED")
        return {"seconds": time.perf_counter() - began, "times": drain.times}
    finally:
        for one in serving:
            one.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        for channel in channels:
            await channel.close()


class _Drain:
    """So many jobs, by all streams together."""

    def __init__(self, count: int) -> None:
        self._left = count
        self.over = asyncio.Event()
        self.times: list[float] = []
        """Seconds of each batch, divided by its jobs."""

    def _ended(self, jobs: int, seconds: float) -> None:
        self._left -= jobs
        self.times.append(seconds / max(1, jobs))
        if self._left <= 0:
            self.over.set()

    async def serve(self, channel: Any) -> None:
        call = channel.stream_stream(
            "/dray.v1.TaskQueue/Work",
            request_serializer=pb.WorkRequest.SerializeToString,
            response_deserializer=pb.WorkReply.FromString,
        )()
        await call.write(pb.WorkRequest(start=pb.WorkStart(queues=["held"], credits=CREDITS)))
        while True:
            began = time.perf_counter()
            reply = await call.read()
            acks = [pb.WorkAck(id=job.id, run=job.run, result_json="1") for job in reply.jobs]
            if acks:
                await call.write(pb.WorkRequest(acks=acks))
            self._ended(len(reply.settled), time.perf_counter() - began)

    async def echo(self, channel: Any) -> None:
        """As many bytes as a batch of jobs has, there and back."""
        call = channel.stream_stream("/floor.Floor/Back")()
        while True:
            began = time.perf_counter()
            await call.write(b"x" * 150 * CREDITS)
            await call.read()
            self._ended(CREDITS, time.perf_counter() - began)


# without a server


async def direct(spec: Spec) -> dict[str, object]:
    """The same jobs by `app.aenqueue`."""
    app = App("bench", broker=spec["broker"])

    async def turn() -> None:
        await app.aenqueue("noop", 1)

    try:
        return await measure([turn] * spec["connections"], spec["count"])
    finally:
        await (await app.client.loop_link()).broker.close()


KINDS: dict[str, Callable[[Spec], Awaitable[dict[str, object]]]] = {
    "http": http,
    "rpc": rpc,
    "work": work,
    "direct": direct,
    "crowd": crowd.http,
    "rpc crowd": crowd.rpc,
    "huge": crowd.huge,
    "readers": crowd.readers,
}


def main() -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        for line in sys.stdin:
            spec = json.loads(line)
            print(json.dumps(runner.run(_answer(spec))), flush=True)


async def _answer(spec: Spec) -> dict[str, object]:
    return await KINDS[spec["by"]](spec)


if __name__ == "__main__":
    main()
