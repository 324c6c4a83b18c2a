"""The HTTP API as an ASGI app: finds the route of each request, admits it, and sends the reply."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Mapping
from functools import lru_cache
from importlib.metadata import version
from typing import Any, Final

import msgspec
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from dray.app import App
from dray.serve import (
    changes,
    durable,
    enqueue,
    events,
    flows,
    guarantees,
    history,
    jobs,
    keys,
    monitoring,
    queues,
    schedules,
    session,
)
from dray.serve.admission import Admission, ByteLimit
from dray.serve.auth import Access
from dray.serve.browser_security import HEADERS, check_host, check_origin, cors_headers, preflight_headers
from dray.serve.dashboard import dashboard
from dray.serve.deadline import Deadline
from dray.serve.errors import Refused, refusal_of
from dray.serve.event_feed import EventBroadcaster
from dray.serve.http_request import BODY_SECONDS, HttpRequest, body_too_slow
from dray.serve.models import ErrorBody, ErrorOut, Out
from dray.serve.openapi import document
from dray.serve.routes import BULK_SECONDS, Reply, Route, RouteTable
from dray.stats.arrivals import SOURCE

LARGE_REQUESTS: Final = 16
"""Requests of the largest size that are held at a time: `max_requests` of them would be gigabytes."""
_LOG_EVERY = 1.0
"""Seconds between two lines in the log about requests that cannot be served now."""
_encode = msgspec.json.Encoder().encode
log = logging.getLogger("dray.serve")
audit_log = logging.getLogger("dray.audit")


class OpenApi(Out):
    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]


@lru_cache(maxsize=16)
def _document(root: str) -> msgspec.Raw:
    """The OpenAPI document, made once for each path below which it is served."""
    return msgspec.Raw(_encode(document(ROUTES, version("dray"), root)))


async def _show_document(request: HttpRequest) -> Reply:
    return Reply(_document(request.scope.get("root_path", "")))


ROUTES: Final[tuple[Route, ...]] = (
    *enqueue.ROUTES,
    *changes.ROUTES,
    *jobs.ROUTES,
    *durable.ROUTES,
    *flows.ROUTES,
    *queues.ROUTES,
    *schedules.ROUTES,
    *jobs.DEAD_ROUTES,
    *history.ROUTES,
    *events.ROUTES,
    *guarantees.ROUTES,
    *keys.ROUTES,
    *session.ROUTES,
    *monitoring.ROUTES,
    Route("GET", "/api/openapi.json", _show_document, None, "This document", {200: OpenApi}),
)
"""Everything that is served."""


class HttpService:
    """An app over HTTP, for any ASGI server; see `asgi`."""

    def __init__(self, app: App, *, access: Access = "closed", hosts: frozenset[str] | None = None) -> None:
        """`hosts` are the names it answers to; None: any."""
        self.app = app
        self._hosts = hosts
        self._origins = frozenset(app.settings.cors_origins)
        self._routes = RouteTable(ROUTES)
        self._admission = Admission(app, access, "requests")
        self._body_bytes = ByteLimit(app.settings.max_request_size * LARGE_REQUESTS)
        self._events = EventBroadcaster(app)
        self._closing = False
        self._waiting: set[asyncio.Event] = set()
        """Events of the requests that wait, set when there is no more reason to."""
        self._unlogged = 0
        self._logged_at = float("-inf")
        self._zipped = GZipMiddleware(self._answer, minimum_size=1024)

    def close(self) -> None:
        """End streams and waits for results, which could go on for ever. Other requests are finished."""
        self._closing = True
        self._events.close()
        for stopping in self._waiting:
            stopping.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            gzip = b"gzip" in dict(scope["headers"]).get(b"accept-encoding", b"")
            before = SOURCE.set("http")
            try:
                await (self._zipped if gzip else self._answer)(scope, receive, send)
            finally:
                SOURCE.reset(before)
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
        request = HttpRequest(self.app, self._events, scope, receive)
        try:
            try:
                reply = await self._handle(request)
            except Exception as error:
                reply = self._refusal(request, error)
            if reply.stream is not None:
                await self._send_stream(request, reply, reply.stream, send)
                return
            body = reply.body if isinstance(reply.body, bytes) else _encode(reply.body)
            headers = self._headers(request, reply, len(body))
            await send({"type": "http.response.start", "status": reply.status, "headers": headers})
            await send({"type": "http.response.body", "body": body})
        finally:
            request.close()

    def _refusal(self, request: HttpRequest, error: Exception) -> Reply:
        refused = refusal_of(error)
        if refused is None:
            log.exception("request %s failed", request.id, exc_info=error)
            refused = Refused(500, "internal", f"this should not happen; request {request.id}")
        elif refused.status == 503:
            self.log_unserved(request.id, error)
        body = ErrorBody(code=refused.code, message=refused.message, field=refused.field)
        return Reply(ErrorOut(error=body), refused.status, headers=refused.headers)

    async def _handle(self, request: HttpRequest) -> Reply:
        headers, method, peer = request.headers, request.scope["method"], request.peer
        request.check_framing()
        check_host(headers, self._hosts)
        if method == "OPTIONS" and (allowed := preflight_headers(headers, self._origins)) is not None:
            return Reply(b"", 204, headers=allowed)
        scope = request.scope
        route = None if scope.get("root_path") else self._routes.fixed.get((method, scope.get("raw_path")))
        if route is None:
            parts = request.path_parts()
            page = dashboard(parts, scope.get("root_path", "")) if method == "GET" else None
            if page is not None:
                return page
            route, request.path = self._routes.find(method, parts)
        check_origin(method, headers, self._origins)
        if route.role is None:  # open to all: nothing that it sends is read
            return await self._admission.run(peer, route.handler(request), waits=False)
        request.share = self._admission.auth.share_of(peer)
        request.on_close.append(self._admission.enter(request.share, waits=route.waits))
        request.caller = await self._admission.admit(peer, route.role)
        request.query = request.read_query(route.query)
        with Deadline(BODY_SECONDS, body_too_slow) as deadline:
            if route.body is not None:
                kind = route.read_as or route.body
                request.body = await request.read_json(kind, self._body_bytes, needed=route.body_needed)
            if route.role == "admin":
                deadline.extend(self._admission.timeout)
                await self._audit(route, request)
            if not route.waits:
                deadline.extend(BULK_SECONDS if route.bulk else self._admission.timeout)
                return await route.handler(request)
        self._let_wait(request)
        return await self._admission.run(peer, route.handler(request), waits=True)

    def _let_wait(self, request: HttpRequest) -> None:
        stopping = asyncio.Event()
        if self._closing:
            stopping.set()
        self._waiting.add(stopping)
        request.on_close.append(lambda: self._waiting.discard(stopping))
        request.watch_disconnect(stopping)

    async def _audit(self, route: Route, request: HttpRequest) -> None:
        """Recorded before it is done, so that the audit log lacks nothing that was done."""
        caller = request.caller
        target = _encode({**request.path, **(msgspec.to_builtins(request.body) or {})}).decode()
        audit_log.info("%s by %s: %s (request %s)", route.name, caller.name, target, request.id)
        await self.app.keys.arecord(
            f"{caller.name} ({caller.id})",
            route.name,
            target,
            request=request.id,
            changes=route.method != "GET" and not getattr(request.body, "dry_run", False),
        )

    def log_unserved(self, request_id: str, error: Exception) -> None:
        """Log that a request could not be served now; a flood of them is counted."""
        self._unlogged += 1
        now = time.monotonic()
        if now - self._logged_at >= _LOG_EVERY:
            more = f" (and {self._unlogged - 1} more before it)" if self._unlogged > 1 else ""
            log.warning("request %s: %s%s", request_id, error, more)
            self._logged_at, self._unlogged = now, 0

    def _headers(self, request: HttpRequest, reply: Reply, size: int) -> list[tuple[bytes, bytes]]:
        named = _HEADERS | {b"x-request-id": request.id.encode("latin-1")}
        if reply.status != 204:
            named[b"content-length"] = b"%d" % size
            named[b"content-type"] = reply.media_type.encode("latin-1")
        if reply.headers or self._origins:
            named |= _encoded(self._added_headers(request, reply))
        return list(named.items())

    def _added_headers(self, request: HttpRequest, reply: Reply) -> dict[str, str]:
        given = {name.lower(): value for name, value in reply.headers.items()}
        return cors_headers(request.headers, self._origins) | given

    async def _send_stream(
        self, request: HttpRequest, reply: Reply, stream: AsyncGenerator[bytes, None], send: Send
    ) -> None:
        events = _until_refused(self._admission.stream(request.peer, stream))
        headers = {"x-accel-buffering": "no"} | HEADERS | {"x-request-id": request.id}
        headers |= self._added_headers(request, reply)
        response = StreamingResponse(events, media_type="text/event-stream", headers=headers)
        await response(request.scope, request.receive, send)


def _encoded(headers: Mapping[str, str]) -> dict[bytes, bytes]:
    return {name.encode("latin-1"): value.encode("latin-1") for name, value in headers.items()}


_HEADERS: Final = _encoded(HEADERS)


async def _until_refused(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The reply has begun, so that a refusal can only end it. The client comes back and is refused then."""
    with contextlib.suppress(Refused):
        async with contextlib.aclosing(events):
            async for message in events:
                yield message


def asgi(app: App, *, open: bool = False) -> HttpService:
    """The HTTP API of an app, to be mounted into a web application or run by any ASGI server.

        web = Starlette(routes=[Mount("/dray", dray.serve.asgi(app))])

    Without keys no request is answered, unless `open` allows all, whatever keys there are: when your own
    application protects the path. Settings (`api_keys`, `key_rate`, `cors_origins`, …) are those of the app.
    """
    hosts = frozenset(app.settings.allowed_hosts) or None
    return HttpService(app, access="open" if open else "closed", hosts=hosts)
