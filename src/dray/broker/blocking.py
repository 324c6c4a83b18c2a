"""Running a verb without an event loop."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_blocking(call: Coroutine[Any, Any, T]) -> T:
    """Run a verb of a broker that was opened with `blocking=True`, here and now."""
    try:
        call.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise suspended(call)


def suspended(call: Coroutine[Any, Any, Any]) -> RuntimeError:
    """End a call that should not have suspended."""
    call.close()
    return RuntimeError("this broker was not opened with blocking=True")
