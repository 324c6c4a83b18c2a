"""A worker's own HTTP server: `/healthz`, `/readyz`, `/metrics`. GET only, one request per connection.

It runs in the supervisor and must not cost it much: slow, malformed or too many requests are refused. Nothing
can be changed here, and answers hold names and numbers, no arguments, results or keys; so it may listen on an
address that other machines reach.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, NamedTuple

from dray.errors import DrayError

HEAD_MAX: Final = 8192
"""Bytes of a request."""
CONNECTIONS_MAX: Final = 32
TIMEOUT: Final = 5.0
"""Seconds for a request to arrive, and for its answer to leave."""


class Answer(NamedTuple):
    status: int
    text: str
    kind: str = "text/plain; charset=utf-8"


Page = Callable[[], Answer]


class Probes:
    """A server that listens from `open` to `close`."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = pages
        self._server: asyncio.Server | None = None
        self._served: set[asyncio.Task[None]] = set()

    async def open(self, address: str) -> str:
        """Listen; returns the URL, with the port that was chosen."""
        host, _, port = address.rpartition(":")
        try:
            self._server = await asyncio.start_server(
                self._accept, host.strip("[]"), int(port), limit=HEAD_MAX, backlog=CONNECTIONS_MAX
            )
        except OSError as error:
            raise DrayError(f"metrics: cannot listen on {address}: {error.strerror or error}") from error
        return f"http://{host}:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._served:
            task.cancel()
        await asyncio.gather(*self._served, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._served) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._served.add(task)
        task.add_done_callback(self._served.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(TIMEOUT):
                head = await reader.readuntil(b"\r\n\r\n")
            async with asyncio.timeout(TIMEOUT):
                writer.write(self._reply(head))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except asyncio.LimitOverrunError:
            writer.write(_encode(Answer(431, "too long\n"), whole=True))
            writer.close()
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass
        finally:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                writer.transport.abort()

    def _reply(self, head: bytes) -> bytes:
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _encode(Answer(400, "this is no HTTP/1.1\n"), whole=True)
        method, target = words[0], words[1].partition(b"?")[0].decode("ascii", "replace")
        page = self._pages.get(target)
        if page is None:
            return _encode(Answer(404, f"there are {', '.join(self._pages)}\n"), whole=True)
        if method not in (b"GET", b"HEAD"):
            return _encode(Answer(405, "GET is allowed\n"), whole=True)
        return _encode(page(), whole=method == b"GET")


def _encode(answer: Answer, *, whole: bool) -> bytes:
    body = answer.text.encode()
    lines = [
        f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
        f"Content-Type: {answer.kind}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    ]
    if answer.status == 405:
        lines.append("Allow: GET, HEAD")
    return "\r\n".join([*lines, "", ""]).encode() + (body if whole else b"")
