"""Reads requests within bounds: after the key was checked, and only for so long.

gRPC allocates a whole message as soon as one is read, and no more than a window before. So every method is
served as a stream of requests, of which one is read, after its caller was admitted.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, Final
from urllib.parse import unquote

import grpc

from dray.serve.admission import ConcurrencyLimit
from dray.serve.connections import origin
from dray.serve.deadline import Deadline
from dray.serve.errors import Refused, try_later
from dray.serve.rpc.errors import Context, fail

QUEUE_SECONDS: Final = 10.0
"""Time that a call waits for its turn to be read."""
PUBLIC_MAX: Final = 100
"""Calls without a key (health, reflection) at a time."""
PUBLIC_SHARE: Final = 25
"""Of one address."""


class RequestReader:
    """Reads a few requests at a time, as each may be large; slow clients make way when others wait."""

    def __init__(self, most: int = 16, *, patience: float = 30.0, crowded: float = 1.0) -> None:
        """A client may take `patience` seconds to send its request; `crowded` while others wait."""
        self._places = asyncio.Semaphore(most)
        self._patience, self._crowded = patience, crowded
        self._waiting = 0
        self._began: dict[Deadline, float] = {}
        """When each request that is being read began."""

    async def read(self, requests: AsyncIterator[Any]) -> Any:
        """The request, or the first of several."""
        if self._places.locked():
            await self._wait()
        else:
            await self._places.acquire()
        try:
            with Deadline(self._crowded if self._waiting else self._patience, _too_slow) as deadline:
                self._began[deadline] = time.monotonic()
                return await anext(requests)
        except StopAsyncIteration:
            raise Refused(400, "invalid_message", "the call has no request") from None
        finally:
            self._began.pop(deadline, None)
            self._places.release()

    async def _wait(self) -> None:
        now = time.monotonic()
        for deadline, began in self._began.items():
            deadline.extend(max(0.0, began + self._crowded - now), _too_slow)
        self._waiting += 1
        try:
            async with asyncio.timeout(QUEUE_SECONDS):
                await self._places.acquire()
        except TimeoutError:
            raise try_later(503, "overloaded", "too many requests are being read", 1) from None
        finally:
            self._waiting -= 1


def _too_slow() -> Refused:
    return Refused(400, "request_too_slow", "the request did not arrive in time")


class PublicServices:
    """Stands in for the server where services that need no key are added, and bounds their calls."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server
        self._reader = RequestReader(4, patience=5.0, crowded=0.25)
        self._limit = ConcurrencyLimit(PUBLIC_MAX, "calls without a key")
        self._callers: Counter[str] = Counter()

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """Ignored: the same methods are registered by their names as well."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        bounded = {name: self._bounded(handler) for name, handler in handlers.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, bounded),))

    def _bounded(self, handler: Any) -> Any:
        codec = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.unary_unary is not None:
            return grpc.stream_unary_rpc_method_handler(partial(self._answer, handler.unary_unary), **codec)
        if handler.unary_stream is not None:
            return grpc.stream_stream_rpc_method_handler(partial(self._answer, handler.unary_stream), **codec)
        return grpc.stream_stream_rpc_method_handler(partial(self._stream, handler.stream_stream), **codec)

    async def _answer(self, method: Any, requests: AsyncIterator[Any], context: Context) -> Any:
        """Also for a method that writes its answers to the context and returns none."""
        try:
            with self._slot(context):
                return await method(await self._reader.read(requests), context)
        except Refused as refused:
            await fail(context, refused)

    async def _stream(
        self, method: Any, requests: AsyncIterator[Any], context: Context
    ) -> AsyncIterator[Any]:
        try:
            with self._slot(context):
                async for answer in method(self._each(requests), context):
                    yield answer
        except Refused as refused:
            await fail(context, refused)

    async def _each(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        while True:
            try:
                request = await self._reader.read(requests)
            except Refused as refused:
                if refused.code == "invalid_message":  # there are no more
                    return
                raise
            yield request

    @contextmanager
    def _slot(self, context: Context) -> Iterator[None]:
        caller = origin(address_of(context.peer()))
        if self._callers[caller] >= PUBLIC_SHARE:
            raise try_later(503, "overloaded", f"too many calls of one address ({PUBLIC_SHARE})", 1)
        leave = self._limit.enter()
        self._callers[caller] += 1
        try:
            yield
        finally:
            leave()
            self._callers[caller] -= 1
            if not self._callers[caller]:
                del self._callers[caller]


@lru_cache(1024)
def address_of(peer: str) -> str:
    """The address in a peer like `ipv4:127.0.0.1:5000`."""
    return unquote(peer.rpartition(":")[0].partition(":")[2]).strip("[]") or peer
