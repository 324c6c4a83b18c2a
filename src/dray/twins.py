"""One implementation, two ways to call it: `name` blocks, `aname` is awaited.

An operation is a method `async def _name(self, link, …)` of something that has a `client`. Its twins have
the same signature without the link:

    status, astatus = blocks(_status), awaits(_status)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from dray.broker.verbs import run_blocking
from dray.client import Client, Link

P = ParamSpec("P")
T = TypeVar("T")


class HasClient(Protocol):
    @property
    def client(self) -> Client: ...


S = TypeVar("S", bound=HasClient)
Operation = Callable[Concatenate[S, Link, P], Coroutine[Any, Any, T]]


def blocks(operation: Operation[S, P, T]) -> Callable[Concatenate[S, P], T]:
    """The twin that blocks the calling thread."""

    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run_blocking(operation(self, self.client.thread_link(), *args, **kwargs))

    return _named(call, operation, "")


def awaits(operation: Operation[S, P, T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """The twin that is awaited."""

    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await operation(self, await self.client.loop_link(), *args, **kwargs)

    return _named(call, operation, "a")


F = TypeVar("F", bound=Callable[..., Any])


def _named(call: F, operation: Callable[..., Any], prefix: str) -> F:
    """The name, documentation and signature that a reader, or `help()`, expects."""
    name = prefix + operation.__name__.lstrip("_")
    call.__name__, call.__doc__ = name, operation.__doc__
    call.__qualname__ = operation.__qualname__.rpartition(".")[0] + "." + name
    call.__module__ = operation.__module__
    full = inspect.signature(operation)
    shown = [parameter for parameter in full.parameters.values() if parameter.name != "link"]
    call.__signature__ = full.replace(parameters=shown)  # type: ignore[attr-defined]
    return call
