"""Where a task's code stands, to recognise it in a stack."""

from __future__ import annotations

import functools
import inspect
from typing import Any


def place_of(function: Any) -> tuple[str, int]:
    """File and first line of a task's function; empty if there is no Python behind it."""
    target = inspect.unwrap(function)
    while isinstance(target, functools.partial):
        target = inspect.unwrap(target.func)
    if not hasattr(target, "__code__"):
        target = type(target).__call__
    code = getattr(target, "__code__", None)
    return ("", 0) if code is None else (code.co_filename, code.co_firstlineno)
