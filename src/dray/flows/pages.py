"""Documents of a flow: pages of bounded size for its jobs, until they are put, and for a large graph."""

from __future__ import annotations

from typing import Final

from dray.broker.verbs import Broker
from dray.codec.compression import compress, read_zstd
from dray.errors import DrayError
from dray.flows.graph import Graph, unpack_graph

HEADS: Final = "flow"
JOBS: Final = "flow-jobs"
GRAPHS: Final = "flow-graph"
"""Kinds of documents."""
PAGE_BYTES: Final = 900_000
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_LARGE: Final = 1 << 30


def packed(data: bytes) -> bytes:
    """Compressed, if that is worth it."""
    return compress(data) or data


def unpacked(data: bytes) -> bytes:
    """What `packed` was given. The first byte of a zstd frame begins no array of MessagePack."""
    return read_zstd(data, _LARGE, "a flow") if data[:4] == _ZSTD else data


def split(data: bytes) -> list[bytes]:
    return [data[start : start + PAGE_BYTES] for start in range(0, len(data), PAGE_BYTES)]


def page_name(flow: str, number: int) -> str:
    return f"{flow}/{number}"


async def delete_pages(broker: Broker, kind: str, flow: str, count: int) -> None:
    for number in range(count):
        await broker.doc(kind, page_name(flow, number), None)


async def read_pages(broker: Broker, kind: str, flow: str, count: int) -> bytes | None:
    """The contents of all pages; None if one is missing."""
    contents = []
    for number in range(count):
        reply = await broker.doc(kind, page_name(flow, number))
        if reply.doc is None:
            return None
        contents.append(reply.doc.value)
    return b"".join(contents)


async def load_graph(broker: Broker, flow: str, graph: bytes | int) -> Graph:
    """The graph that the job of a flow carries, or whose pages it names."""
    if isinstance(graph, int):
        pages = await read_pages(broker, GRAPHS, flow, graph)
        if pages is None:
            raise DrayError(f"the graph of flow {flow} is gone")
        graph = pages
    return unpack_graph(unpacked(graph))
