"""`app.flow()` and `app.flows`: flows to build, and flows to look at, also for operators and servers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dray.admin.parts import AppPart, AppParts
from dray.broker.actions import Query
from dray.broker.verbs import Broker
from dray.client.link import Link
from dray.client.sync_async import AppApi, sync_and_async
from dray.errors import InvalidInput
from dray.flows.graph import FLOW_TASK
from dray.flows.handle import FlowHandle
from dray.flows.reading import FlowState, flow_state, graph_of_record
from dray.info import moment
from dray.job import Record, State
from dray.task import Task

if TYPE_CHECKING:
    from dray.flows.builders import Flow

_JOB_STATES: Final = {
    FlowState.SUCCEEDED: (State.SUCCEEDED,),
    FlowState.FAILED: (State.DEAD,),
    FlowState.CANCELLED: (State.CANCELLED,),
    FlowState.RUNNING: (State.WAITING, State.READY, State.RUNNING, State.SCHEDULED, State.RETRYING),
}


class FlowSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A flow in a list."""

    id: str
    name: str
    status: FlowState
    nodes: int
    tasks: list[str]
    queues: list[str]
    reason: str | None = None
    key: str | None = None
    created_at: datetime
    finished_at: datetime | None = None


class FlowMaker(AppParts):
    """Base of `App`: what it does with flows."""

    flows: AppPart[Flows] = AppPart("dray.flows.api:Flows")
    tasks: dict[str, Task[..., Any]]
    _built_in: dict[str, Task[..., Any]] | None = None

    def flow(self, name: str, *, key: str | None = None) -> Flow:
        """A graph of jobs to be built: see `Flow.add` and `Flow.map`, and docs/flows.md.

        `key`: one unfinished flow per key; a second one is not enqueued, and its handle is that of the first.
        """
        kind: type[Flow] = import_module("dray.flows.builders").Flow
        return kind(self, name, key)  # type: ignore[arg-type]

    def all_tasks(self) -> dict[str, Task[..., Any]]:
        """Its tasks, and dray's own, which every worker runs."""
        if self._built_in is None:
            self._built_in = import_module("dray.flows.tasks").built_in_tasks(self)
        return {**self.tasks, **self._built_in}


class Flows(AppApi):
    """`app.flows`."""

    def get(self, id: str) -> FlowHandle[Any]:
        """The handle of a flow by its id. The broker is not asked whether it exists."""
        return FlowHandle(self._app, id)

    async def _find(
        self, link: Link, state: str | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> tuple[list[FlowSummary], str | None]:
        """Flows, the newest first, and where the next page begins; with `state` in the order of their
        jobs."""
        if state is not None and state not in _JOB_STATES:
            allowed = ", ".join(_JOB_STATES)
            raise InvalidInput("state", state, f"one of {allowed} is allowed")
        jobs = (None,) if state is None else _JOB_STATES[FlowState(state)]
        place, _, cursor = (cursor or "0:").partition(":")
        at = int(place) if place.isdigit() else len(jobs)
        found: list[FlowSummary] = []
        position: str | None = cursor or None
        while at < len(jobs) and len(found) < limit:
            query = Query(state=jobs[at], task=FLOW_TASK)
            left = limit - len(found)
            page = await link.broker.find(query, cursor=position, limit=left, newest=state is None)
            found += [await _summary(link.broker, record) for record in page.records]
            position = page.cursor
            at += position is None
        return found, None if at >= len(jobs) else f"{at}:{position or ''}"

    async def _submit(self, link: Link, graph: Mapping[str, Any]) -> FlowHandle[Any]:
        """Enqueue a flow that is described in JSON types: see `POST /api/flows` in docs/flows.md."""
        described: type[Any] = import_module("dray.flows.described").DescribedFlow
        flow: FlowHandle[Any] = await described.of(graph).build(self._app)._enqueue(link)
        return flow

    find, afind = sync_and_async(_find)
    submit, asubmit = sync_and_async(_submit)


async def _summary(broker: Broker, record: Record) -> FlowSummary:
    graph = await graph_of_record(broker, record)
    return FlowSummary(
        id=record.id,
        name=record.job.description,
        status=flow_state(record.state),
        nodes=len(graph.nodes),
        tasks=graph.tasks,
        queues=graph.queues,
        reason=record.reason,
        key=record.job.key,
        created_at=moment(record.created),
        finished_at=None if record.finished is None else moment(record.finished),
    )
