"""Who asks: the key of a request, and what it may do and see."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from dray.app import App
from dray.keys import ROLES, Key, Role, digest_of, keys_in_settings
from dray.serve.refusals import Refused, forbidden

FRESH: Final = 1.0
"""Seconds for which the keys that were read last are trusted: so long may a revoked one still work."""

Scope = tuple[str | None, str | None]
"""A queue and a task; None means any."""


class Caller(msgspec.Struct, frozen=True):
    """Who asks."""

    id: str
    name: str
    roles: frozenset[Role]
    queues: frozenset[str] | None = None
    tasks: frozenset[str] | None = None

    def may(self, role: Role) -> bool:
        return role in self.roles or "admin" in self.roles

    @property
    def limited(self) -> bool:
        return self.queues is not None or self.tasks is not None

    def reaches(self, queue: str | None = None, task: str | None = None) -> bool:
        """Whether something of this queue and task is any of its business."""
        return (queue is None or self.queues is None or queue in self.queues) and (
            task is None or self.tasks is None or task in self.tasks
        )

    def need(self, queue: str | None = None, task: str | None = None) -> None:
        """Refuse what is outside its limits."""
        if not self.reaches(queue=queue):
            raise forbidden(f"this key is not for queue {queue}", "queue")
        if not self.reaches(task=task):
            raise forbidden(f"this key is not for task {task}", "task")

    def scopes(self, queue: str | None = None, task: str | None = None) -> list[Scope]:
        """What it may look through, given a filter: pairs whose jobs together are all that it reaches."""
        self.need(queue, task)
        queues: Sequence[str | None] = [queue] if queue or self.queues is None else sorted(self.queues)
        tasks: Sequence[str | None] = [task] if task or self.tasks is None else sorted(self.tasks)
        return [(one, other) for one in queues for other in tasks]


EVERYBODY: Final = Caller("open", "open", frozenset(ROLES))
"""Where there are no keys and the server is open."""


class Gate:
    """Knows the keys. Those in the broker are read again when they are older than a moment."""

    def __init__(self, app: App, *, open: bool) -> None:
        self._app, self._open = app, open
        self._configured = keys_in_settings(app.settings.api_keys)
        self._stored: dict[str, Key] = {}
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()

    async def admit(self, headers: Mapping[str, str]) -> Caller:
        """Who sends these headers; refused with 401 when nobody knows."""
        await self._refresh()
        secret = _secret(headers)
        if secret is None:
            if self._open and not self._configured and not self._stored:
                return EVERYBODY
            raise _unknown("a key is needed: send it as `Authorization: Bearer KEY`")
        key = self._find(secret)
        if key is None:
            raise _unknown("nobody knows this key; it may have been revoked")
        if key.expires is not None and key.expires <= self._app.now():
            raise _unknown("this key has expired")
        return Caller(key.id, key.name, key.roles, key.queues, key.tasks)

    def _find(self, secret: str) -> Key | None:
        """Every key is compared, whichever fits: time tells nothing."""
        digest = digest_of(secret)
        found = None
        for key in (*self._configured, *self._stored.values()):
            if key.matches(digest):
                found = key
        return found

    @property
    def fresh(self) -> bool:
        """Whether the keys need not be read now."""
        return time.monotonic() - self._read_at < FRESH

    async def _refresh(self) -> None:
        if self.fresh:
            return
        async with self._reading:
            if not self.fresh:
                began = time.monotonic()
                self._stored = {key.id: key for key in await self._app.keys.alist()}
                self._read_at = began


def _secret(headers: Mapping[str, str]) -> str | None:
    if "authorization" in headers:
        scheme, _, secret = headers["authorization"].partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            raise _unknown("send the key as `Authorization: Bearer KEY`")
        return secret.strip()
    return headers.get("x-api-key")


def _unknown(message: str) -> Refused:
    return Refused(401, "unauthorized", message, headers={"WWW-Authenticate": 'Bearer realm="dray"'})
