"""One bare command for each step, without any guarantee: the floor of every row.

A job is one value in a list. LPUSH puts it, or a thousand of them; BRPOP takes it, and it is lost if its
process dies. A result is pushed to a list of its own. Two processes, one job at a time each.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import hiredis
import msgspec

from bench.peers.inside import Producer, mark, note
from bench.peers.subjects.bare import connect

QUEUE = "floor"
encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(tuple[str, int, str]).decode


class Line:
    """A connection: one command, one answer."""

    def __init__(self) -> None:
        place = urlsplit(os.environ["BENCH_URL"])
        self._socket = socket.create_connection((place.hostname or "", place.port or 0))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()

    def call(self, *args: str | bytes) -> Any:
        self._socket.sendall(hiredis.pack_command(args))  # type: ignore[arg-type]
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(65_536))
        return reply


class CommandProducer(Producer):
    def __init__(self) -> None:
        self._line = Line()

    async def open(self) -> None:
        self._wire = await connect()

    def put(self, task: str, n: int, payload: str) -> int:
        self._line.call("LPUSH", QUEUE, encode((task, n, payload)))
        return n

    async def aput(self, task: str, n: int, payload: str) -> int:
        await self._wire.call("LPUSH", QUEUE, encode((task, n, payload)))
        return n

    def put_many(self, task: str, numbers: Sequence[int], payload: str) -> None:
        self._line.call("LPUSH", QUEUE, *[encode((task, n, payload)) for n in numbers])

    def result(self, job: int) -> Any:
        return msgspec.msgpack.decode(self._line.call("BRPOP", f"{QUEUE}:{job}", "30")[1])


producer = CommandProducer


def work() -> None:
    line = Line()
    while True:
        task, n, payload = decode(line.call("BRPOP", QUEUE, "0")[1])
        if task == "noop":
            mark(n)
        elif task == "probe":
            note(n, payload)
        else:
            line.call("LPUSH", f"{QUEUE}:{n}", encode(n))


if __name__ == "__main__":
    work()
