"""The table of routes: what one is, how a request finds its own, and what a handler is given and gives back.

One table drives routing, roles and the OpenAPI document, so that none of them can be forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec

from dray.app import App
from dray.keys import Role
from dray.serve.callers import Caller
from dray.serve.refusals import Refused

if TYPE_CHECKING:
    from dray.serve.feed import Hub

Method = Literal["GET", "POST", "PUT", "DELETE"]
T = TypeVar("T")
BULK_SECONDS: Final = 60.0
"""For how long a change to many jobs may go on. It is made in steps: repeated, it goes on with the rest."""


class Ask:
    """One request, as handlers see it: checked and in our own types."""

    def __init__(
        self,
        app: App,
        hub: Hub,
        caller: Caller,
        path: Mapping[str, str],
        query: Any,
        body: Any,
        headers: Mapping[str, str],
        leaving: asyncio.Event | None,
    ) -> None:
        self.app, self.hub, self.caller = app, hub, caller
        self.path, self.query, self.body, self.headers = path, query, body, headers
        self._leaving = leaving
        """Set when the server stops or the client is gone; only routes that wait have it."""

    async def unless_leaving(self, wanted: Awaitable[T]) -> T | None:
        """Wait for something, but no longer than anybody is there to hear of it."""
        if self._leaving is None:
            return await wanted
        task = asyncio.ensure_future(wanted)
        leaving = asyncio.ensure_future(self._leaving.wait())
        try:
            await asyncio.wait((task, leaving), return_when=asyncio.FIRST_COMPLETED)
            return await task if task.done() else None
        finally:
            for one in (task, leaving):
                one.cancel()
            await asyncio.gather(task, leaving, return_exceptions=True)


class Reply(msgspec.Struct, frozen=True):
    """What a handler gives back: a body, a text, or a stream of server-sent events."""

    body: object = None
    status: int = 200
    stream: AsyncIterator[bytes] | None = None
    text: str | None = None
    """Of the route's media type."""


Handler = Callable[[Ask], Awaitable[Reply]]


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path."""

    method: Method
    path: str
    handler: Handler
    role: Role | None
    """Who may; None: everybody, without a key."""
    summary: str
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    read_as: type[msgspec.Struct] | None = None
    """How the body is read, if not as the document says."""
    body_needed: bool = True
    replies: Mapping[int, type[msgspec.Struct]]
    errors: tuple[int, ...] = ()
    """Statuses of errors beyond those that every route has."""
    waits: bool = False
    """It may last as long as its client likes."""
    bulk: bool = False
    """It may change any number of jobs."""
    streams: bool = False
    text: str | None = None
    """The media type of what it gives back, if that is text."""
    headers: tuple[str, ...] = ()
    """Request headers that mean something to it."""

    @property
    def segments(self) -> tuple[str, ...]:
        return tuple(self.path.strip("/").split("/"))

    @property
    def parameters(self) -> list[str]:
        return [part[1:-1] for part in self.segments if part.startswith("{")]

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"


class Table:
    """Finds the route of a request."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = tuple(routes)
        self._by_length: dict[int, list[tuple[tuple[str, ...], Route]]] = {}
        for route in routes:
            segments = route.segments
            self._by_length.setdefault(len(segments), []).append((segments, route))

    def find(self, method: str, parts: Sequence[str]) -> tuple[Route, dict[str, str]]:
        allowed: dict[str, list[str]] = {}
        for segments, route in self._by_length.get(len(parts), ()):
            values = _fit(segments, parts)
            if values is None:
                continue
            if route.method == method:
                return route, values
            allowed.setdefault(route.path, []).append(route.method)
        if allowed:
            # `/api/jobs/batch` could be the job of that name too; the path that says it outright is meant.
            methods = ", ".join(min(allowed.items(), key=lambda one: one[0].count("{"))[1])
            raise Refused(405, "method_not_allowed", f"{methods} is allowed here", headers={"Allow": methods})
        raise Refused(404, "no_such_path", "nothing is served at this path; see /api/openapi.json")


def _fit(template: Sequence[str], parts: Sequence[str]) -> dict[str, str] | None:
    values = {}
    for wanted, part in zip(template, parts, strict=True):
        if wanted.startswith("{"):
            if not part:
                return None
            values[wanted[1:-1]] = part
        elif wanted != part:
            return None
    return values


def path_parts(scope: Mapping[str, Any]) -> list[str]:
    """The parts of a request's path below where we are mounted, each decoded: an id may hold a slash."""
    raw = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogateescape")
    parts = raw.split(b"?")[0].split(b"/")[1:]
    below = [part for part in scope.get("root_path", "").split("/") if part]
    if below and scope["path"].startswith(scope["root_path"]):
        parts = parts[len(below) :]
    try:
        return [(unquote_to_bytes(part) if b"%" in part else part).decode("utf-8") for part in parts]
    except UnicodeDecodeError:
        raise Refused(400, "invalid_path", "the path is not text in UTF-8") from None
