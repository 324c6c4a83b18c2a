"""Middleware around enqueue.

    @app.enqueue_middleware
    async def trace(outgoing, call_next):
        outgoing.headers["request"] = request_id.get()
        return await call_next()

Each call goes through the chain by itself; the calls of one `enqueue_many` still reach the broker together. A
blocking call has no event loop: middleware that awaits anything but `call_next` needs `aenqueue`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack

from dray.client.link import Link
from dray.errors import DrayError, InvalidInput
from dray.options import Using, read_options
from dray.task import Call

if TYPE_CHECKING:
    from dray.app import App
    from dray.handle import JobHandle

R = TypeVar("R")


class OutgoingCall:
    """A call on its way to the broker. Middleware may set `task`, `args` and `kwargs`, and `change` its
    options; the result is checked like any call."""

    def __init__(self, app: App, call: Call[Any]) -> None:
        self._app = app
        self.task, self.args, self.kwargs = call.task, call.args, dict(call.kwargs)
        self.options = call.options
        """Options given by the call and middleware; the others are left to the task and the settings."""
        self.headers: dict[str, str] = dict(call.options.get("headers", {}))
        """Travel with the job: `ctx.headers` where it runs."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in Using.__annotations__ and name != "headers":
            raise AttributeError(f"options are changed by a call: outgoing.change({name}={value!r})")
        super().__setattr__(name, value)

    def change(self, **options: Unpack[Using]) -> None:
        """Set options, checked as in `task.using(...)`: `outgoing.change(queue="slow", priority="low")`."""
        self.options = read_options(options, self.options)
        self.headers.update(options.get("headers") or {})

    def says(self, option: str) -> bool:
        """True if the call, or middleware before, gave this option: `outgoing.says("queue")`."""
        if option not in Using.__annotations__:
            raise InvalidInput(
                "option", option, f"one of {', '.join(sorted(Using.__annotations__))} is allowed"
            )
        return option in self.options

    @property
    def queue(self) -> str:
        """The queue of the job, as the call stands now."""
        return self._app.job_builder.queue_of(self._call())

    def _call(self) -> Call[Any]:
        return Call(self.task, self.args, self.kwargs, self.options)


Next = Callable[[], Awaitable[Any]]
EnqueueMiddleware = Callable[[OutgoingCall, Next], Coroutine[Any, Any, Any]]


class _Chain:
    """One call going through all middleware, up to the point where it is put."""

    def __init__(self, app: App, call: Call[Any]) -> None:
        self._app, self._middleware = app, app.enqueue_middleware_chain
        self.outgoing = OutgoingCall(app, call)
        self.call: Call[Any] | None = None
        """The call after the last middleware; None if it did not get that far (yet)."""

    async def run(self, put: Callable[[], Awaitable[JobHandle[Any]]], start: int = 0) -> Any:
        """Call the middleware from `start` on, then `put`. Returns what the outermost one returns."""
        if start < len(self._middleware):
            return await self._middleware[start](self.outgoing, lambda: self.run(put, start + 1))
        self.call = self._checked_call()
        return await put()

    def _checked_call(self) -> Call[Any]:
        outgoing = self.outgoing
        task = self._app.tasks.get(outgoing.task)
        if task is not None:
            task.hints.check_call(outgoing.args, outgoing.kwargs)
        return outgoing._call()


async def send_through(app: App, link: Link, call: Call[R]) -> JobHandle[R]:
    """Send one call through the middleware. `call_next` puts it, so middleware may retry after an error."""
    chain = _Chain(app, call)

    async def put() -> JobHandle[R]:
        assert chain.call is not None  # noqa: S101 (set by `run`)
        return await app.put_one(link, chain.call, chain.outgoing.headers)

    running = chain.run(put)
    result: JobHandle[R] = _run_without_loop(running) if link.blocking else await running
    return result


def _run_without_loop(running: Coroutine[Any, Any, Any]) -> Any:
    """Run to the end; only the middleware's own awaits can suspend it, which is an error."""
    try:
        _advance(running)
        raise DrayError(_NEEDS_LOOP)
    except StopIteration as end:
        return end.value
    finally:
        running.close()


def _advance(running: Coroutine[Any, Any, Any]) -> object:
    """Run up to the next await that suspends; StopIteration at the end."""
    try:
        return running.send(None)
    except RuntimeError as error:
        if "no running event loop" in str(error):
            raise DrayError(_NEEDS_LOOP) from error
        raise


class Passing(Protocol):
    """A call of a flow, which middleware may change."""

    call: Call[Any]
    headers: dict[str, str] | None


async def pass_all_through(app: App, link: Link, passing: Sequence[Passing]) -> None:
    """Send the calls of a flow through the middleware, which gets the handle of no job: ids are made
    later."""
    for one in passing:
        chain = _Chain(app, one.call)

        async def put() -> JobHandle[Any]:
            return app.handle("", one.call.task)  # noqa: B023 (called in this turn)

        running = chain.run(put)
        await running if not link.blocking else _run_without_loop(running)
        if chain.call is None:
            raise DrayError(
                f"enqueue middleware held back {one.call!r}: a flow is accepted as a whole, or not"
            )
        one.call, one.headers = chain.call, chain.outgoing.headers


async def send_many_through(app: App, link: Link, calls: Sequence[Call[R]]) -> list[JobHandle[R]]:
    """Send calls through the middleware, then put all that middleware let through in one batch."""
    kind = _BlockingMember if link.blocking else _LoopMember
    members: list[_BlockingMember] | list[_LoopMember] = [kind(_Chain(app, call)) for call in calls]  # type: ignore[assignment]
    try:
        for member in members:
            await member.run_to_put()
        waiting = [member for member in members if not member.ended]
        sent = [member.chain.call for member in waiting]
        headers = [member.chain.outgoing.headers for member in waiting]
        try:
            replies = await app.put_each(link, [call for call in sent if call is not None], headers)
        except Exception as error:  # nothing was put; each middleware gets the error, and may handle it
            replies = [error] * len(waiting)
        for member, reply in zip(waiting, replies, strict=True):
            await member.resume(reply)
    finally:
        for member in members:
            member.close()
    return app.handles_or_raise([member.result for member in members])


class _BlockingMember:
    """One call of a batch, without an event loop: it stops at the barrier until the batch was put."""

    def __init__(self, chain: _Chain) -> None:
        self.chain, self.ended = chain, False
        self.result: Any = None
        self._barrier = _Barrier()
        self._running = chain.run(self._barrier.wait)

    async def run_to_put(self) -> None:
        self._step()
        if isinstance(self.result, Exception):
            raise self.result

    async def resume(self, reply: Any) -> None:
        self._barrier.reply = reply
        self._step()

    def _step(self) -> None:
        try:
            awaited = _advance(self._running)
        except StopIteration as end:
            self.result, self.ended = end.value, True
        except Exception as error:
            self.result, self.ended = error, True
        else:
            if awaited is not self._barrier:
                raise DrayError(_NEEDS_LOOP)

    def close(self) -> None:
        self._running.close()


_NEEDS_LOOP = (
    "enqueue middleware awaited something that needs an event loop, in a blocking call: "
    "use aenqueue, or let it await nothing but call_next"
)


class _Barrier:
    """Suspends a call of a blocking batch until there is a reply."""

    def __init__(self) -> None:
        self.reply: Any = None

    async def wait(self) -> JobHandle[Any]:
        return await self

    def __await__(self) -> Generator[_Barrier, None, JobHandle[Any]]:
        if self.reply is None:
            yield self
        if isinstance(self.reply, Exception):
            raise self.reply
        handle: JobHandle[Any] = self.reply
        return handle


class _LoopMember:
    """One call of a batch, as an asyncio task, so that its middleware may await anything."""

    def __init__(self, chain: _Chain) -> None:
        self.chain = chain
        self.result: Any = None
        self._reply: asyncio.Future[JobHandle[Any]] | None = None
        self._task: asyncio.Task[Any] | None = None

    @property
    def ended(self) -> bool:
        return self._task is not None and self._task.done()

    async def run_to_put(self) -> None:
        loop = asyncio.get_running_loop()
        reply, arrived = loop.create_future(), loop.create_future()
        self._reply = reply

        async def put() -> JobHandle[Any]:
            if not arrived.done():
                arrived.set_result(None)
            return await asyncio.shield(reply)  # middleware may call it twice

        self._task = loop.create_task(self.chain.run(put))
        await asyncio.wait((self._task, arrived), return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            self.result = self._task.result()

    async def resume(self, reply: Any) -> None:
        assert self._reply is not None and self._task is not None  # noqa: S101, PT018
        if isinstance(reply, Exception):
            self._reply.set_exception(reply)
            self._reply.exception()  # read once: middleware that was cancelled will not
        else:
            self._reply.set_result(reply)
        try:
            self.result = await self._task
        except Exception as error:
            self.result = error

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()


async def pass_through(
    app: App, call: Call[Any], put: Callable[[Call[Any], dict[str, str]], Awaitable[Any]]
) -> Any:
    """Send one call through the middleware to `put`, which gets it with its headers, and return its reply."""
    chain, results = _Chain(app, call), []

    async def last() -> Any:
        results.append(await put(chain.call or call, chain.outgoing.headers))
        return results[-1]

    await chain.run(last)
    if not results:
        raise DrayError(f"enqueue middleware did not let the call of {call.task} through")
    return results[-1]
