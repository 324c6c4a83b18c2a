"""Undo functions and errors, written so that another process finds the same function or class."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dray.codec import values
from dray.errors import CodecError, InvalidInput, StepFailed

if TYPE_CHECKING:
    from dray.job import Error


def reference_to(function: Callable[..., object]) -> str:
    """`module:function`, checked: looking it up gives this function."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    known = isinstance(module, str) and isinstance(name, str)
    if known and _look_up(sys.modules.get(str(module)), str(name)) is function:
        return f"{module}:{name}"
    raise InvalidInput(
        "undo",
        function,
        "a task or a function at the top of a module is allowed: it runs in another process, "
        "which cannot find a lambda or an inner function",
    )


def resolve(reference: str) -> Callable[..., Any]:
    """The function of a reference; LookupError if this code has none."""
    module, _, name = reference.partition(":")
    try:
        found = _look_up(import_module(module), name)
    except ImportError as error:
        raise LookupError(f"{reference} cannot be imported: {error}") from error
    if not callable(found):
        raise LookupError(f"{reference} is not there any more")
    function: Callable[..., Any] = found
    return function


def _look_up(module: object, name: str) -> Any:
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


# errors


def pack_error(error: BaseException) -> bytes:
    """What rebuilds the exception; empty if that is not possible."""
    try:
        return values.encode((list(error.args), dict(error.__dict__)))
    except CodecError:
        return b""


def rebuild_error(job: str, step: str, error: Error, raised: bytes) -> Exception:
    """The exception as it was raised, if its class is known here; else `StepFailed`, which says the same."""
    kind = _class_of(error.type)
    if kind is None or not raised:
        return StepFailed(job, step, error.type, error.message, error.traceback)
    try:
        decoded: Any = values.decode(raised)
        args, fields = decoded
        rebuilt = kind.__new__(kind, *args)
        rebuilt.args = tuple(args)
        rebuilt.__dict__.update(fields)
    except Exception:  # a class of the user's
        return StepFailed(job, step, error.type, error.message, error.traceback)
    return rebuilt


def _class_of(name: str) -> type[Exception] | None:
    """Only modules that are loaded are looked at: reading a log imports nothing."""
    parts = name.split(".")
    for end in range(len(parts) - 1, -1, -1):
        module = sys.modules.get(".".join(parts[:end]) or "builtins")
        found = _look_up(module, ".".join(parts[end:])) if module is not None else None
        if isinstance(found, type) and issubclass(found, Exception):
            return found
    return None
