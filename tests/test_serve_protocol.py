"""Bytes as requests, with httptools and with h11: one request is read as one, within bounds."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from test_serve_connections import BOTH, ask, is_cut, opened

from dray.serve.http_protocol import HttpProtocol
from dray.serve.http_request import HEADERS_MAX
from dray.serve.httptools_protocol import PIPELINED_MAX, HttptoolsProtocol

HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
LAST = b"GET /hidden HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Seen:
    """Answers each request with what it was."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.requests.append((scope["path"], body))
        names = sorted(name.decode() for name, _ in scope["headers"])
        said = json.dumps([scope["path"], body.decode("latin-1"), names]).encode()
        length = str(len(said)).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        await send({"type": "http.response.body", "body": said})


def answers(protocol: type[HttpProtocol], sent: bytes) -> tuple[bytes, Seen]:
    """What comes back until the server ends the connection."""
    seen, heard = Seen(), bytearray()

    async def scene() -> None:
        async with opened(seen, protocol=protocol) as (_, port):
            reader, writer = await ask(port, sent)
            async with asyncio.timeout(30):
                try:
                    while data := await reader.read(1 << 16):
                        heard.extend(data)
                except ConnectionError:
                    pass
            writer.close()

    asyncio.run(scene())
    return bytes(heard), seen


UNCLEAR = {
    "two lengths": HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
    "no number": HEAD + b"Content-Length: +5\r\n\r\n",
    "unknown coding": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n",
    "two codings": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked is not last": HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "space before the colon": HEAD + b"Content-Length : 5\r\n\r\n",
    "a bare carriage return": HEAD + b"X: a\rContent-Length: 5\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "no version": b"GET /\r\n\r\n",
    "a wrong chunk": CHUNKED + b"zz\r\n",
    "a negative chunk": CHUNKED + b"-1\r\nx\r\n",
}


@BOTH
@pytest.mark.parametrize("case", UNCLEAR)
def test_a_request_that_could_be_read_in_two_ways_is_refused(case: str, protocol: type[HttpProtocol]) -> None:
    heard, seen = answers(protocol, UNCLEAR[case] + HIDDEN)
    assert heard.startswith((b"HTTP/1.1 4", b"HTTP/1.1 501")), heard
    assert heard.count(b"HTTP/1.1 ") == 1, heard
    assert ("/hidden", b"") not in seen.requests


@BOTH
def test_trailers_are_no_headers(protocol: type[HttpProtocol]) -> None:
    heard, seen = answers(protocol, CHUNKED + b"1\r\nx\r\n0\r\nAuthorization: Bearer y\r\n\r\n" + LAST)
    assert seen.requests == [("/", b"x"), ("/hidden", b"")]
    assert b"authorization" not in heard


@BOTH
def test_requests_on_one_connection_are_answered_in_order(protocol: type[HttpProtocol]) -> None:
    first = HEAD + b"Content-Length: 3\r\n\r\nabc"
    sent = first + CHUNKED + b"2\r\nde\r\n1\r\nf\r\n0\r\n\r\n" + LAST
    heard, seen = answers(protocol, sent)
    assert seen.requests == [("/", b"abc"), ("/", b"def"), ("/hidden", b"")]
    assert heard.count(b"HTTP/1.1 200") == 3


@BOTH
def test_a_request_for_another_protocol_is_answered_in_this_one(protocol: type[HttpProtocol]) -> None:
    sent = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\n\r\n"
    heard, _ = answers(protocol, sent)
    assert heard.startswith(b"HTTP/1.1 200")


ENDLESS = {
    "headers": (HEAD, b"X-Much: " + b"y" * 1000 + b"\r\n"),
    "one header": (HEAD + b"X-Much: ", b"y" * 1000),
    "a path": (b"GET /", b"y" * 1000),
    "empty lines": (b"", b"\r\n" * 500),
    "trailers": (CHUNKED + b"1\r\nx\r\n0\r\n", b"X-Much: " + b"y" * 1000 + b"\r\n"),
    "extensions of a chunk": (CHUNKED + b"1", b";" + b"y" * 1000),
}


@BOTH
@pytest.mark.parametrize("case", ENDLESS)
def test_what_has_no_end_is_cut_off_before_it_takes_memory(case: str, protocol: type[HttpProtocol]) -> None:
    begin, more = ENDLESS[case]

    async def scene() -> None:
        async with opened(Seen(), protocol=protocol) as (_, port):
            reader, writer = await ask(port, begin)
            sent = 0
            try:
                while not writer.is_closing() and sent < 50_000_000:
                    writer.write(more)
                    sent += len(more)
                    await writer.drain()
            except ConnectionError:
                pass
            assert await is_cut(reader)
            assert sent < 100 * HEADERS_MAX, "it was read without an end"
            writer.close()

    asyncio.run(scene())


def test_requests_that_wait_for_the_answer_to_another_are_bounded() -> None:
    heard, seen = answers(HttptoolsProtocol, HIDDEN * 3000)
    assert len(seen.requests) <= PIPELINED_MAX + 1, "the connection was ended"
    assert heard.count(b"HTTP/1.1 200") <= PIPELINED_MAX + 1
    heard, seen = answers(HttptoolsProtocol, HIDDEN * (PIPELINED_MAX - 1) + LAST)
    assert heard.count(b"HTTP/1.1 200") == PIPELINED_MAX
