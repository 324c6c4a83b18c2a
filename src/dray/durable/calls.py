"""The operations of `ctx` as a task sees them: `Operations` are awaited, `BlockingOperations` block."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, TypeVarTuple, Unpack, overload

import msgspec

from dray.durable.identity import check_event, key_text
from dray.job import check_name
from dray.options import Duration
from dray.policy import BackoffFunction

if TYPE_CHECKING:
    from dray.task import Call

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Undo = Callable[[T], object]
Key = str | int | None


class First(NamedTuple):
    """The operation that ended first: its place among those given, and its value."""

    which: int
    value: Any


class StepOptions(msgspec.Struct, frozen=True):
    """The options of one `ctx.step`."""

    key: str | None
    name: str | None
    retries: int | None
    backoff: str | BackoffFunction | None
    undo: Callable[[Any], object] | None
    undo_retries: int | None
    at_most_once: bool


class Steps(Protocol):
    """The durable part of a run. In an async task the results are coroutines, in a plain one the values."""

    def step(self, function: Callable[..., Any], args: tuple[Any, ...], options: StepOptions) -> Any: ...
    def sleep(self, length: Duration | datetime, key: str | None) -> Any: ...
    def event(self, name: str, timeout: Duration | None, type: Any, key: str | None) -> Any: ...
    def call(self, call: Call[Any], key: str | None) -> Any: ...
    def first(self, operations: tuple[Any, ...]) -> Any: ...
    def remember(self, name: str, make: Callable[[], T], type: type[T]) -> T:
        """A value made once, then remembered."""
        ...

    def changed(self, name: str) -> bool: ...
    def now(self) -> datetime: ...


def _options(
    key: Key,
    name: str | None,
    retries: int | None,
    backoff: str | BackoffFunction | None,
    undo: Callable[[Any], object] | None,
    undo_retries: int | None,
    at_most_once: bool,
) -> StepOptions:
    return StepOptions(key_text(key), name, retries, backoff, undo, undo_retries, at_most_once)


class _Base:
    """Operations that return at once, in every kind of task."""

    __slots__ = ()

    def _steps(self) -> Steps:
        raise NotImplementedError

    def now(self) -> datetime:
        """The time (UTC), remembered: the same after a restart."""
        steps = self._steps()
        return steps.remember("now()", steps.now, datetime)

    def random(self) -> float:
        """A random number from 0 to 1, remembered."""
        return self._steps().remember("random()", random.random, float)

    def uuid(self) -> uuid.UUID:
        """A random UUID, remembered: good as an idempotency key of the next step."""
        return self._steps().remember("uuid()", uuid.uuid4, uuid.UUID)

    def changed(self, name: str) -> bool:
        """Mark a change of the code: False for a job that was past this place before the change."""
        return self._steps().changed(check_name("name", name))


class Operations(_Base):
    """The operations of an async task, to be awaited. A plain task gets the values: see `ctx.blocking`."""

    __slots__ = ()

    @overload
    def step(
        self,
        function: Callable[[Unpack[Ts]], Coroutine[Any, Any, T]],
        *args: *Ts,
        key: Key = None,
        name: str | None = None,
        retries: int | None = None,
        backoff: str | BackoffFunction | None = None,
        undo: Undo[T] | None = None,
        undo_retries: int | None = None,
        at_most_once: bool = False,
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(
        self,
        function: Callable[[Unpack[Ts]], T],
        *args: *Ts,
        key: Key = None,
        name: str | None = None,
        retries: int | None = None,
        backoff: str | BackoffFunction | None = None,
        undo: Undo[T] | None = None,
        undo_retries: int | None = None,
        at_most_once: bool = False,
    ) -> Coroutine[Any, Any, T]: ...
    def step(  # type: ignore[misc]  # mypy does not compare *args of a TypeVarTuple
        self,
        function: Callable[..., Any],
        *args: Any,
        key: Key = None,
        name: str | None = None,
        retries: int | None = None,
        backoff: str | BackoffFunction | None = None,
        undo: Undo[Any] | None = None,
        undo_retries: int | None = None,
        at_most_once: bool = False,
    ) -> Any:
        """Call a function once, and remember its value or final error.

        It is identified by its name and `key`, else by the count of earlier calls of that name. Between its
        tries (`retries`, `backoff`; by default those of the job) the job holds no slot. `undo`, a task or a
        function of a module, is called with the value if the job fails or is cancelled later. With
        `at_most_once` a step whose end is unknown raises `StepUncertain` instead of running again.
        """
        options = _options(key, name, retries, backoff, undo, undo_retries, at_most_once)
        return self._steps().step(function, args, options)

    def sleep(self, length: Duration | datetime, *, key: Key = None) -> Coroutine[Any, Any, None]:
        """Sleep for a length of time, or until a moment. From a second on the job holds no slot meanwhile."""
        slept: Coroutine[Any, Any, None] = self._steps().sleep(length, key_text(key))
        return slept

    @overload
    def event(
        self, name: str, *, timeout: Duration | None = None, type: type[T], key: Key = None
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def event(
        self, name: str, *, timeout: Duration | None = None, key: Key = None
    ) -> Coroutine[Any, Any, Any]: ...
    def event(
        self, name: str, *, timeout: Duration | None = None, type: Any = Any, key: Key = None
    ) -> Coroutine[Any, Any, Any]:
        """The next event of this name that is sent to the job; `EventTimeout` if none comes in time."""
        received: Coroutine[Any, Any, Any] = self._steps().event(
            check_event(name), timeout, type, key_text(key)
        )
        return received

    def call(self, call: Call[T], *, key: Key = None) -> Coroutine[Any, Any, T]:
        """Run a job of another task, and wait for its result: `await ctx.call(ship.call(id))`."""
        called: Coroutine[Any, Any, T] = self._steps().call(call, key_text(key))
        return called

    def first(self, *operations: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, First]:
        """The first of several operations to end, remembered; the others are given up."""
        won: Coroutine[Any, Any, First] = self._steps().first(operations)
        return won


class BlockingOperations(_Base):
    """The operations of a plain task, typed as what they are there: calls that block and return the value."""

    __slots__ = ("_of",)

    def __init__(self, steps: Callable[[], Steps]) -> None:
        self._of = steps

    def _steps(self) -> Steps:
        return self._of()

    def step(
        self,
        function: Callable[[Unpack[Ts]], T],
        *args: *Ts,
        key: Key = None,
        name: str | None = None,
        retries: int | None = None,
        backoff: str | BackoffFunction | None = None,
        undo: Undo[T] | None = None,
        undo_retries: int | None = None,
        at_most_once: bool = False,
    ) -> T:
        """As `ctx.step`."""
        options = _options(key, name, retries, backoff, undo, undo_retries, at_most_once)
        value: T = self._steps().step(function, args, options)
        return value

    def sleep(self, length: Duration | datetime, *, key: Key = None) -> None:
        """As `ctx.sleep`."""
        self._steps().sleep(length, key_text(key))

    @overload
    def event(self, name: str, *, timeout: Duration | None = None, type: type[T], key: Key = None) -> T: ...
    @overload
    def event(self, name: str, *, timeout: Duration | None = None, key: Key = None) -> Any: ...
    def event(self, name: str, *, timeout: Duration | None = None, type: Any = Any, key: Key = None) -> Any:
        """As `ctx.event`."""
        return self._steps().event(check_event(name), timeout, type, key_text(key))

    def call(self, call: Call[T], *, key: Key = None) -> T:
        """As `ctx.call`."""
        value: T = self._steps().call(call, key_text(key))
        return value

    def first(self, *operations: Callable[[], object]) -> First:
        """As `ctx.first`, of functions: `ctx.first(lambda: ctx.event("paid"), lambda: ctx.sleep("3d"))`."""
        won: First = self._steps().first(operations)
        return won
