"""What a failed run leaves behind: an exception as text, bounded, whatever it is."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType
from typing import Final

from dray.job import Error

MESSAGE_MAX: Final = 2000
TRACEBACK_MAX: Final = 16 * 1024
_CHAIN_MAX: Final = 30
_OWN: Final = str(Path(__file__).parent)


def describe(error: BaseException, *, type: str | None = None, message: str | None = None) -> Error:
    """The error as it is kept; `type` and `message` say it in other words than the exception does."""
    return Error(type or type_name(error), message or message_of(error), traceback_of(error))


def type_name(error: BaseException) -> str:
    kind = error.__class__
    module, name = str(getattr(kind, "__module__", "")), str(getattr(kind, "__qualname__", kind))
    return bounded(name if module in ("builtins", "") else f"{module}.{name}", 200)


def message_of(error: BaseException) -> str:
    try:
        return bounded(str(error), MESSAGE_MAX)
    except BaseException as worse:  # whatever a task's exception does when it is shown is still its failure
        return f"<its message cannot be shown: {worse.__class__.__name__}>"


def traceback_of(error: BaseException) -> str:
    """As Python prints it, without dray's own frames at the top."""
    try:
        told = traceback.TracebackException(
            error.__class__, error, _trimmed(error.__traceback__), compact=True, limit=-100
        )
        text = "".join(told.format(chain=_chain_length(error) <= _CHAIN_MAX))
    except BaseException as worse:
        text = f"<its traceback cannot be shown: {worse.__class__.__name__}>"
    return bounded(text, TRACEBACK_MAX)


def _trimmed(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OWN):
        trace = trace.tb_next
    return trace


def _chain_length(error: BaseException) -> int:
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen and len(seen) <= _CHAIN_MAX:
        seen.add(id(following))
        following = following.__cause__ or following.__context__
    return len(seen)


def bounded(text: str, most: int) -> str:
    """At most `most` characters, the middle left out, and nothing that UTF-8 cannot carry."""
    if len(text) > most:
        head = most // 3
        gap = "\n[…]\n"
        text = text[:head] + gap + text[len(text) - (most - head - len(gap)) :]
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode(errors="backslashreplace").decode()[:most]
    return text
