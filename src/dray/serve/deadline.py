"""One timeout for all phases of a request: `asyncio.timeout` in each would cost as much as a handler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Deadline:
    """Cancels what is awaited inside `with` after some seconds; then the error of `late` is raised."""

    def __init__(self, seconds: float, late: Callable[[], Exception] = TimeoutError) -> None:
        self._seconds, self._late = seconds, late
        self._over = False

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 (only coroutines of tasks use it)
        self._task = task
        self._timer = task.get_loop().call_later(self._seconds, self._expire)
        return self

    def extend(self, seconds: float, late: Callable[[], Exception] = TimeoutError) -> None:
        """The next phase begins, with a time and an error of its own."""
        self._timer.cancel()
        self._late = late
        self._timer = self._task.get_loop().call_later(seconds, self._expire)

    def _expire(self) -> None:
        self._over = True
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._over and self._task.uncancel() <= 0 and kind is asyncio.CancelledError:
            raise self._late() from error
