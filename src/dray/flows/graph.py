"""The stored form of a flow: its nodes, the ids of their jobs, which failure ends it. No I/O.

The jobs of a flow carry its id (`owner`) and their name in it (`node`). Ids are derived from both, so a job
that is put twice is the same job, and no document has to list ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final

import msgspec

from dray.codec.inputs import Filled, Given, Slot, When, places_of, write
from dray.job import Job, Orphan

FLOW_TASK: Final = "dray.flow"
MAP_TASK: Final = "dray.map"
SAME_TASK: Final = "dray.same"
NODES_MAX: Final = 100_000
SKIPPED: Final = "skipped"
"""How the reason of a node begins that was not needed."""

ORPHANS: Final[dict[When, Orphan]] = {"success": "cancel", "done": "run", "failed": "run", "any": "first"}

Shape = Any
"""Where results belong: the number of a node, a list of shapes, a dict of shapes, or None."""


class Part(msgspec.Struct, frozen=True, array_like=True):
    """One node of a flow, or of what a map makes of each item: a job without its id and dependencies."""

    name: str
    job: Job
    inputs: list[int] = []
    """The nodes that it waits for, as runs (`runs_of`), in the order that its slots refer to."""
    when: When = "success"
    slots: list[Slot] = []
    items: list[tuple[str, str]] = []
    """Of a map: the tasks and queues of the jobs that it makes."""

    @property
    def is_map(self) -> bool:
        return self.job.task == MAP_TASK

    @property
    def made(self) -> list[tuple[str, str]]:
        """Tasks and queues of its job, or of the jobs that it makes."""
        return self.items or [(self.job.task, self.job.queue)]


class Template(msgspec.Struct, frozen=True, array_like=True):
    """Nodes with dependencies among themselves, and the result of them all."""

    parts: list[Part]
    result: Shape


class NodeRow(msgspec.Struct, frozen=True, array_like=True):
    """A node, as the stored graph describes it."""

    name: str
    task: str
    queue: int
    """Its place in `Graph.queues`."""
    inputs: list[int] = []
    when: When = "success"
    items: list[str] = []
    """Of a map: the tasks of the jobs that it makes."""

    @property
    def is_map(self) -> bool:
        return self.task == MAP_TASK


class Graph(msgspec.Struct, frozen=True, array_like=True):
    """The nodes of a flow, inputs before those that wait for them."""

    name: str
    queues: list[str]
    nodes: list[NodeRow]
    result: Shape

    def id_of(self, flow: str, place: int) -> str:
        row = self.nodes[place]
        return node_id(flow, self.queues[row.queue], row.name)

    def ids(self, flow: str) -> list[str]:
        return [self.id_of(flow, place) for place in range(len(self.nodes))]

    @property
    def tasks(self) -> list[str]:
        """The tasks of its jobs, without dray's own."""
        return sorted({task for row in self.nodes for task in (row.items if row.is_map else [row.task])})

    def tolerated(self) -> set[int]:
        """Nodes whose failure does not fail the flow: only nodes that take failures as well depend on
        them."""
        takes, needs = set[int](), set[int]()
        for row in self.nodes:
            if row.when != "failed":
                (needs if row.when == "success" else takes).update(places_of(row.inputs))
        return takes - needs


pack_graph = msgspec.msgpack.Encoder().encode
unpack_graph = msgspec.msgpack.Decoder(Graph).decode
pack_template = msgspec.msgpack.Encoder().encode
unpack_template = msgspec.msgpack.Decoder(Template).decode


def node_id(flow: str, queue: str, name: str) -> str:
    """The id of a node's job."""
    return f"{queue}:{blake2b(f'{flow}/{name}'.encode(), digest_size=16).hexdigest()}"


def item_name(name: str, index: int, inner: str = "") -> str:
    """The name of a job that a map makes of one item."""
    return f"{name}[{index}].{inner}" if inner else f"{name}[{index}]"


def graph_of(name: str, template: Template) -> Graph:
    queues: dict[str, int] = {}
    rows = []
    for part in template.parts:
        queue = queues.setdefault(part.job.queue, len(queues))
        for _, one in part.items:
            queues.setdefault(one, len(queues))
        items = list(dict.fromkeys(task for task, _ in part.items))
        rows.append(NodeRow(part.name, part.job.task, queue, part.inputs, part.when, items))
    return Graph(name, list(queues), rows, template.result)


def jobs_of(
    template: Template, flow: str, names: Sequence[str], item: bytes | None = None, due: int | None = None
) -> list[Job]:
    """The jobs of a template, under these names; `item` is the encoded item of a map."""
    ids = [node_id(flow, part.job.queue, name) for part, name in zip(template.parts, names, strict=True)]
    return [
        msgspec.structs.replace(
            part.job,
            id=id,
            owner=flow,
            node=name,
            payload=_payload(part, item),
            waits_for=tuple(ids[place] for place in places_of(part.inputs)),
            orphan="follow" if part.is_map else ORPHANS[part.when],
        )
        for part, id, name in zip(template.parts, ids, names, strict=True)
    ]


def _payload(part: Part, item: bytes | None) -> bytes:
    if not part.slots and not part.inputs:
        return part.job.payload
    slots = part.slots
    if item is not None:
        values = [Given("value", item)]
        slots = [slot if slot.at or slot.many else Slot(slot.path, values=values) for slot in slots]
    return write(Filled(part.job.payload, part.when, slots))


def last_nodes(template: Template) -> list[int]:
    """The nodes that the job of the flow waits for: when they have ended, so has the flow, but for nodes
    whose dependants did not wait for them. A replay of any node of a failed flow reaches one of these."""
    needed = {
        place
        for part in template.parts
        if part.when == "success" and not part.is_map
        for place in places_of(part.inputs)
    }
    return [place for place in range(len(template.parts)) if place not in needed]


def nodes_in(shape: Shape) -> Iterator[int]:
    """The nodes of a shape, in order."""
    if isinstance(shape, int):
        yield shape
    elif isinstance(shape, list):
        for one in shape:
            yield from nodes_in(one)
    elif isinstance(shape, dict):
        for one in shape.values():
            yield from nodes_in(one)


def fill(shape: Shape, values: Sequence[Any]) -> Any:
    """The shape with the values of its nodes, in the order of `nodes_in`."""
    following = iter(values)

    def build(one: Shape) -> Any:
        if isinstance(one, int):
            return next(following)
        if isinstance(one, list):
            return [build(each) for each in one]
        return {name: build(each) for name, each in one.items()} if isinstance(one, dict) else None

    return build(shape)
