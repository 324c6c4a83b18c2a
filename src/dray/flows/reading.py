"""The nodes of a flow, and how they stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

from dray.broker.verbs import Broker
from dray.codec import inputs
from dray.codec.inputs import places_of
from dray.codec.values import decode_call
from dray.errors import JobNotFound
from dray.flows.graph import (
    FLOW_TASK,
    MAP_TASK,
    NODES_MAX,
    SKIPPED,
    Graph,
    NodeRow,
    Template,
    item_name,
    node_id,
    unpack_template,
)
from dray.flows.pages import load_graph
from dray.info import moment
from dray.job import FINISHED, Error, Record, State

STEP: Final = 500
"""Records that are read at a time."""


class FlowState(StrEnum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    NOT_FOUND = "not_found"


_STATES: Final = {
    State.SUCCEEDED: FlowState.SUCCEEDED,
    State.DEAD: FlowState.FAILED,
    State.CANCELLED: FlowState.CANCELLED,
    State.NOT_FOUND: FlowState.NOT_FOUND,
}


def flow_state(state: State) -> FlowState:
    """The state of a flow, by that of its job."""
    return _STATES.get(state, FlowState.RUNNING)


class FlowStatus(str):
    """The state of a flow, a text such as `"running"`; `counts` are its jobs by state."""

    counts: dict[State, int]

    def __new__(cls, state: FlowState, counts: Mapping[State, int]) -> FlowStatus:
        self = super().__new__(cls, state.value)
        self.counts = dict(counts)
        return self

    @property
    def state(self) -> FlowState:
        return FlowState(str(self))


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One node of a flow."""

    name: str
    id: str
    task: str
    queue: str
    status: State
    when: str = "success"
    inputs: tuple[str, ...] = ()
    """Names of the nodes that it waits for."""
    is_map: bool = False
    items_of: tuple[str, ...] = ()
    """Of a map: the tasks of the jobs that it makes."""
    skipped: bool = False
    """It was cancelled because it was not needed."""
    reason: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    items: dict[State, int] | None = None
    """Of a map: its items by state."""


class FlowInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known about a flow."""

    id: str
    name: str
    status: FlowState
    counts: dict[State, int]
    """Its jobs by state, the items of maps included."""
    nodes: list[NodeInfo]
    reason: str | None = None
    key: str | None = None
    created_at: datetime
    finished_at: datetime | None = None


class Standing(msgspec.Struct, frozen=True):
    """How one node stands: as much of its record as decisions need."""

    state: State
    reason: str = ""
    orphaned_by: str | None = None
    started: int | None = None
    finished: int | None = None
    error: Error | None = None


GONE: Final = Standing(State.NOT_FOUND, "its job was deleted")


async def read_flow(broker: Broker, flow: str) -> tuple[Record, Graph]:
    """The job of a flow, and its graph."""
    (record,) = await broker.get([flow])
    if record is None or record.job.task != FLOW_TASK:
        raise JobNotFound(flow, f"no flow {flow}: it never was, or its record is not kept any more")
    return record, await graph_of_record(broker, record)


async def graph_of_record(broker: Broker, record: Record) -> Graph:
    """The graph of a flow, from its job's record."""
    args, _ = decode_call(memoryview(record.job.payload)[1:])
    return await load_graph(broker, record.id, args[0])


async def records_of(broker: Broker, ids: Sequence[str]) -> AsyncIterator[tuple[str, Record | None]]:
    """The records of many jobs, in order, a few at a time."""
    for first in range(0, len(ids), STEP):
        step = ids[first : first + STEP]
        for id, record in zip(step, await broker.get(step), strict=True):
            yield id, record


async def standings(broker: Broker, ids: Sequence[str]) -> list[Standing]:
    found = []
    async for _, record in records_of(broker, ids):
        found.append(GONE if record is None else standing(record))
    return found


def standing(record: Record) -> Standing:
    return Standing(
        record.state,
        record.reason or "",
        record.orphaned_by,
        record.started,
        record.finished,
        record.error,
    )


def is_skipped(standing: Standing, by_id: Mapping[str, Standing]) -> bool:
    """True if a node was not needed, or depends on one that was not."""
    seen: set[str] = set()
    while standing.state is State.CANCELLED:
        if standing.reason.startswith(SKIPPED):
            return True
        cause = standing.orphaned_by
        if cause is None or cause in seen or cause not in by_id:
            return False
        seen.add(cause)
        standing = by_id[cause]
    return False


def is_unfinished(standing: Standing) -> bool:
    return standing.state not in FINISHED and standing is not GONE


# the items of maps


async def count_items(broker: Broker, flow: str, template: Template, name: str) -> int:
    """How many items a map has put: found by looking for ever higher numbers, then between two of them."""
    first = template.parts[0]

    async def there(indexes: list[int]) -> list[bool]:
        names = [item_name(name, index, first.name if len(template.parts) > 1 else "") for index in indexes]
        found = await broker.get([node_id(flow, first.job.queue, one) for one in names])
        return [record is not None for record in found]

    probes: list[int] = [0, *(1 << n for n in range(NODES_MAX.bit_length() + 1))]
    exist = await there(probes)
    if not exist[0]:
        return 0
    low = max(probe for probe, one in zip(probes, exist, strict=True) if one)
    high = min(
        (probe for probe, one in zip(probes, exist, strict=True) if not one and probe > low), default=low + 1
    )
    while high - low > 1:
        middle = sorted({low + (high - low) * part // 16 for part in range(1, 16)} - {low, high})
        for probe, one in zip(middle, await there(middle), strict=True):
            if one:
                low = max(low, probe)
            else:
                high = min(high, probe)
        high = max(high, low + 1)
    return low + 1


def is_map(record: Record) -> bool:
    return record.job.task == MAP_TASK


def template_of(record: Record) -> Template:
    """What a map makes of each item."""
    payload = record.job.payload
    inner = inputs.read(payload).payload if payload[:1] == inputs.HEADER else payload
    args, _ = decode_call(memoryview(inner)[1:])
    return unpack_template(args[0])


def names_of_item(template: Template, name: str, index: int) -> list[str]:
    """The names of the jobs of one item."""
    if len(template.parts) == 1:
        return [item_name(name, index)]
    return [item_name(name, index, part.name) for part in template.parts]


async def item_jobs(broker: Broker, flow: str, name: str, record: Record) -> list[tuple[str, str]]:
    """The name and id of every job that a map has put, and those that maps among them have put."""
    template = template_of(record)
    found: list[tuple[str, str]] = []
    for index in range(await count_items(broker, flow, template, name)):
        for part, one in zip(template.parts, names_of_item(template, name, index), strict=True):
            found.append((one, node_id(flow, part.job.queue, one)))
    if any(part.is_map for part in template.parts):
        async for _, inner in records_of(broker, [id for _, id in found]):
            if inner is not None and inner.job.node and is_map(inner):
                found += await item_jobs(broker, flow, inner.job.node, inner)
    return found


# for people


async def describe_flow(broker: Broker, flow: str) -> FlowInfo:
    """Everything known about a flow."""
    record, graph = await read_flow(broker, flow)
    ids = graph.ids(flow)
    nodes: list[Standing] = []
    maps: dict[int, Record] = {}
    async for _, one in records_of(broker, ids):
        if one is not None and is_map(one):
            maps[len(nodes)] = one
        nodes.append(GONE if one is None else standing(one))
    counts: Counter[State] = Counter(node.state for node in nodes)
    items: dict[int, Counter[State]] = {}
    for place, one in maps.items():
        jobs = await item_jobs(broker, flow, graph.nodes[place].name, one)
        states = await standings(broker, [id for _, id in jobs])
        items[place] = Counter(state.state for state in states)
        counts += items[place]
    by_id = dict(zip(ids, nodes, strict=True))
    rows = [
        _node_info(graph, row, id, node, by_id, items.get(place))
        for place, (row, id, node) in enumerate(zip(graph.nodes, ids, nodes, strict=True))
    ]
    return FlowInfo(
        id=flow,
        name=graph.name,
        status=flow_state(record.state),
        counts=dict(counts),
        nodes=rows,
        reason=record.reason,
        key=record.job.key,
        created_at=moment(record.created),
        finished_at=None if record.finished is None else moment(record.finished),
    )


def _node_info(
    graph: Graph,
    row: NodeRow,
    id: str,
    node: Standing,
    by_id: Mapping[str, Standing],
    items: Counter[State] | None,
) -> NodeInfo:
    return NodeInfo(
        name=row.name,
        id=id,
        task=row.task,
        queue=graph.queues[row.queue],
        status=node.state,
        when=row.when,
        inputs=tuple(graph.nodes[place].name for place in places_of(row.inputs)),
        is_map=row.is_map,
        items_of=tuple(row.items),
        skipped=is_skipped(node, by_id),
        reason=node.reason or None,
        started_at=None if node.started is None else moment(node.started),
        finished_at=None if node.finished is None else moment(node.finished),
        items=None if items is None else dict(items),
    )
