"""Middleware around enqueue.

    @app.enqueue_middleware
    async def trace(outgoing, call_next):
        outgoing.headers["request"] = request_id.get()
        return await call_next()

Each call goes through the chain by itself; those of one `enqueue_many` still reach the broker together. In
a blocking call there is no event loop: middleware that awaits anything but `call_next` needs `aenqueue`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from dray.call import Call, Using, read_options
from dray.client import Link
from dray.errors import DrayError

if TYPE_CHECKING:
    from dray.app import App
    from dray.handle import JobHandle

R = TypeVar("R")


class Outgoing:
    """A call on its way. Middleware may change all of it; the task's signature is checked again."""

    def __init__(self, call: Call[Any]) -> None:
        self.task, self.args, self.kwargs = call.task, call.args, dict(call.kwargs)
        self.options = call.options
        self.headers = dict(call.options.headers)
        """Travels with the job: `ctx.headers` where it runs."""

    def use(self, **options: Unpack[Using]) -> None:
        """Set options, as `task.using(...)` does: `outgoing.use(queue="slow")`."""
        self.options = read_options(options, self.options)
        self.headers.update(options.get("headers") or {})


Next = Callable[[], Awaitable[Any]]
EnqueueMiddleware = Callable[[Outgoing, Next], Coroutine[Any, Any, Any]]


class _Passage:
    """One call going through the chain, up to where it waits for the broker together with the others."""

    def __init__(self, app: App, call: Call[Any]) -> None:
        self._app, self._chain = app, app.enqueue_middleware_chain
        self.outgoing = Outgoing(call)
        self.call: Call[Any] | None = None
        """What came out at the other end; None if no middleware let it through (yet)."""

    async def send(self, landing: Callable[[], Awaitable[JobHandle[Any]]]) -> Any:
        """What the outmost middleware returns, which is mostly the handle."""

        async def arrive() -> JobHandle[Any]:
            self.call = self._outcome()
            return await landing()

        return await self._from(0, arrive)

    async def _from(self, place: int, arrive: Callable[[], Awaitable[JobHandle[Any]]]) -> Any:
        if place == len(self._chain):
            return await arrive()
        return await self._chain[place](self.outgoing, lambda: self._from(place + 1, arrive))

    def _outcome(self) -> Call[Any]:
        outgoing = self.outgoing
        task = self._app.tasks.get(outgoing.task)
        if task is not None:
            task.hints.check_call(outgoing.args, outgoing.kwargs)
        return Call(outgoing.task, outgoing.args, outgoing.kwargs, outgoing.options)


async def through(app: App, link: Link, call: Call[R]) -> JobHandle[R]:
    """Send one call through the middleware. `call_next` puts it: trying again after an error is possible."""
    passage = _Passage(app, call)

    async def landing() -> JobHandle[R]:
        arrived = passage.call
        assert arrived is not None  # noqa: S101 (set by `send` on the way here)
        return await app.put_one(link, arrived, passage.outgoing.headers)

    sent = passage.send(landing)
    result: JobHandle[R] = _run_here(sent) if link.blocking else await sent
    return result


def _run_here(sent: Coroutine[Any, Any, Any]) -> Any:
    """To the end, without an event loop: nothing but foreign awaits can suspend it."""
    try:
        _advance(sent)
        raise DrayError(_NEEDS_LOOP)
    except StopIteration as end:
        return end.value
    finally:
        sent.close()


def _advance(sent: Coroutine[Any, Any, Any]) -> object:
    """Up to the next thing that it awaits; StopIteration at its end."""
    try:
        return sent.send(None)
    except RuntimeError as error:
        if "no running event loop" in str(error):
            raise DrayError(_NEEDS_LOOP) from error
        raise


async def through_many(app: App, link: Link, calls: Sequence[Call[R]]) -> list[JobHandle[R]]:
    """Send calls through the middleware, then put those that come out at the other end together."""
    kind = _Here if link.blocking else _OnLoop
    walks: list[_Here] | list[_OnLoop] = [kind(_Passage(app, call)) for call in calls]  # type: ignore[assignment]
    try:
        for walk in walks:
            await walk.arrive()
        arrived = [walk for walk in walks if not walk.ended]
        sent = [walk.passage.call for walk in arrived]
        headers = [walk.passage.outgoing.headers for walk in arrived]
        try:
            landed = await app.put_each(link, [call for call in sent if call is not None], headers)
        except Exception as error:  # nothing was put; each hears of it, and may know what to do
            landed = [error] * len(arrived)
        for walk, one in zip(arrived, landed, strict=True):
            await walk.land(one)
    finally:
        for walk in walks:
            walk.close()
    return app.together([walk.result for walk in walks])


class _Here:
    """A passage without an event loop: run by hand, from the barrier on when its batch was put."""

    def __init__(self, passage: _Passage) -> None:
        self.passage, self.ended = passage, False
        self.result: Any = None
        self._barrier = _Barrier()
        self._main = passage.send(self._barrier.landing)

    async def arrive(self) -> None:
        self._step()
        if isinstance(self.result, Exception):
            raise self.result

    async def land(self, landed: Any) -> None:
        self._barrier.landed = landed
        self._step()

    def _step(self) -> None:
        try:
            awaited = _advance(self._main)
        except StopIteration as end:
            self.result, self.ended = end.value, True
        except Exception as error:
            self.result, self.ended = error, True
        else:
            if awaited is not self._barrier:
                raise DrayError(_NEEDS_LOOP)

    def close(self) -> None:
        self._main.close()


_NEEDS_LOOP = (
    "enqueue middleware awaited something that needs an event loop, in a blocking call: "
    "use aenqueue, or let it await nothing but call_next"
)


class _Barrier:
    """Where a passage by hand stops until its batch was put."""

    def __init__(self) -> None:
        self.landed: Any = None

    async def landing(self) -> JobHandle[Any]:
        return await self

    def __await__(self) -> Generator[_Barrier, None, JobHandle[Any]]:
        if self.landed is None:
            yield self
        if isinstance(self.landed, Exception):
            raise self.landed
        handle: JobHandle[Any] = self.landed
        return handle


class _OnLoop:
    """A passage as a task of its own, so that its middleware may await whatever it likes."""

    def __init__(self, passage: _Passage) -> None:
        self.passage = passage
        self.result: Any = None
        self._landed: asyncio.Future[JobHandle[Any]] | None = None
        self._task: asyncio.Task[Any] | None = None

    @property
    def ended(self) -> bool:
        return self._task is not None and self._task.done()

    async def arrive(self) -> None:
        loop = asyncio.get_running_loop()
        landed, arrived = loop.create_future(), loop.create_future()
        self._landed = landed

        async def landing() -> JobHandle[Any]:
            if not arrived.done():
                arrived.set_result(None)
            return await asyncio.shield(landed)  # asked for twice, it is still there

        self._task = loop.create_task(self.passage.send(landing))
        await asyncio.wait((self._task, arrived), return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            self.result = self._task.result()

    async def land(self, landed: Any) -> None:
        assert self._landed is not None and self._task is not None  # noqa: S101, PT018
        if isinstance(landed, Exception):
            self._landed.set_exception(landed)
            self._landed.exception()  # middleware that gave up waiting leaves nobody to ask for it
        else:
            self._landed.set_result(landed)
        try:
            self.result = await self._task
        except Exception as error:
            self.result = error

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
