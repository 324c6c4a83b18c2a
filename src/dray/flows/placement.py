"""Accepts a flow as a whole or not at all, and puts its jobs.

A flow of one queue without keys is put in one atomic step. Any other is written down first: a document `flow`
(its head, a draft), the jobs in pages of bounded size, and then the head once more, committed. That write
is the acceptance. Before it nothing exists but documents, which the leader removes when the draft is old;
after it the jobs are put, by the client or, if that died, by the leader: ids are derived, so putting twice
has no effect. The job of the flow comes first, then all jobs that wait for others, and last those that can
start: none runs before all are placed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from uuid_utils import uuid7

from dray.broker.verbs import PUT_STEP, Broker
from dray.client.enqueue_middleware import pass_all_through
from dray.client.link import Link
from dray.codec.inputs import Filled, Slot, write
from dray.codec.values import encode_call
from dray.errors import DrayError
from dray.flows.assembly import BUILT_IN_RETRIES, HOUR, Assembly, Before
from dray.flows.graph import (
    FLOW_TASK,
    SAME_TASK,
    Template,
    graph_of,
    jobs_of,
    last_nodes,
    nodes_in,
    pack_graph,
)
from dray.flows.handle import FlowHandle
from dray.flows.pages import GRAPHS, HEADS, JOBS, delete_pages, packed, page_name, read_pages, split, unpacked
from dray.job import Job
from dray.options import Durability
from dray.task import Call

if TYPE_CHECKING:
    from dray.app import App

INLINE_MAX: Final = 64 * 1024
"""Bytes of a graph that the job of the flow carries itself; a larger one has pages."""
ONE_STEP_BYTES: Final = 4 * 1024 * 1024
_DEFAULT_QUEUE: Final = "default"


class Head(msgspec.Struct, frozen=True, array_like=True):
    """The document of a flow that is being placed, or whose graph has pages."""

    state: Literal["draft", "committed", "placed"]
    written: int
    """When, by the broker's clock."""
    jobs: int
    """Pages of jobs, and of the graph."""
    graph: int
    full: bool = False
    """`durability="full"`."""


_pack = msgspec.msgpack.Encoder().encode
unpack_head = msgspec.msgpack.Decoder(Head).decode
_unpack_jobs = msgspec.msgpack.Decoder(list[Job]).decode


async def accept(
    link: Link, assembly: Assembly, end: Before, name: str, key: str | None = None
) -> FlowHandle[Any]:
    """Check and accept the nodes of an assembly, whose result is that of its end."""
    app = assembly.app
    if app.enqueue_middleware_chain:
        await pass_all_through(app, link, list(assembly.each()))
    calls = [node.call for node in assembly.each()]
    nothing: AbstractContextManager[dict[str, str]] = nullcontext({})
    with nothing if app.tracing is None or not calls else app.tracing.sending(calls, name) as trace:
        for node in assembly.each() if trace else ():
            own = node.call.options.get("headers", {}) if node.headers is None else node.headers
            node.headers = {**trace, **own}
        template = assembly.template(end.value)
        flow = _flow_job(app, name, key, template, trace)
        existing = await _accept(link.broker, flow, template, name, "full" if assembly.durable else None)
    app.client.arrivals.add(FLOW_TASK, flow.queue)
    for job in template.parts:
        app.client.arrivals.add(job.job.task, job.job.queue)
    if existing is not None:
        return FlowHandle(app, existing, name, duplicate=True)
    return FlowHandle(app, flow.id, name, graph=graph_of(name, template))


def _flow_job(app: App, name: str, key: str | None, template: Template, headers: dict[str, str]) -> Job:
    """The job of the flow, without its payload and dependencies."""
    places = list(nodes_in(template.result)) or list(range(len(template.parts)))
    last = template.parts[places[-1]].job if places else None
    options: dict[str, Any] = {"queue": last.queue if last else _DEFAULT_QUEUE, "description": name}
    if last is not None:
        options["priority"] = last.priority
    if key is not None:
        options["key"] = key
    job = app.job_builder.build(Call(FLOW_TASK, (), {}, options), headers or None)
    return msgspec.structs.replace(
        job, id=f"{job.queue}:{uuid7().hex}", orphan="follow", retries=BUILT_IN_RETRIES, timeout=HOUR
    )


async def _accept(
    broker: Broker, flow: Job, template: Template, name: str, durability: Durability | None
) -> str | None:
    """Write down and put a flow; the id of the flow that has its key, if there is one."""
    jobs = jobs_of(template, flow.id, [part.name for part in template.parts])
    graph = packed(pack_graph(graph_of(name, template)))
    inline = len(graph) <= INLINE_MAX
    pages = [] if inline else split(graph)
    payload = b"\x01" + encode_call((graph if inline else len(pages),), {})
    waits_for = tuple(jobs[place].id for place in last_nodes(template))
    flow = msgspec.structs.replace(flow, payload=payload, waits_for=waits_for)
    everything = [flow, *jobs]
    size = sum(len(job.payload) for job in everything)
    one_queue = all(job.queue == flow.queue and job.key is None for job in everything)
    if inline and one_queue and len(everything) <= PUT_STEP and size <= ONE_STEP_BYTES:
        await broker.put(_roots_last(everything), durability=durability)
        return None
    head = Head("draft", broker.clock(), 0, len(pages), durability == "full")
    return await _write_and_place(broker, head, everything, pages)


def _roots_last(jobs: Sequence[Job]) -> list[Job]:
    return [job for job in jobs if job.waits_for] + [job for job in jobs if not job.waits_for]


async def _write_and_place(broker: Broker, head: Head, jobs: list[Job], graph: list[bytes]) -> str | None:
    flow = jobs[0]
    pages = split(packed(_pack(jobs)))
    head = msgspec.structs.replace(head, jobs=len(pages))
    draft = await broker.doc(HEADS, flow.id, _pack(head), expect_version=0)
    for kind, contents in ((JOBS, pages), (GRAPHS, graph)):
        for number, page in enumerate(contents):
            await broker.doc(kind, page_name(flow.id, number), page)
    version = draft.doc.version if draft.doc is not None else 0
    committed = msgspec.structs.replace(head, state="committed")
    reply = await broker.doc(HEADS, flow.id, _pack(committed), expect_version=version)
    if not reply.written:
        raise DrayError(f"flow {flow.id} was not accepted: writing it took too long; enqueue it again")
    return await finish(broker, flow.id, committed, jobs)


# after the commit, by the client or the leader


async def finish(broker: Broker, flow: str, head: Head, jobs: Sequence[Job]) -> str | None:
    """Put the jobs of a committed flow, and remove what is not needed any more. The id of the flow that has
    its key, if there is one."""
    existing = await place(broker, jobs, "full" if head.full else None)
    graph = 0 if existing is not None else head.graph
    placed = msgspec.structs.replace(head, state="placed", graph=graph)
    await broker.doc(HEADS, flow, _pack(placed))
    if existing is not None:
        await delete_pages(broker, GRAPHS, flow, head.graph)
    await tidy(broker, flow, placed)
    return existing


async def tidy(broker: Broker, flow: str, head: Head) -> None:
    """Delete the pages of jobs of a placed flow, and its head if no graph hangs on it."""
    await delete_pages(broker, JOBS, flow, head.jobs)
    if not head.graph:
        await broker.doc(HEADS, flow, None)


async def read_jobs(broker: Broker, flow: str, head: Head) -> list[Job] | None:
    """The jobs of a committed flow; None if its pages are gone."""
    data = await read_pages(broker, JOBS, flow, head.jobs)
    return None if data is None else _unpack_jobs(unpacked(data))


async def place(broker: Broker, jobs: Sequence[Job], durability: Durability | None) -> str | None:
    """Put the jobs of a flow, the flow's own first; the id of the flow that has its key, if there is one."""
    (accepted,) = await broker.put(jobs[:1], durability=durability)
    if accepted.id != jobs[0].id:
        return accepted.id
    await put_nodes(broker, jobs[1:], durability)
    return None


async def put_nodes(broker: Broker, jobs: Sequence[Job], durability: Durability | None = None) -> None:
    """Put nodes, inputs before those that wait for them: at last those that can start.

    Those with a key come first: if it is taken, jobs that already wait for the node would be cancelled.
    """
    for step in _keyed_steps([job for job in jobs if job.key is not None]):
        replies = await broker.put(step, durability=durability)
        for job, accepted in zip(step, replies, strict=True):
            if accepted.id != job.id:
                await _put_stand_in(broker, job, accepted.id, durability)
    rest = _roots_last([job for job in jobs if job.key is None])
    waiting = sum(1 for job in rest if job.waits_for)
    for part in (rest[:waiting], rest[waiting:]):
        for first in range(0, len(part), PUT_STEP):
            await broker.put(part[first : first + PUT_STEP], durability=durability)


def _keyed_steps(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """Steps in which no job waits for another."""
    step: dict[str, Job] = {}
    for job in jobs:
        if len(step) >= PUT_STEP or any(id in step for id in job.waits_for):
            yield list(step.values())
            step = {}
        step[job.id] = job
    if step:
        yield list(step.values())


async def is_being_placed(broker: Broker, flow: str) -> bool:
    """True while jobs of a flow may still be missing because its client, or the leader, is about to put
    them."""
    doc = (await broker.doc(HEADS, flow)).doc
    return doc is not None and unpack_head(doc.value).state == "committed"


async def _put_stand_in(broker: Broker, job: Job, existing: str, durability: Durability | None) -> None:
    while True:
        if (await broker.get([existing]))[0] is not None:
            await broker.put([_stand_in(job, existing)], durability=durability)
            return
        (accepted,) = await broker.put([job], durability=durability)  # the job that had the key is gone
        if accepted.id == job.id:
            return
        existing = accepted.id


def _stand_in(job: Job, existing: str) -> Job:
    call = b"\x01" + encode_call((None,), {})
    return Job(
        id=job.id,
        task=SAME_TASK,
        queue=job.queue,
        payload=write(Filled(call, "success", [Slot([0], [0, 1])])),
        priority=job.priority,
        waits_for=(existing,),
        orphan="cancel",
        retries=BUILT_IN_RETRIES,
        tags=job.tags,
        description=job.description,
        headers=job.headers,
        owner=job.owner,
        node=job.node,
        result_ttl=job.result_ttl,
    )
