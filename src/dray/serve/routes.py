"""The table of routes: it drives routing, roles and the OpenAPI document, so that none can be forgotten."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from dray.admin.api_keys import Role
from dray.serve.errors import Refused
from dray.serve.http_request import HttpRequest

Method = Literal["GET", "POST", "PUT", "DELETE"]
BULK_SECONDS: Final = 60.0
"""Time for a change to many jobs. It is made in steps: repeated, it goes on with the rest."""


class Reply(msgspec.Struct, frozen=True):
    """A handler's answer: a body (bytes, or a value for JSON) or a stream of server-sent events."""

    body: object = None
    status: int = 200
    stream: AsyncGenerator[bytes, None] | None = None
    media_type: str = "application/json"
    headers: Mapping[str, str] = {}


Handler = Callable[[HttpRequest], Awaitable[Reply]]


class Route(msgspec.Struct, frozen=True):
    """One method of one path."""

    method: Method
    path: str
    handler: Handler
    role: Role | None
    """The role that a caller needs; None: no key is needed."""
    summary: str
    replies: Mapping[int, type[msgspec.Struct]]
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    read_as: type[msgspec.Struct] | None = None
    """The type as which the body is read, if not the documented one."""
    body_needed: bool = True
    errors: tuple[int, ...] = ()
    """Statuses of errors beyond those that every route has."""
    waits: bool = False
    """It may last as long as its client likes."""
    bulk: bool = False
    """It may change any number of jobs."""
    streams: bool = False
    text: str | None = None
    """The media type of a reply that is text."""
    headers: tuple[str, ...] = ()
    """Request headers that it reads."""

    @property
    def segments(self) -> tuple[str, ...]:
        return tuple(self.path.strip("/").split("/"))

    @property
    def parameters(self) -> list[str]:
        return [part[1:-1] for part in self.segments if part.startswith("{")]

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"


class RouteTable:
    """Finds the route of a request."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._by_length: dict[int, list[tuple[tuple[str, ...], Route]]] = {}
        self.fixed: dict[tuple[str, bytes | None], Route] = {
            (route.method, route.path.encode()): route for route in routes if not route.parameters
        }
        """Routes without parameters, by method and path."""
        for route in routes:
            segments = route.segments
            self._by_length.setdefault(len(segments), []).append((segments, route))

    def find(self, method: str, parts: Sequence[str]) -> tuple[Route, dict[str, str]]:
        """The route, and the values of its parameters."""
        allowed: dict[str, list[str]] = {}
        for segments, route in self._by_length.get(len(parts), ()):
            values = _match(segments, parts)
            if values is None:
                continue
            if route.method == method:
                return route, values
            allowed.setdefault(route.path, []).append(route.method)
        if allowed:
            # `/api/jobs/batch` could be the job of that name too; the path without parameters is meant.
            methods = ", ".join(min(allowed.items(), key=lambda one: one[0].count("{"))[1])
            raise Refused(405, "method_not_allowed", f"{methods} is allowed here", headers={"Allow": methods})
        raise Refused(404, "no_such_path", "nothing is served at this path; see /api/openapi.json")


def _match(template: Sequence[str], parts: Sequence[str]) -> dict[str, str] | None:
    values = {}
    for wanted, part in zip(template, parts, strict=True):
        if wanted.startswith("{"):
            if not part:
                return None
            values[wanted[1:-1]] = part
        elif wanted != part:
            return None
    return values
