"""The parameter names of tasks, as a document: the leader names positional arguments without user code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dray.broker.verbs import Broker, Doc
from dray.documents.reading import read_doc
from dray.task import Task

KEY: Final = ("history", "parameters")
Names = dict[str, list[str]]
"""Task → the names of its positional parameters."""
_decode = msgspec.msgpack.Decoder(Names).decode


async def read_parameters(broker: Broker) -> Names:
    return _read((await broker.doc(*KEY)).doc)


def _read(doc: Doc | None) -> Names:
    return read_doc(_decode, doc) or {}


async def write_parameters(broker: Broker, tasks: Mapping[str, Task[..., Any]]) -> None:
    """Add the names of these tasks to the document; another worker may be doing the same."""
    own = {name: [parameter for parameter, _ in task.hints.positional] for name, task in tasks.items()}
    while True:
        doc = (await broker.doc(*KEY)).doc
        known = _read(doc)
        if own.items() <= known.items():
            return
        value = msgspec.msgpack.encode(known | own)
        reply = await broker.doc(*KEY, value, expect_version=0 if doc is None else doc.version)
        if reply.written:
            return
