"""The operations of a task that is called directly, like any function: nothing is remembered."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from dray.durable.calls import StepOptions
from dray.duration import parse_duration
from dray.errors import DrayError
from dray.options import Duration

if TYPE_CHECKING:
    from dray.task import Call, Task

T = TypeVar("T")


class DirectSteps:
    def __init__(self, tasks: Mapping[str, Task[..., Any]], is_async: bool) -> None:
        self._tasks, self._async = tasks, is_async

    def step(self, function: Callable[..., Any], args: tuple[Any, ...], options: StepOptions) -> Any:
        return self._result(lambda: function(*args))

    def sleep(self, length: Duration | datetime, key: str | None) -> Any:
        if isinstance(length, datetime):
            seconds = max(0.0, (length - datetime.now(UTC)).total_seconds())
        else:
            seconds = parse_duration("length", length) / 1000
        return asyncio.sleep(seconds) if self._async else time.sleep(seconds)

    def event(self, name: str, timeout: Duration | None, type: Any, key: str | None) -> Any:
        raise DrayError("events are sent to jobs: enqueue the task, or use app.testing()")

    def call(self, call: Call[Any], key: str | None) -> Any:
        task = self._tasks[call.task]
        return self._result(lambda: task.run_here(call.args, call.kwargs))

    def first(self, operations: tuple[Any, ...]) -> Any:
        raise DrayError("ctx.first needs a job: enqueue the task, or use app.testing()")

    def remember(self, name: str, make: Callable[[], T], type: type[T]) -> T:
        return make()

    def changed(self, name: str) -> bool:
        return True

    def now(self) -> datetime:
        return datetime.now(UTC)

    def _result(self, make: Callable[[], Any]) -> Any:
        async def awaited() -> Any:
            value = make()
            return await value if inspect.isawaitable(value) else value

        if self._async:
            return awaited()
        value = make()
        return asyncio.run(_await(value)) if inspect.isawaitable(value) else value


async def _await(value: Any) -> Any:
    return await value
