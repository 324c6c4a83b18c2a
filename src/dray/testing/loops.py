"""An event loop that runs only during a call, and `call_soon` from any thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

from dray.errors import DrayError

T = TypeVar("T")
Main = Callable[[], Coroutine[Any, Any, T]]


def running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """Call in the next turn of the loop; may be used from any thread."""
    if running_loop() is loop:
        loop.call_soon(callback)
    else:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(callback)


class PrivateLoop:
    """Tasks that have not ended go on with the next call of `run`."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, main: Main[T]) -> T:
        """Run a coroutine to its end, in another thread if this one runs a loop already."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        if self._loop.is_running():
            raise DrayError("a drain is under way already; a job cannot start another one")
        if running_loop() is not None:
            return self._run_beside(self._loop, main)
        return self._loop.run_until_complete(main())

    def _run_beside(self, loop: asyncio.AbstractEventLoop, main: Main[T]) -> T:
        context, result = copy_context(), Future[T]()

        def work() -> None:
            try:
                result.set_result(context.run(loop.run_until_complete, main()))
            except BaseException as error:
                result.set_exception(error)

        threading.Thread(target=work, name="dray drain", daemon=True).start()
        return result.result()

    def close(self) -> None:
        """Cancel the tasks that are left, and close the loop."""
        if self._loop is None:
            return
        try:
            self.run(_end_all)
        finally:
            self._loop.close()
            self._loop = None


async def _end_all() -> None:
    loop, me = asyncio.get_running_loop(), asyncio.current_task()
    left = [task for task in asyncio.all_tasks() if task is not me]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()
