"""Reads requests with httptools, which leaves to us what h11 does by itself.

It bounds nothing, passes on trailers as headers, and allows several hosts and any transfer coding.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dray.serve.errors import Refused
from dray.serve.http_request import HEADERS_MAX, headers_too_large, invalid_framing

PIPELINED_MAX = 100
"""Requests of a connection that may wait for the answer to another; h11 reads one at a time."""
_encode = msgspec.json.Encoder().encode


class JoinedWrites:
    """The transport of one reply: its headers travel with the first piece of its body, in one packet."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._head: bytes | None = b""
        """Headers that were not sent; None once they were."""
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if self._head is None:
            self._transport.write(data)
        elif self._head:
            head, self._head = self._head, None
            self._transport.write(head + data)
        else:
            self._head = data
            self._loop.call_soon(self.flush)  # a stream may have nothing to say for a while

    def flush(self) -> None:
        if self._head:
            self.write(b"")

    def close(self) -> None:
        self.flush()
        self._transport.close()


class HttptoolsProtocol(HttpToolsProtocol):
    """uvicorn's protocol, within bounds; it also calls `ended` when its connection has ended."""

    ended: Callable[[], None]
    _unused = 0
    """Bytes received since the last that completed headers, a piece of a body or a request."""
    _in_headers = True
    _hosts = 0
    _coding: bytes | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.ended()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._unused += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # to another protocol; we go on with this one
            self._unused = 0
        except httptools.HttpParserError as error:
            self._refuse(_refusal(error))
        if self._unused > HEADERS_MAX:
            self._refuse(headers_too_large())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers, self._hosts, self._coding = True, 0, None

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_headers:  # a trailer: a proxy that checks headers has not seen it
            return
        name = name.lower()
        if name == b"host":
            self._hosts += 1
        elif name == b"transfer-encoding":
            self._coding = value.lower()
        elif name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._in_headers, self._unused = False, 0
        if len(self.pipeline) >= PIPELINED_MAX:
            message = f"at most {PIPELINED_MAX} requests may wait for the answer to another"
            raise Refused(400, "too_many_pipelined", message)
        version = self.parser.get_http_version()
        if self._hosts != 1 and (self._hosts or version != "1.0"):
            raise Refused(400, "invalid_host", "send one Host header", "Host")
        if self._coding is not None and (self._coding != b"chunked" or version == "1.0"):
            message = "no Transfer-Encoding but chunked is allowed, and that in HTTP/1.1"
            raise Refused(400, "invalid_framing", message)
        super().on_headers_complete()
        self.cycle.transport = JoinedWrites(self.transport, self.loop)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        self._unused = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unused = 0
        super().on_message_complete()

    def _refuse(self, refused: Refused) -> None:
        """Answer, unless a reply has begun or others are due before it; then hang up."""
        cycle: Any = self.cycle  # None before the first request
        # Also if an earlier request is still being handled: the answer would be taken for its own.
        begun = (
            cycle is not None
            and not cycle.response_complete
            and (cycle.response_started or not cycle.more_body)
        )
        if not self.transport.is_closing() and not begun and not self.pipeline:
            body = _encode(
                {"error": {"code": refused.code, "message": refused.message, "field": refused.field}}
            )
            self.transport.write(
                b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
            )
        self.transport.close()


def _refusal(error: httptools.HttpParserError) -> Refused:
    if isinstance(error.__context__, Refused):  # raised above, by one of our callbacks
        return error.__context__
    if "Content-Length" in str(error) and "Transfer-Encoding" in str(error):
        return invalid_framing()
    return Refused(400, "invalid_request", f"this is no HTTP request: {error}")
