"""One implementation, two ways to call it: `name` blocks, `aname` is awaited.

An operation is a method `async def _name(self, link, …)`. Its two public forms have the same signature
without the link:

    status, astatus = sync_and_async(_status)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from dray.broker.verbs import run_blocking
from dray.client.client import Client
from dray.client.link import Link

if TYPE_CHECKING:
    from dray.app import App

P = ParamSpec("P")
T = TypeVar("T")


class ClientOwner(Protocol):
    @property
    def client(self) -> Client: ...


class AppApi:
    """Base of the parts of an app: `app.jobs`, `app.queues`, `app.schedules` …"""

    def __init__(self, app: App) -> None:
        self._app = app

    @property
    def client(self) -> Client:
        return self._app.client


S = TypeVar("S", bound=ClientOwner)
Blocking = Callable[Concatenate[S, P], T]
Awaited = Callable[Concatenate[S, P], Coroutine[Any, Any, T]]


def sync_and_async(
    operation: Callable[Concatenate[S, Link, P], Coroutine[Any, Any, T]],
) -> tuple[Blocking[S, P, T], Awaited[S, P, T]]:
    """The blocking and the awaited form of an operation."""

    def blocking(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run_blocking(operation(self, self.client.thread_link(), *args, **kwargs))

    async def awaited(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await operation(self, await self.client.loop_link(), *args, **kwargs)

    _describe(blocking, operation, "")
    _describe(awaited, operation, "a")
    return blocking, awaited


def _describe(method: Callable[..., Any], operation: Callable[..., Any], prefix: str) -> None:
    """Set the name, documentation and signature that a reader, or `help()`, expects."""
    name = prefix + operation.__name__.lstrip("_")
    method.__name__, method.__doc__ = name, operation.__doc__
    method.__qualname__ = operation.__qualname__.rpartition(".")[0] + "." + name
    method.__module__ = operation.__module__
    full = inspect.signature(operation)
    shown = [parameter for parameter in full.parameters.values() if parameter.name != "link"]
    method.__signature__ = full.replace(parameters=shown)  # type: ignore[attr-defined]
