"""Reading documents that another version of dray may have written."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from dray.broker.verbs import Doc

T = TypeVar("T")


def read_doc(decode: Callable[[bytes], T], doc: Doc | None) -> T | None:
    """The content of a document; None if there is none, or if another version wrote it."""
    try:
        return None if doc is None else decode(doc.value)
    except msgspec.MsgspecError:
        return None
