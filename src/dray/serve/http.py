"""The ASGI app: from a request to its route, and every reply on its way out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from importlib.metadata import version
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from dray.app import App
from dray.serve import dead, feed, health, jobs, metrics, queues, schedules, submit
from dray.serve.callers import EVERYBODY, Caller, Gate
from dray.serve.feed import Hub
from dray.serve.limits import Load, Room, Turnstile
from dray.serve.models import ErrorBody, ErrorOut, Out
from dray.serve.openapi import document
from dray.serve.refusals import Refused, forbidden, refusal_of
from dray.serve.routes import BULK_SECONDS, Ask, Reply, Route, Table, path_parts
from dray.serve.shields import HEADERS, check_host, check_origin, cors_headers, preflight_headers

BODY_SECONDS: Final = 30.0
"""For how long a client may take to send its request."""
HEADERS_MAX: Final = 64 * 1024
"""Bytes of all headers of a request together."""
_DRAIN_SECONDS, _DRAIN_TIMES = 5.0, 4
"""For how long, and up to how many times the limit, a request that is too large is heard out."""
_SMALL: Final = 64 * 1024
"""Bytes of a request that need no place in the load: there are `max_requests` of them at most."""
LOAD_TIMES: Final = 16
"""So many requests of the largest size are held at a time: all that there is room for would be gigabytes."""
_TELL_EVERY = 1.0
"""Seconds between two lines in the log about requests that cannot be served now."""
_FIXED = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_encode = msgspec.json.Encoder().encode
log = logging.getLogger("dray.serve")
audit_log = logging.getLogger("dray.audit")


class OpenApi(Out):
    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]


async def _show_document(ask: Ask) -> Reply:
    return Reply(document(ROUTES, version("dray")))


ROUTES: Final[tuple[Route, ...]] = (
    *submit.ROUTES,
    *jobs.ROUTES,
    *queues.ROUTES,
    *schedules.ROUTES,
    *dead.ROUTES,
    *feed.ROUTES,
    *health.ROUTES,
    *metrics.ROUTES,
    Route(
        method="GET",
        path="/api/openapi.json",
        handler=_show_document,
        role=None,
        summary="This document",
        replies={200: OpenApi},
    ),
)
"""Everything that is served."""


class Service:
    """An app over HTTP, for any ASGI server; see `asgi`."""

    def __init__(self, app: App, *, open: bool = False, hosts: frozenset[str] | None = None) -> None:
        settings = app.settings
        self.app = app
        self._hosts = hosts
        self._origins = frozenset(settings.cors_origins)
        self._table = Table(ROUTES)
        self._gate = Gate(app, open=open)
        self._turnstile = Turnstile(settings.key_rate)
        self._room = Room(settings.max_requests, "requests")
        self._waiting_room = Room(settings.max_waiting, "clients that wait")
        self._load = Load(settings.max_request_size * LOAD_TIMES)
        self._patience = (settings.connect_timeout + settings.read_timeout) / 1000
        self._hub = Hub(app)
        self._closing = False
        self._leaving: set[asyncio.Event] = set()
        self._untold = 0
        self._told_at = float("-inf")
        self._zipped = GZipMiddleware(self._answer, minimum_size=1024)

    def close(self) -> None:
        """End what would go on for ever: streams, and waits for results. Other requests are finished."""
        self._closing = True
        self._hub.close()
        for leaving in self._leaving:
            leaving.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            # Whoever does not ask for it is not made to pay for it.
            asked = any(name == b"accept-encoding" and b"gzip" in value for name, value in scope["headers"])
            await (self._zipped if asked else self._answer)(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                self.close()
                return

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The first of those with the same name counts.
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"][::-1]}
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16)
        with contextlib.ExitStack() as held:
            exchange = _Exchange(self, scope, receive, headers, request_id, held)
            response = await exchange.respond()
            response.raw_headers += _FIXED
            response.raw_headers.append((b"x-request-id", request_id.encode()))
            for name, value in cors_headers(headers, self._origins).items():
                response.headers[name] = value
            await response(scope, exchange.receive, send)

    def tell(self, request_id: str, error: Exception) -> None:
        """Say in the log that a request could not be served now; a flood of them is counted."""
        self._untold += 1
        now = time.monotonic()
        if now - self._told_at >= _TELL_EVERY:
            more = f" (and {self._untold - 1} more before it)" if self._untold > 1 else ""
            log.warning("request %s: %s%s", request_id, error, more)
            self._told_at, self._untold = now, 0

    @contextlib.contextmanager
    def leaving(self) -> Iterator[asyncio.Event]:
        """An event that is set when there is no more reason to wait."""
        leaving = asyncio.Event()
        if self._closing:
            leaving.set()
        self._leaving.add(leaving)
        try:
            yield leaving
        finally:
            self._leaving.discard(leaving)


class _Exchange:
    """One request and its reply."""

    def __init__(
        self,
        service: Service,
        scope: Scope,
        receive: Receive,
        headers: Mapping[str, str],
        request_id: str,
        held: contextlib.ExitStack,
    ) -> None:
        self._service, self._scope, self._receive = service, scope, receive
        self._headers, self._request_id, self._held = headers, request_id, held
        self._listener: asyncio.Task[Message] | None = None
        self._body_over = False

    async def receive(self) -> Message:
        """For the response, which wants to hear that its client is gone; the listener may know already."""
        return await (self._receive() if self._listener is None else asyncio.shield(self._listener))

    async def respond(self) -> Response:
        try:
            return await self._respond()
        except Exception as error:
            refused = refusal_of(error)
            if refused is None:
                log.exception("request %s failed", self._request_id)
                refused = Refused(500, "internal", f"this should not happen; request {self._request_id}")
            elif refused.status == 503:
                self._service.tell(self._request_id, error)
            return _refusal(refused)

    async def _respond(self) -> Response:
        service, headers = self._service, self._headers
        if sum(len(name) + len(value) for name, value in self._scope["headers"]) > HEADERS_MAX:
            raise Refused(400, "headers_too_large", f"at most {HEADERS_MAX} bytes of headers are read")
        check_host(headers, service._hosts)
        method = self._scope["method"]
        if method == "OPTIONS" and (allowed := preflight_headers(headers, service._origins)) is not None:
            return Response(status_code=204, headers=allowed)
        route, path = service._table.find(method, path_parts(self._scope))
        check_origin(method, headers, service._origins)
        if route.role is None:
            return await self._handle(route, path, EVERYBODY)
        room = service._waiting_room if route.waits else service._room
        self._held.enter_context(room.enter())
        if service._gate.fresh:  # then nothing is waited for
            caller = await self._admit()
        else:
            async with asyncio.timeout(service._patience):
                caller = await self._admit()
        if not caller.may(route.role):
            raise forbidden(f"this key has not the role {route.role}")
        return await self._handle(route, path, caller)

    async def _admit(self) -> Caller:
        address = (self._scope.get("client") or ("",))[0]
        try:
            caller = await self._service._gate.admit(self._headers)
        except Refused:
            self._service._turnstile.pass_one(f"unknown {address}")
            raise
        self._service._turnstile.pass_one(address if caller is EVERYBODY else caller.id)
        return caller

    async def _handle(self, route: Route, path: dict[str, str], caller: Caller) -> Response:
        query = _read_query(route, self._scope["query_string"])
        body = await self._read_body(route)
        if route.role == "admin":
            await self._write_down(route, path, caller, body)
        leaving = None
        if route.waits:
            leaving = self._held.enter_context(self._service.leaving())
            self._held.callback(self._hear_of_leaving(leaving))
        ask = Ask(self._service.app, self._service._hub, caller, path, query, body, self._headers, leaving)
        if route.waits:
            reply = await route.handler(ask)
        else:
            async with asyncio.timeout(BULK_SECONDS if route.bulk else self._service._patience):
                reply = await route.handler(ask)
        if reply.stream is not None:
            return _Stream(reply.stream)
        if reply.text is not None:
            return Response(reply.text, reply.status, headers={"Content-Type": route.text or "text/plain"})
        return _json(reply.body, reply.status)

    def _hear_of_leaving(self, leaving: asyncio.Event) -> Any:
        """Listen for the client's going away while its request is worked on."""
        listener = self._listener = asyncio.ensure_future(self._gone())
        listener.add_done_callback(lambda _: leaving.set())
        return listener.cancel

    async def _gone(self) -> Message:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return message

    async def _write_down(self, route: Route, path: dict[str, str], caller: Caller, body: object) -> None:
        """Before it is done, so that nothing is done that the audit log does not know."""
        target = _encode({**path, **(msgspec.to_builtins(body) or {})}).decode()
        audit_log.info("%s by %s: %s (request %s)", route.name, caller.name, target, self._request_id)
        async with asyncio.timeout(self._service._patience):
            await self._service.app.keys.arecord(
                f"{caller.name} ({caller.id})", route.name, target, request=self._request_id
            )

    async def _read_body(self, route: Route) -> object:
        if route.body is None:
            return None
        kind = self._headers.get("content-type", "")
        data = await self._read_all()
        if not data and not route.body_needed:
            return route.body()
        if kind.partition(";")[0].strip().lower() != "application/json":
            raise Refused(400, "invalid_content_type", "send application/json", "Content-Type")
        if self._headers.get("content-encoding", "identity").lower() != "identity":
            raise Refused(400, "invalid_content_encoding", "send it uncompressed", "Content-Encoding")
        return msgspec.json.decode(data, type=route.read_as or route.body)

    async def _read_all(self) -> bytes:
        most = self._service.app.settings.max_request_size
        said = self._headers.get("content-length", "0")
        size = int(said) if said.isdigit() and int(said) > most else 0
        chunks: list[bytes] = []
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while size <= most and (chunk := await self._chunk()) is not None:
                    chunks.append(chunk)
                    size += len(chunk)
                    if size > _SMALL:
                        self._service._load.add(len(chunk))
                        self._held.callback(self._service._load.remove, len(chunk))
        except TimeoutError:
            raise Refused(400, "body_too_slow", f"it did not arrive within {BODY_SECONDS:g} s") from None
        if size > most:
            await self._drain(most * _DRAIN_TIMES - size)
            raise Refused(413, "request_too_large", f"at most {most} bytes are read (max_request_size)")
        return b"".join(chunks)

    async def _chunk(self) -> bytes | None:
        """The next piece of the body; None after the last."""
        if self._body_over:
            return None
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "gone", "the client went away")
        self._body_over = not message.get("more_body", False)
        body: bytes = message.get("body", b"")
        return body

    async def _drain(self, most: int) -> None:
        """Let a client that is still sending finish for a moment: else it may not read why it was refused."""
        with contextlib.suppress(TimeoutError, Refused):
            async with asyncio.timeout(_DRAIN_SECONDS):
                while most > 0 and (chunk := await self._chunk()) is not None:
                    most -= len(chunk)


class _Stream(StreamingResponse):
    """Server-sent events."""

    def __init__(self, events: AsyncIterator[bytes]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


def _read_query(route: Route, raw: bytes) -> object:
    if route.role is None:
        return None
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError:
        raise Refused(400, "invalid_query", "the query is not percent-encoded text in UTF-8") from None
    given: dict[str, str] = {}
    for name, value in pairs:
        if name in given:
            raise Refused(422, "invalid_query", f"{name} is given twice", name)
        given[name] = value
    if route.query is not None:
        # a form that is not filled in sends `state=`: that filters by nothing
        given = {
            name: value for name, value in given.items() if value or name not in route.query.__struct_fields__
        }
        query = msgspec.convert(given, route.query, strict=False)
        for name in given:
            if getattr(query, name) is None:  # the text `null`, which msgspec takes for nothing
                raise Refused(422, f"invalid_{name}", f"{name} is not given as {given[name]!r}", name)
        return query
    if given:
        raise Refused(422, "invalid_query", f"there is no parameter {next(iter(given))!r}", next(iter(given)))
    return None


def _json(body: object, status: int) -> Response:
    return Response(_encode(body), status, media_type="application/json")


def _refusal(refused: Refused) -> Response:
    told = ErrorOut(error=ErrorBody(code=refused.code, message=refused.message, field=refused.field))
    response = _json(told, refused.status)
    for name, value in refused.headers.items():
        response.headers[name] = value
    return response


def asgi(app: App, *, open: bool = False) -> Service:
    """The HTTP API of an app, to be mounted into a web application or run by any ASGI server.

        web = Starlette(routes=[Mount("/dray", dray.serve.asgi(app))])

    Without keys nobody gets in, unless `open` says that everybody may: when your own application protects the
    path. Settings (`api_keys`, `key_rate`, `cors_origins`, …) are those of the app.
    """
    hosts = frozenset(app.settings.allowed_hosts) or None
    return Service(app, open=open, hosts=hosts)
