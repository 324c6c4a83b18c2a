"""Clients without mercy: they ask again at once, whatever they are told. Part of the client process."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import grpc

from bench.service.wire import connect, request
from dray.serve.rpc import dray_pb2 as pb

Spec = dict[str, Any]
CHUNK = 64 * 1024


class Books:
    """What became of the requests."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        self.accepted: list[str] = []
        self.statuses: dict[str, int] = {}
        self.refusals: list[float] = []
        """Seconds until a refusal was there."""
        self.without_hint = 0
        """Refusals that did not say when to come back."""
        self.broken = 0

    @property
    def open(self) -> bool:
        return time.monotonic() < self.end

    def note(self, status: str) -> None:
        self.statuses[status] = self.statuses.get(status, 0) + 1

    def refuse(self, seconds: float, hint: bool) -> None:
        self.refusals.append(seconds)
        self.without_hint += not hint


async def http(spec: Spec) -> dict[str, object]:
    """So many connections that submit for so many seconds, or until the server is gone."""
    books = Books(spec["seconds"])
    body = json.dumps({"task": "noop", "args": [1]}).encode()
    sent = request("POST", "/api/jobs", body)

    async def go() -> None:
        try:
            line = await connect(spec["port"])
            while books.open:
                began = time.perf_counter()
                reply = await line.ask(sent)
                books.note(str(reply.status))
                if reply.status in (200, 201):
                    books.accepted.append(json.loads(reply.body)["id"])
                elif reply.status in (429, 503):
                    books.refuse(time.perf_counter() - began, b"\r\nretry-after: " in reply.head)
            line.close()
        except OSError:
            books.broken += 1

    await asyncio.gather(*(go() for _ in range(spec["connections"])))
    return vars(books)


async def rpc(spec: Spec) -> dict[str, object]:
    books = Books(spec["seconds"])
    wanted = pb.EnqueueRequest(task="noop", args_json="[1]")

    async def go() -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{spec['port']}", options=options) as channel:
            call: Any = channel.unary_unary(
                "/dray.v1.TaskQueue/Enqueue",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=pb.EnqueueResponse.FromString,
            )
            while books.open:
                began = time.perf_counter()
                try:
                    books.accepted.append((await call(wanted)).id)
                    books.note("OK")
                except grpc.aio.AioRpcError as error:
                    told = dict(tuple(error.trailing_metadata() or ()))
                    if "dray-error-code" not in told:  # not the service's answer: there is no server any more
                        books.broken += 1
                        return
                    books.note(error.code().name)
                    books.refuse(time.perf_counter() - began, "dray-retry-after" in told)

    await asyncio.gather(*(go() for _ in range(spec["connections"])))
    return vars(books)


async def huge(spec: Spec) -> dict[str, object]:
    """Bodies without end, in chunks: nothing says beforehand how large they are."""
    books = Books(60)

    async def go() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", spec["port"])
        head = "POST /api/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        writer.write(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        began = time.perf_counter()
        piece = b"%x\r\n" % CHUNK + b" " * CHUNK + b"\r\n"
        answer = asyncio.ensure_future(reader.readline())
        sent = 0
        try:
            while not answer.done() and sent < spec["bytes"]:
                writer.write(piece)
                sent += CHUNK
                await writer.drain()
            first = await asyncio.wait_for(answer, 30)
            books.note(first.split()[1].decode() if first else "cut")
            books.refuse(time.perf_counter() - began, hint=True)
        except OSError:
            books.note("cut")
        finally:
            answer.cancel()
            writer.close()

    await asyncio.gather(*(go() for _ in range(spec["connections"])))
    return vars(books)


async def readers(spec: Spec) -> dict[str, object]:
    """Follow events and read none of them, while others submit."""
    lines = []
    for _ in range(spec["readers"]):
        reader, writer = await asyncio.open_connection("127.0.0.1", spec["port"], limit=1024)
        writer.write(request("GET", "/api/events"))
        await reader.readline()
        lines.append(writer)
    told = await http(spec)
    for writer in lines:
        writer.close()
    return told
