"""HTTP/1.1 on raw sockets, just enough to drive a server: a client library would be what is measured."""

from __future__ import annotations

import asyncio
from typing import NamedTuple, cast


class Reply(NamedTuple):
    status: int
    head: bytes
    """Status line and headers, in lower case."""
    body: bytes


class Line(asyncio.Protocol):
    """One connection that is kept alive; one request at a time."""

    def __init__(self) -> None:
        self._data = b""
        self._waiting: asyncio.Future[Reply] | None = None
        self._transport: asyncio.Transport | None = None
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(ConnectionError("the server hung up"))

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found or self._waiting is None or self._waiting.done():
            return
        head = head.lower()
        place = head.find(b"\r\ncontent-length: ")
        size = 0 if place < 0 else int(head[place + 18 :].split(b"\r\n", 1)[0])
        if len(body) >= size:
            self._data = body[size:]
            self._waiting.set_result(Reply(int(head[9:12]), head, body[:size]))

    async def ask(self, request: bytes) -> Reply:
        if self._lost or self._transport is None:
            raise ConnectionError("the server hung up")
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiting

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def connect(port: int) -> Line:
    _, line = await asyncio.get_running_loop().create_connection(Line, "127.0.0.1", port)
    return line


def request(method: str, path: str, body: bytes | None = None) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    if body is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + (body or b"")
