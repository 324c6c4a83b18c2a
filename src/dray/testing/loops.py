"""An event loop that runs while somebody waits for it, and stands still in between."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any, TypeVar

from dray.errors import DrayError

T = TypeVar("T")
Main = Callable[[], Coroutine[Any, Any, T]]


def in_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class OwnLoop:
    """What was started on it and has not ended goes on with the next call."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, main: Main[T]) -> T:
        """Run a coroutine to its end: in this thread, or, if it runs a loop already, in another one."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        if self._loop.is_running():
            raise DrayError("a drain is under way already; a job cannot start another one")
        if in_running_loop():
            return self._run_beside(self._loop, main)
        return self._loop.run_until_complete(main())

    def _run_beside(self, loop: asyncio.AbstractEventLoop, main: Main[T]) -> T:
        results: list[T] = []
        errors: list[BaseException] = []
        context = copy_context()

        def work() -> None:
            try:
                results.append(context.run(loop.run_until_complete, main()))
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work, name="dray drain", daemon=True)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return results[0]

    def close(self) -> None:
        """Cancel what is left on it, and let go of it."""
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
