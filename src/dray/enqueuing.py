"""Middleware around enqueue.

    @app.enqueue_middleware
    async def trace(outgoing, call_next):
        outgoing.headers["request"] = request_id.get()
        return await call_next()

Each call goes through the chain by itself; those of one `enqueue_many` still reach the broker together. In
a blocking call there is no event loop: middleware that awaits anything but `call_next` needs `aenqueue`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from dray.call import Call
from dray.client import Link
from dray.errors import DrayError

if TYPE_CHECKING:
    from dray.app import App
    from dray.handle import JobHandle

R = TypeVar("R")


class Outgoing:
    """A call on its way. Middleware may change all of it; the task's signature is checked again."""

    def __init__(self, call: Call[Any]) -> None:
        self.task, self.args, self.kwargs, self.options = (
            call.task,
            call.args,
            dict(call.kwargs),
            call.options,
        )
        self.headers = dict(call.options.headers)
        """Travels with the job: `ctx.headers` where it runs."""


Next = Callable[[], Awaitable[Any]]
EnqueueMiddleware = Callable[[Outgoing, Next], Coroutine[Any, Any, Any]]


class _Barrier:
    """Where a chain waits until all calls of its batch have come as far, and are put together."""

    def __init__(self) -> None:
        self.handle: JobHandle[Any] | None = None
        self.error: Exception | None = None

    def __await__(self) -> Generator[_Barrier, None, JobHandle[Any]]:
        if self.handle is None and self.error is None:
            yield self
        if self.error is not None:
            raise self.error
        assert self.handle is not None  # noqa: S101 (one of the two is set before it is resumed)
        return self.handle


class _Passage:
    """One call going through the chain, a step at a time."""

    def __init__(self, app: App, call: Call[Any]) -> None:
        self.outgoing = Outgoing(call)
        self.barrier = _Barrier()
        self.result: Any = None
        self.waits = False
        self._main = self._from(app.enqueue_middleware_chain, 0)

    async def _from(self, chain: Sequence[EnqueueMiddleware], place: int) -> Any:
        if place == len(chain):
            return await self.barrier
        return await chain[place](self.outgoing, lambda: self._from(chain, place + 1))

    def step(self) -> object | None:
        """Go on until the barrier or the end; returns whatever else was awaited."""
        self.waits = False
        try:
            awaited = self._main.send(None)
        except StopIteration as end:
            self.result = end.value
            return None
        if awaited is self.barrier:
            self.waits = True
            return None
        return awaited or _TURN

    def call(self, app: App) -> Call[Any]:
        outgoing = self.outgoing
        task = app.tasks.get(outgoing.task)
        if task is not None:
            task.hints.check(outgoing.args, outgoing.kwargs)
        return Call(outgoing.task, outgoing.args, outgoing.kwargs, outgoing.options)


_TURN = object()


async def through(app: App, link: Link, calls: Sequence[Call[R]]) -> list[JobHandle[R]]:
    """Send calls through the middleware, then put those that come out at the other end together."""
    passages = [_Passage(app, call) for call in calls]
    for passage in passages:
        await _Driven(passage, link)
    arrived = [passage for passage in passages if passage.waits]
    try:
        headers = [passage.outgoing.headers for passage in arrived]
        handles = await app.put_many(link, [passage.call(app) for passage in arrived], headers)
    except Exception as error:
        for passage in arrived:
            passage.barrier.error = error
        for passage in arrived:
            with suppress(Exception):  # the same error, or what middleware made of it
                await _Driven(passage, link)
        raise
    for passage, handle in zip(arrived, handles, strict=True):
        passage.barrier.handle = handle
        await _Driven(passage, link)
    return [passage.result for passage in passages]


class _Driven:
    """Awaits a passage up to its barrier or end; what its middleware awaits reaches the loop as it is."""

    def __init__(self, passage: _Passage, link: Link) -> None:
        self._passage, self._link = passage, link

    def __await__(self) -> Generator[Any, Any, None]:
        while (awaited := self._passage.step()) is not None:
            if self._link.blocking:
                raise DrayError(
                    "enqueue middleware awaited something that needs an event loop, in a blocking call: "
                    "use aenqueue, or let it await nothing but call_next"
                )
            yield None if awaited is _TURN else awaited
