"""One HTTP request: read from ASGI within bounds, then given to its handler."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Mapping
from os import urandom
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from dray.app import App
from dray.serve.admission import ByteLimit
from dray.serve.auth import EVERYBODY, Peer
from dray.serve.errors import Refused
from dray.serve.event_feed import EventBroadcaster
from dray.serve.models import AnyJson
from dray.serve.request import Request

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope

BODY_SECONDS: Final = 30.0
"""Time in which a client must send the body of its request."""
HEADERS_MAX: Final = 64 * 1024
"""Bytes of all headers of a request together."""
_DRAIN_SECONDS, _DRAIN_TIMES = 5.0, 4
"""How long, and up to how many times the limit, a body that is too large is read and thrown away."""
_SMALL: Final = 64 * 1024
"""Bytes of a body that the byte limit does not count: there are `max_requests` of them at most."""
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class HttpRequest(Request):
    """One request. Its caller, path, query and body are set, in this order, before its handler is called."""

    def __init__(self, app: App, events: EventBroadcaster, scope: Scope, receive: Receive) -> None:
        super().__init__(app, events, EVERYBODY)
        self.scope, self._receive = scope, receive
        headers, size = {}, 0
        for name, value in scope["headers"][::-1]:  # of several with the same name the first counts
            headers[name.decode("latin-1")] = value.decode("latin-1")
            size += len(name) + len(value)
        self.headers: Mapping[str, str] = headers
        self._header_bytes = size
        given = headers.get("x-request-id", "")
        self.id = given if given and _REQUEST_ID.fullmatch(given) else urandom(16).hex()
        address = (scope.get("client") or ("",))[0]
        self.peer = Peer(self.headers, address, scope.get("http_version", ""))
        self.share: str | None = None
        """The key whose share of the server it uses."""
        self.path: Mapping[str, str] = {}
        """The values of the route's parameters."""
        self.query: Any = None
        self.body: Any = None
        self.on_close: list[Callable[[], object]] = []
        """Called when the reply has been sent."""
        self._disconnect: asyncio.Task[Message] | None = None
        self._body_over = False

    def close(self) -> None:
        for callback in reversed(self.on_close):
            callback()

    def check_framing(self) -> None:
        if self._header_bytes > HEADERS_MAX:
            raise headers_too_large()
        if "content-length" in self.headers and "transfer-encoding" in self.headers:
            raise invalid_framing()

    def path_parts(self) -> list[str]:
        """The parts of the path below our mount point, each decoded: an id may hold a slash."""
        scope = self.scope
        raw = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogateescape")
        parts = raw.split(b"?")[0].split(b"/")[1:]
        root = scope.get("root_path", "")
        if root and scope["path"].startswith(root):
            parts = parts[len([part for part in root.split("/") if part]) :]
        try:
            return [(unquote_to_bytes(part) if b"%" in part else part).decode("utf-8") for part in parts]
        except UnicodeDecodeError:
            raise Refused(400, "invalid_path", "the path is not text in UTF-8") from None

    def read_query(self, kind: type[msgspec.Struct] | None) -> msgspec.Struct | None:
        """The parameters as a Struct of this type; without one there must be none."""
        raw = self.scope["query_string"]
        given = _query_values(raw) if raw else {}
        if kind is None:
            if given:
                name = next(iter(given))
                raise Refused(422, "invalid_query", f"there is no parameter {name!r}", name)
            return None
        # A form that is not filled in sends `state=`: that filters by nothing.
        given = {name: value for name, value in given.items() if value or name not in kind.__struct_fields__}
        query = msgspec.convert(given, kind, strict=False)
        for name in given:
            if getattr(query, name) is None:  # the text `null`, which msgspec takes for None
                raise Refused(422, f"invalid_{name}", f"{name} is not given as {given[name]!r}", name)
        return query

    async def read_json(
        self, kind: type[msgspec.Struct], limit: ByteLimit, *, needed: bool
    ) -> msgspec.Struct:
        """The body as a Struct of this type, within a limit of bytes that all requests hold."""
        data = await self._read_body(limit)
        if not data and not needed:
            return kind()
        if self.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refused(400, "invalid_content_type", "send application/json", "Content-Type")
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            raise Refused(400, "invalid_content_encoding", "send it uncompressed", "Content-Encoding")
        if kind is AnyJson:
            return AnyJson(value=msgspec.json.decode(data))
        return msgspec.json.decode(data, type=kind)

    async def _read_body(self, limit: ByteLimit) -> bytes:
        most = self.app.settings.max_request_size
        announced = self.headers.get("content-length", "0")
        size = int(announced) if announced.isdecimal() and len(announced) < 20 else 0
        size = size if size > most else 0
        chunks: list[bytes] = []
        while size <= most and not self._body_over:
            chunk = await self._next_chunk()
            chunks.append(chunk)
            size += len(chunk)
            if size > _SMALL:
                self.on_close.append(limit.add(len(chunk), self.share))
        if size > most:
            await self._drain(most * _DRAIN_TIMES - size)
            raise Refused(413, "request_too_large", f"at most {most} bytes are read (max_request_size)")
        return b"".join(chunks)

    async def _next_chunk(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "gone", "the client went away")
        self._body_over = not message.get("more_body", False)
        body: bytes = message.get("body", b"")
        return body

    async def _drain(self, most: int) -> None:
        """Let a client finish sending for a moment: else it may not read why it was refused."""
        with contextlib.suppress(TimeoutError, Refused):
            async with asyncio.timeout(_DRAIN_SECONDS):
                while most > 0 and not self._body_over:
                    most -= len(await self._next_chunk())

    def watch_disconnect(self, stopping: asyncio.Event) -> None:
        """Set the event when the client goes away while its request is worked on."""
        self.stopping = stopping
        self._disconnect = asyncio.ensure_future(self._wait_for_disconnect())
        self._disconnect.add_done_callback(lambda _: stopping.set())
        self.on_close.append(self._disconnect.cancel)

    async def _wait_for_disconnect(self) -> Message:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return message

    async def receive(self) -> Message:
        """For a streaming response, which ends when its client goes away."""
        return await (self._receive() if self._disconnect is None else asyncio.shield(self._disconnect))


def body_too_slow() -> Refused:
    return Refused(400, "body_too_slow", f"it did not arrive within {BODY_SECONDS:g} s")


def headers_too_large() -> Refused:
    return Refused(400, "headers_too_large", f"at most {HEADERS_MAX} bytes of headers are read")


def invalid_framing() -> Refused:
    """The end of a body is not clear: a proxy may have read another request than we do."""
    message = "send either Content-Length or Transfer-Encoding"
    return Refused(400, "invalid_framing", message, headers={"Connection": "close"})


def _query_values(raw: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError:
        raise Refused(400, "invalid_query", "the query is not percent-encoded text in UTF-8") from None
    given: dict[str, str] = {}
    for name, value in pairs:
        if name in given:
            raise Refused(422, "invalid_query", f"{name} is given twice", name)
        given[name] = value
    return given
