"""The handle of a flow: result, state, cancel, retry. Every operation exists twice, as those of a job."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dray.broker.actions import Cancel, Ids, JobAction, Retry
from dray.broker.verbs import PAGE_MAX, Broker
from dray.client.client import Client
from dray.client.link import Link, forbid_on_worker_loop
from dray.client.sync_async import sync_and_async
from dray.codec.inputs import INPUTS_MAX
from dray.flows.graph import Graph, fill, nodes_in
from dray.flows.reading import (
    FlowInfo,
    FlowStatus,
    Standing,
    describe_flow,
    flow_state,
    is_map,
    is_skipped,
    item_jobs,
    read_flow,
    records_of,
    standing,
)
from dray.handle import JobHandle, Timeout, finished_records, outcome_of
from dray.job import FINISHED, Record, State

if TYPE_CHECKING:
    from dray.app import App

R = TypeVar("R")


class FlowHandle(Generic[R]):
    """One flow. `R` is the type of its result: that of the last node, or a dict of the last nodes by name."""

    __slots__ = ("_graph", "app", "duplicate", "id", "name")

    def __init__(
        self, app: App, id: str, name: str = "", *, duplicate: bool = False, graph: Graph | None = None
    ) -> None:
        self.app, self.id, self.name, self._graph = app, id, name, graph
        self.duplicate = duplicate
        """Its key was taken: this is the existing flow."""

    def __repr__(self) -> str:
        return f"<Flow {self.id}{f' ({self.name})' if self.name else ''}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FlowHandle) and other.id == self.id and other.app is self.app

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def client(self) -> Client:
        return self.app.client

    def get(self, timeout: Timeout = None) -> R:
        """Wait for the end and return the result. Raises what `job.get()` raises; a `JobFailed` has the
        error of the node that failed, and a reason that names it."""
        forbid_on_worker_loop("flow.get()", "await flow.aget()")
        result: R = self.client.block(_result, self, timeout)
        return result

    async def aget(self, timeout: Timeout = None) -> R:
        result: R = await self.client.run(_result, self, timeout)
        return result

    def __await__(self) -> Generator[Any, None, R]:
        return self.aget().__await__()

    async def _status(self, link: Link) -> FlowStatus:
        """Its state, with the counts of its jobs by state: `flow.status() == "running"`."""
        (record,) = await link.broker.get([self.id])
        if record is None:
            return FlowStatus(flow_state(State.NOT_FOUND), {})
        graph = await self._read_graph(link.broker)
        return FlowStatus(flow_state(record.state), await link.broker.tally(self.id, graph.queues))

    async def _info(self, link: Link) -> FlowInfo:
        """Everything known about it, with all its nodes."""
        return await describe_flow(link.broker, self.id)

    async def _cancel(self, link: Link, reason: str = "cancelled") -> bool:
        """Cancel it: nodes that run are asked to stop, others never start. False if it had ended already."""
        broker = link.broker
        graph = await self._read_graph(broker)
        edited = await broker.edit(Ids((self.id,)), Cancel(reason))
        nodes = [(id, record) async for id, record in records_of(broker, graph.ids(self.id))]
        why = f"the flow was cancelled: {reason}"
        await _edit(broker, [id for id, _ in nodes], Cancel(why))
        for _, record in nodes:
            if record is not None and is_map(record):
                jobs = await item_jobs(broker, self.id, record.job.node, record)
                await _edit(broker, [item for _, item in jobs], Cancel(why))
        return bool(edited.changed)

    async def _retry(self, link: Link) -> bool:
        """Run the dead nodes again; what was cancelled because of them is revived. Of a cancelled flow, the
        nodes that were cancelled with it run again. False if there is nothing to run again."""
        broker = link.broker
        flow, graph = await read_flow(broker, self.id)
        ids = await self._to_retry(broker, graph, cancelled=flow.state is State.CANCELLED)
        await _edit(broker, ids, Retry())
        if not ids and flow.state not in (State.DEAD, State.CANCELLED):
            return False
        if flow.state in FINISHED:  # it looks at its nodes again, and waits for those that run
            await _edit(broker, [self.id], Retry())
        return True

    status, astatus = sync_and_async(_status)
    info, ainfo = sync_and_async(_info)
    cancel, acancel = sync_and_async(_cancel)
    retry, aretry = sync_and_async(_retry)

    async def _to_retry(self, broker: Broker, graph: Graph, *, cancelled: bool) -> list[str]:
        """Dead nodes; of a map, the dead items instead of itself."""
        by_id: dict[str, Standing] = {}
        found: list[str] = []
        maps: list[Record] = []
        async for id, record in records_of(broker, graph.ids(self.id)):
            if record is None:
                continue
            by_id[id] = standing(record)
            if is_map(record) and record.state is not State.SUCCEEDED:
                maps.append(record)
            elif record.state is State.DEAD:
                found.append(id)
        for record in maps:
            items = [id for _, id in await item_jobs(broker, self.id, record.job.node, record)]
            dead = [
                id
                async for id, one in records_of(broker, items)
                if one is not None and one.state is State.DEAD
            ]
            found += dead
            if not dead and record.state is State.DEAD:
                found.append(record.id)
        if cancelled:
            found += [
                id
                for id, node in by_id.items()
                if node.state is State.CANCELLED and node.orphaned_by is None and not is_skipped(node, by_id)
            ]
        return found

    async def _read_graph(self, broker: Broker) -> Graph:
        if self._graph is None:
            _, self._graph = await read_flow(broker, self.id)
        return self._graph

    def handle_of(self, place: int | None) -> NodeHandle[Any]:
        """The handle of a node's job, by its place in the graph; None: of the flow's own job."""
        if place is None or self._graph is None:
            return NodeHandle(self.app, self.id, flow=self)
        id, task = self._graph.id_of(self.id, place), self._graph.nodes[place].task
        return NodeHandle(self.app, id, task, flow=self)


class NoFlow(FlowHandle[R]):
    """The handle of a group without calls: there is nothing to run, and the result is known."""

    __slots__ = ("_result",)

    def __init__(self, result: Any) -> None:
        self.id, self.name, self.duplicate, self._result = "", "group", False, result

    def get(self, timeout: Timeout = None) -> R:
        result: R = self._result
        return result

    async def aget(self, timeout: Timeout = None) -> R:
        return self.get()

    def status(self) -> FlowStatus:
        return FlowStatus(flow_state(State.SUCCEEDED), {})

    async def astatus(self) -> FlowStatus:
        return self.status()

    def cancel(self, reason: str = "cancelled") -> bool:
        """There is nothing to cancel."""
        return False

    async def acancel(self, reason: str = "cancelled") -> bool:
        return False

    def retry(self) -> bool:
        """There is nothing to run again."""
        return False

    async def aretry(self) -> bool:
        return False


class NodeHandle(JobHandle[R], Generic[R], eq=False, kw_only=True):
    """The handle of a job that is a node of a flow."""

    flow: FlowHandle[Any]
    """The flow that it belongs to."""


async def _edit(broker: Broker, ids: Sequence[str], action: JobAction) -> None:
    for first in range(0, len(ids), PAGE_MAX):
        await broker.edit(Ids(tuple(ids[first : first + PAGE_MAX])), action)


async def _result(link: Link, flow: FlowHandle[Any], timeout: Timeout) -> Any:
    record = (await finished_records(link, [flow.id], timeout))[flow.id]
    if record is None or record.state is not State.SUCCEEDED or record.result is not None:
        return outcome_of(JobHandle(flow.app, flow.id), record)
    graph = await flow._read_graph(link.broker)  # its result is too large to be kept twice
    return await compose(flow.app, link.broker, flow.id, graph)


async def compose(app: App, broker: Broker, flow: str, graph: Graph) -> Any:
    """The result of a flow, from those of its nodes; None for one that was skipped."""
    values = []
    async for _, record in records_of(broker, [graph.id_of(flow, place) for place in nodes_in(graph.result)]):
        result = None if record is None else record.result
        values.append(None if result is None else app.codecs.decode_value(result, limit=INPUTS_MAX))
    return fill(graph.result, values)
