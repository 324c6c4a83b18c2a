"""Authentication: the key of a request, and what its caller may do and see."""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, Literal, TypeVar

import msgspec

from dray.admin.api_keys import ROLES, ApiKey, Role, digest_of, keys_in_settings
from dray.app import App
from dray.errors import BrokerError
from dray.serve.browser_security import came_through_proxy
from dray.serve.errors import Refused, forbidden

FRESH: Final = 1.0
"""Seconds for which the keys that were read last are trusted: a revoked one may work for so long."""
COOKIE: Final = "dray_key"
"""The cookie in which a browser keeps its key, in base64: see `session`."""
Access = Literal["open", "keyless", "closed"]
"""Callers without a key that the server answers: all; all while there never was a key; none."""
T = TypeVar("T")

Scope = tuple[str | None, str | None]
"""A queue and a task; None means any."""


class Caller(msgspec.Struct, frozen=True):
    """Who sends a request, and what it may do."""

    id: str
    name: str
    roles: frozenset[Role]
    queues: frozenset[str] | None = None
    tasks: frozenset[str] | None = None
    hides_values: bool = False
    """It may not see arguments, results and errors."""

    def has_role(self, role: Role) -> bool:
        return role in self.roles or "admin" in self.roles

    @property
    def limited(self) -> bool:
        return self.queues is not None or self.tasks is not None

    def reaches(self, queue: str | None = None, task: str | None = None) -> bool:
        """Its key is good for this queue and task."""
        return (queue is None or self.queues is None or queue in self.queues) and (
            task is None or self.tasks is None or task in self.tasks
        )

    def need(self, queue: str | None = None, task: str | None = None) -> None:
        """Refuse what is outside its limits."""
        if self.queues is not None and queue is not None and queue not in self.queues:
            raise forbidden(f"this key is not for queue {queue}", "queue")
        if self.tasks is not None and task is not None and task not in self.tasks:
            raise forbidden(f"this key is not for task {task}", "task")

    def scopes(self, queue: str | None = None, task: str | None = None) -> list[Scope]:
        """Pairs of queue and task that together cover what the caller may see within a filter."""
        self.need(queue, task)
        queues: Sequence[str | None] = [queue] if queue or self.queues is None else sorted(self.queues)
        tasks: Sequence[str | None] = [task] if task or self.tasks is None else sorted(self.tasks)
        return [(one, other) for one in queues for other in tasks]


EVERYBODY: Final = Caller("open", "open", frozenset(ROLES))
"""The caller where no key is needed."""


class Peer(msgspec.Struct, frozen=True):
    """The sending side of a request: what it says, and where it comes from."""

    headers: Mapping[str, str]
    """Headers of HTTP or metadata of gRPC, by their names in lower case."""
    address: str = ""
    http_version: str = ""


class Authenticator:
    """Knows the keys; those in the broker are read again when they are a second old."""

    def __init__(self, app: App, access: Access, timeout: float | None = None) -> None:
        """Reading the keys may take `timeout` seconds."""
        self._app, self._access, self._timeout = app, access, timeout
        self._configured = keys_in_settings(app.settings.api_keys)
        self._stored: dict[str, ApiKey] = {}
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()

    async def identify(self, peer: Peer) -> Caller:
        """The caller whose key a request holds; refused with 401 if there is none."""
        if self._access == "open":  # the application that mounts us decides; `Authorization` may be its own
            return EVERYBODY
        if time.monotonic() - self._read_at >= FRESH:
            await self._read_keys()
        secret = secret_in(peer.headers)
        key = None if secret is None else self._find(secret)
        if secret is None or (key is None and secret == secret_in_cookie(peer.headers)):
            return self._without_key(peer)  # a cookie may be older than the server, or another server's
        if key is None:
            raise _unauthorized("nobody knows this key; it may have been revoked")
        if not key.lives(self._app.now()):
            raise _unauthorized("this key has expired")
        return Caller(key.id, key.name, key.roles, key.queues, key.tasks, key.hides_values)

    def share_of(self, peer: Peer) -> str | None:
        """The key whose share of the server a request uses, also before that key is looked up."""
        try:
            return None if self._access == "open" else secret_in(peer.headers)
        except Refused:
            return None

    def _without_key(self, peer: Peer) -> Caller:
        if self._access == "closed" or self._app.keys.ever:
            raise _unauthorized("a key is needed: send it as `Authorization: Bearer KEY`")
        if came_through_proxy(peer.headers, peer.http_version):
            raise _unauthorized(
                "this request came through a proxy, and without keys only this machine is answered:"
                " `dray keys create NAME --role admin` makes a key"
            )
        return EVERYBODY

    def _find(self, secret: str) -> ApiKey | None:
        """Compares every key, so that the time it takes shows nothing."""
        digest = digest_of(secret)
        found = None
        for key in (*self._configured, *self._stored.values()):
            if key.matches(digest):
                found = key
        return found

    async def _read_keys(self) -> None:
        async with asyncio.timeout(self._timeout), self._reading:
            began = time.monotonic()
            if began - self._read_at >= FRESH:  # not read while this waited for the lock
                self._stored = {key.id: key for key in await self._app.keys.alist()}
                if self._configured and not self._app.keys.ever:
                    await self._app.keys.aguard()
                self._read_at = began

    async def while_valid(self, peer: Peer, work: Awaitable[T]) -> T:
        """Await something; it is cancelled and refused once the key is not valid any more."""
        if self._access == "open":
            return await work
        refusal = asyncio.ensure_future(self._refusal(peer))
        try:
            return await _unless(refusal, work)
        finally:
            refusal.cancel()

    async def stream_while_valid(
        self, peer: Peer, stream: AsyncGenerator[T, None]
    ) -> AsyncGenerator[T, None]:
        """A stream that is refused as soon as the key is not valid any more."""
        refusal = asyncio.ensure_future(self._refusal(peer))
        try:
            async with aclosing(stream):
                while not refusal.done():
                    yield await _unless(refusal, anext(stream))
                raise refusal.result()
        except StopAsyncIteration:
            return
        finally:
            refusal.cancel()

    async def _refusal(self, peer: Peer) -> Refused:
        while True:
            await asyncio.sleep(FRESH)
            try:
                await self.identify(peer)
            except Refused as refused:
                return refused
            except (BrokerError, TimeoutError):  # the key was valid when the broker last answered
                continue


async def until(stop: asyncio.Future[Any], work: Awaitable[T]) -> asyncio.Future[T] | None:
    """Wait for work, and return it done; None if `stop` was done first, after the work was cancelled."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        return task if task.done() else None
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        elif not task.cancelled():
            task.exception()  # seen, also if this wait was cancelled at the same time


async def _unless(refusal: asyncio.Future[Refused], work: Awaitable[T]) -> T:
    done = await until(refusal, work)
    if done is None:
        raise refusal.result()
    return done.result()


def secret_in(headers: Mapping[str, str]) -> str | None:
    if "authorization" in headers:
        scheme, _, secret = headers["authorization"].partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            raise _unauthorized("send the key as `Authorization: Bearer KEY`")
        return secret.strip()
    return headers.get("x-api-key") or secret_in_cookie(headers)


def secret_in_cookie(headers: Mapping[str, str]) -> str | None:
    """The key that a browser keeps; pages of other sites cannot make it send the cookie."""
    for part in headers["cookie"].split(";") if "cookie" in headers else ():
        name, _, value = part.strip().partition("=")
        if name == COOKIE:
            try:
                return base64.b64decode(value, altchars=b"-_", validate=True).decode() or None
            except (binascii.Error, ValueError):
                return None
    return None


def _unauthorized(message: str) -> Refused:
    return Refused(401, "unauthorized", message, headers={"WWW-Authenticate": 'Bearer realm="dray"'})
