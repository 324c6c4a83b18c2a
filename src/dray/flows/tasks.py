"""The built-in tasks, which every worker runs: the end of a flow, the items of a map, a stand-in.

They run like any task, on the event loop of an executor, and may run again at any point: ids are derived, so
what was put before is there, and the last run looks at what has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from dray.broker.actions import Cancel, Ids
from dray.broker.verbs import PAGE_MAX, PUT_STEP, Broker
from dray.codec.inputs import RESULT_MAX
from dray.context import CURRENT, Context, EndRun
from dray.errors import TooLarge
from dray.flows.graph import (
    FLOW_TASK,
    MAP_TASK,
    NODES_MAX,
    SAME_TASK,
    Graph,
    Template,
    fill,
    jobs_of,
    node_id,
    nodes_in,
    unpack_template,
)
from dray.flows.handle import compose
from dray.flows.pages import load_graph
from dray.flows.placement import is_being_placed, put_nodes
from dray.flows.reading import (
    GONE,
    Standing,
    is_skipped,
    is_unfinished,
    names_of_item,
    records_of,
    standing,
    standings,
)
from dray.job import FINISHED, Error, Job, OutcomeKind, Record, State, Suspension
from dray.task import CoroutineTask, Task

if TYPE_CHECKING:
    from dray.app import App

PLACING: Final = 500
"""Milliseconds until a flow is looked at again whose jobs are not all placed yet."""
WAIT_MAX: Final = 1000
"""Nodes that a flow waits for at a time, beyond its last ones: the others are looked at again after that."""


async def end_flow(ctx: Context, graph: bytes | int) -> Any:
    """Ends a flow when all its nodes have ended."""
    broker, flow = await _broker(ctx), ctx.job.id
    found = await load_graph(broker, flow, graph)
    counts = await broker.tally(flow, found.queues)
    if set(counts) != {State.SUCCEEDED} or counts[State.SUCCEEDED] < len(found.nodes):
        nodes = await _nodes(broker, found, flow)
        if GONE in nodes.values() and await is_being_placed(broker, flow):
            wait = Suspension(until=broker.clock() + PLACING)
            raise EndRun(OutcomeKind.SUSPENDED, suspend=wait)
        _judge(found, nodes)
    result = await compose(ctx.app, broker, flow, found)
    try:
        ctx.app.codecs.encode_value(result, limit=RESULT_MAX)
    except TooLarge:  # the handle reads it from the nodes
        raise EndRun(OutcomeKind.SUCCEEDED) from None
    return result


async def _broker(ctx: Context) -> Broker:
    return (await ctx.app.client.loop_link()).broker


def _job() -> Job:
    running = CURRENT.get()
    assert running is not None  # noqa: S101 (a worker runs it)
    return running.taken.job


async def _nodes(broker: Broker, graph: Graph, flow: str) -> dict[str, Standing]:
    ids = graph.ids(flow)
    return dict(zip(ids, await standings(broker, ids), strict=True))


def _judge(graph: Graph, nodes: dict[str, Standing]) -> None:
    """Raises how the flow ends, if not in success; or that it has to wait."""
    unfinished = [id for id, node in nodes.items() if is_unfinished(node)]
    if unfinished:
        wait = Suspension(jobs=tuple(unfinished[:WAIT_MAX]), all_jobs=True)
        raise EndRun(OutcomeKind.SUSPENDED, suspend=wait)
    tolerated = graph.tolerated()
    cancelled: tuple[str, Standing] | None = None
    for place, node in enumerate(nodes.values()):
        name = graph.nodes[place].name
        if place in tolerated or node.state is State.SUCCEEDED:
            continue
        if node.state is not State.CANCELLED:
            what = "was deleted" if node.state is State.NOT_FOUND else f"is dead: {node.reason}"
            raise EndRun(OutcomeKind.DEAD, f"node {name} {what}", error=_error(name, node))
        if cancelled is None and node.orphaned_by is None and not is_skipped(node, nodes):
            cancelled = (name, node)
    if cancelled is not None:
        raise EndRun(OutcomeKind.CANCELLED, f"node {cancelled[0]} was cancelled: {cancelled[1].reason}")


def _error(name: str, node: Standing) -> Error:
    """The node's error, with its name before the message: this is what `flow.get()` raises."""
    error = node.error or Error("JobFailed", node.reason)
    return msgspec.structs.replace(error, message=f"node {name}: {error.message}")


async def run_map(ctx: Context, template: bytes, items: Any) -> list[Any]:
    """Puts the jobs of each item, waits for them, and returns the list of their results."""
    broker, job = await _broker(ctx), _job()
    if not isinstance(items, list | tuple | set | frozenset):
        reason = f"a map needs a list, and got {type(items).__name__}"
        raise EndRun(OutcomeKind.DEAD, reason, error=Error("TypeError", reason))
    made = _Map(broker, job, unpack_template(template), len(items))
    return await made.results(ctx.app, list(items)) if items else []


class _Map:
    """The items of one map."""

    def __init__(self, broker: Broker, job: Job, template: Template, count: int) -> None:
        if count * len(template.parts) > NODES_MAX:
            reason = f"a map of {count:,} items has more than {NODES_MAX:,} jobs"
            raise EndRun(OutcomeKind.DEAD, reason, error=Error("TooLarge", reason))
        self._broker, self._template, self._count = broker, template, count
        self._flow, self._name = job.owner or job.id, job.node
        self._places = list(nodes_in(template.result))

    async def results(self, app: App, items: list[Any]) -> list[Any]:
        ends = [id for index in range(self._count) for id in self._ends(index)]
        (first,) = await self._broker.get(ends[:1])
        records = (
            [record async for _, record in records_of(self._broker, ends)] if first is not None else [None]
        )
        if any(record is None for record in records):
            await self._put(app, items)
            raise EndRun(OutcomeKind.SUSPENDED, suspend=Suspension(jobs=tuple(ends), all_jobs=True))
        found = cast("list[Record]", records)
        unfinished = tuple(record.id for record in found if record.state not in FINISHED)
        if unfinished:
            raise EndRun(OutcomeKind.SUSPENDED, suspend=Suspension(jobs=unfinished, all_jobs=True))
        await self._check(found)
        values = [
            None if one.result is None else app.codecs.decode_value(one.result, limit=RESULT_MAX)
            for one in found
        ]
        each = len(self._places)
        return [fill(self._template.result, values[n * each : n * each + each]) for n in range(self._count)]

    def _ends(self, index: int) -> list[str]:
        names, parts = names_of_item(self._template, self._name, index), self._template.parts
        return [node_id(self._flow, parts[place].job.queue, names[place]) for place in self._places]

    async def _put(self, app: App, items: list[Any]) -> None:
        """Put the jobs of all items. If the map is cancelled meanwhile, so are they."""
        put: list[str] = []
        jobs: list[Job] = []
        try:
            for index, item in enumerate(items):
                encoded = app.codecs.encode_value(item, limit=RESULT_MAX)
                names = names_of_item(self._template, self._name, index)
                jobs += jobs_of(self._template, self._flow, names, encoded)
                if len(jobs) >= PUT_STEP or index == len(items) - 1:
                    put += [job.id for job in jobs]
                    await self._put_step(jobs)
                    jobs = []
        except asyncio.CancelledError:
            running = CURRENT.get()
            if running is not None and running.cancelled:
                for first in range(0, len(put), PAGE_MAX):
                    ids = Ids(tuple(put[first : first + PAGE_MAX]))
                    await self._broker.edit(ids, Cancel("the map that made it was cancelled"))
            raise

    async def _put_step(self, jobs: list[Job]) -> None:
        """The last jobs of an item are put last: where they are, all of it is."""
        parts, places = len(self._template.parts), set(self._places)
        last = [n % parts in places for n in range(len(jobs))]
        await put_nodes(self._broker, [job for job, ends in zip(jobs, last, strict=True) if not ends])
        await put_nodes(self._broker, [job for job, ends in zip(jobs, last, strict=True) if ends])

    async def _check(self, records: Sequence[Record]) -> None:
        """Raises the end of the map if an item did not succeed."""
        bad = [record for record in records if record.state is not State.SUCCEEDED]
        known = {record.id: standing(record) for record in records}
        for record in bad:
            causes = await self._causes(record)
            known.update({one.id: standing(one) for one in causes})
            if is_skipped(known[record.id], known):
                continue
            culprit = causes[-1]
            reason = f"item {culprit.job.node} ({culprit.id}) is {culprit.state}: {culprit.reason}"
            raise EndRun(OutcomeKind.DEAD, reason, error=culprit.error or Error("JobFailed", reason))

    async def _causes(self, record: Record) -> list[Record]:
        """The job, the one whose end cancelled it, and so on."""
        found = [record]
        while (cause := found[-1].orphaned_by) is not None:
            (following,) = await self._broker.get([cause])
            if following is None or following in found:
                break
            found.append(following)
        return found


async def pass_on(value: Any) -> Any:
    """Stands in for a job whose key was taken: returns the result of the job that has it."""
    return value


def built_in_tasks(app: App) -> dict[str, Task[..., Any]]:
    functions: dict[str, Callable[..., Any]] = {FLOW_TASK: end_flow, MAP_TASK: run_map, SAME_TASK: pass_on}
    tasks: dict[str, Task[..., Any]] = {}
    for name, function in functions.items():
        tasks[name] = CoroutineTask(app, name, function)
        tasks[name].built_in = True
    return tasks
