"""Flows over HTTP: enqueue a graph, list, show, cancel, retry."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Literal

from dray.codec.inputs import When
from dray.errors import JobNotFound, UnknownTask, near_names
from dray.flows.handle import FlowHandle
from dray.flows.reading import FlowInfo
from dray.info import plain
from dray.job import check_word
from dray.options import CALL_OPTIONS, Name, Word
from dray.serve.errors import Refused
from dray.serve.http_request import HttpRequest
from dray.serve.models import Acted, CancelIn, In, Out, PageQuery, with_options
from dray.serve.request import Request
from dray.serve.routes import Reply, Route
from dray.task import BUILT_IN

NODES_SHOWN: Final = 10_000
_NODE_FIELDS: Final = ("name", "when", "after", "map")

FlowNodeIn = with_options(
    "FlowNodeIn",
    'A node of a flow. `{"$node": NAME}` among its arguments means the result of that node; `map` names the '
    "node, or is the list, for whose items the task runs one by one.",
    [option for option in CALL_OPTIONS.values() if option.name not in ("id", "on_duplicate")],
    [("name", Name), ("when", When, "success"), ("after", list[Name], []), ("map", Any, None)],
)


class FlowIn(In):
    """A flow to enqueue: all of it is accepted, or nothing."""

    nodes: list[FlowNodeIn]  # type: ignore[valid-type]
    name: Name = "flow"
    key: Word | None = None


class FlowSubmitted(Out):
    id: str
    status: str
    duplicate: bool


class FlowRow(Out):
    """A flow in a list."""

    id: str
    name: str
    status: str
    nodes: int
    tasks: list[str]
    queues: list[str]
    reason: str | None
    key: str | None
    created_at: datetime
    finished_at: datetime | None


class FlowsOut(Out):
    """Flows, the newest first. Go on with `cursor` until it is null; a page may be short before that."""

    flows: list[FlowRow]
    cursor: str | None


class FlowNodeOut(Out):
    name: str
    id: str
    task: str
    queue: str
    status: str
    when: str
    is_map: bool
    items_of: list[str]
    skipped: bool
    reason: str | None
    started_at: datetime | None
    finished_at: datetime | None
    items: dict[str, int] | None
    """Of a map: its items by state."""


class FlowOut(Out):
    """A flow: its nodes, which waits for which, and its jobs by state."""

    id: str
    name: str
    status: str
    reason: str | None
    key: str | None
    created_at: datetime
    finished_at: datetime | None
    counts: dict[str, int]
    nodes: list[FlowNodeOut]
    edges: list[list[str]]
    """Pairs of names: an input, and the node that waits for it."""
    truncated: bool
    """There are more nodes, which are only counted."""


class FlowsQuery(PageQuery):
    state: Literal["running", "succeeded", "failed", "cancelled"] | None = None


async def submit(request: HttpRequest) -> Reply:
    """Enqueue a flow. 200 if its key was taken: then it is the flow that was there before."""
    given: FlowIn = request.body
    nodes = [_node(request, node) for node in given.nodes]
    try:
        flow = await request.app.flows.asubmit({"name": given.name, "key": given.key, "nodes": nodes})
    except TypeError as error:
        raise Refused(422, "invalid_args", str(error), "nodes") from error
    if flow.duplicate:
        await find_flow(request, flow.id)
    done = FlowSubmitted(id=flow.id, status=str(await flow.astatus()), duplicate=flow.duplicate)
    return Reply(done, 200 if flow.duplicate else 201)


def _node(request: HttpRequest, node: Any) -> dict[str, Any]:
    """A node in the form of `app.flows.submit`; refused if the caller may not enqueue it."""
    app, caller = request.app, request.caller
    caller.need(task=node.task)
    task = app.tasks.get(node.task)
    if task is None and not app.settings.accept_unknown_tasks:
        known = sorted(name for name in app.tasks if caller.reaches(task=name))
        raise UnknownTask(node.task, near_names(node.task, known), known)
    caller.need(queue=node.queue or (task and task.options.queue) or "default")
    options = {name: value for name, value in node.options().items() if name not in _NODE_FIELDS}
    plain_node = {"name": node.name, "task": node.task, "args": node.args, "kwargs": node.kwargs}
    more = {} if node.map is None else {"map": node.map}
    return {**options, **plain_node, "when": node.when, "after": node.after, **more}


def may_see(request: Request, tasks: list[str], queues: list[str]) -> bool:
    own = (task for task in tasks if not task.startswith(BUILT_IN))
    caller = request.caller
    return all(caller.reaches(task=task) for task in own) and all(caller.reaches(queue) for queue in queues)


async def find_flow(request: Request, id: str) -> tuple[FlowHandle[Any], FlowInfo]:
    """A flow by its id; one with a node outside the caller's limits does not exist for it."""
    flow = request.app.flows.get(check_word("id", id))
    try:
        info = await flow.ainfo()
        tasks = [task for node in info.nodes for task in node.items_of or (node.task,)]
        if may_see(request, tasks, [node.queue for node in info.nodes]):
            return flow, info
    except JobNotFound:
        pass
    raise Refused(404, "flow_not_found", f"no flow {id}: it never was, or its record is not kept any more")


async def find(request: HttpRequest) -> Reply:
    """Flows, the newest first, a page at a time."""
    query: FlowsQuery = request.query
    found, cursor = await request.app.flows.afind(query.state, limit=query.limit, cursor=query.cursor)
    rows = [FlowRow(**plain(flow)) for flow in found if may_see(request, flow.tasks, flow.queues)]
    _hide_reasons(request, rows)
    return Reply(FlowsOut(flows=rows, cursor=cursor))


def _hide_reasons(request: HttpRequest, shown: Sequence[FlowRow | FlowOut | FlowNodeOut]) -> None:
    """A reason may hold the text of an error, which some keys do not see."""
    for one in shown if request.caller.hides_values else ():
        one.reason = None


async def show(request: HttpRequest) -> Reply:
    """A flow with its nodes and edges."""
    _, info = await find_flow(request, request.path["id"])
    shown = _flow_out(info)
    _hide_reasons(request, [shown, *shown.nodes])
    return Reply(shown)


def _flow_out(info: FlowInfo) -> FlowOut:
    nodes = info.nodes[:NODES_SHOWN]
    return FlowOut(
        id=info.id,
        name=info.name,
        status=str(info.status),
        reason=info.reason,
        key=info.key,
        created_at=info.created_at,
        finished_at=info.finished_at,
        counts={str(state): count for state, count in info.counts.items()},
        nodes=[
            FlowNodeOut(**{name: value for name, value in plain(node).items() if name != "inputs"})
            for node in nodes
        ],
        edges=[[one, node.name] for node in nodes for one in node.inputs],
        truncated=len(nodes) < len(info.nodes),
    )


async def cancel(request: HttpRequest) -> Reply:
    """Cancel a flow: what has not started never will, what runs is asked to stop."""
    given: CancelIn = request.body or CancelIn()
    flow, _ = await find_flow(request, request.path["id"])
    changed = await flow.acancel(given.reason or f"cancelled by {request.caller.name}")
    return Reply(Acted(id=flow.id, status=str(await flow.astatus()), changed=changed))


async def retry(request: HttpRequest) -> Reply:
    """Run the dead nodes of a flow again; what was cancelled because of them is revived."""
    flow, _ = await find_flow(request, request.path["id"])
    changed = await flow.aretry()
    return Reply(Acted(id=flow.id, status=str(await flow.astatus()), changed=changed))


ROUTES: Final = (
    Route(
        "POST",
        "/api/flows",
        submit,
        "submit",
        "Enqueue a flow",
        {201: FlowSubmitted, 200: FlowSubmitted},
        body=FlowIn,
        errors=(409, 413),
    ),
    Route("GET", "/api/flows", find, "read", "Find flows", {200: FlowsOut}, query=FlowsQuery),
    Route("GET", "/api/flows/{id}", show, "read", "A flow, its nodes and edges", {200: FlowOut}),
    Route(
        "POST",
        "/api/flows/{id}/cancel",
        cancel,
        "submit",
        "Cancel a flow",
        {200: Acted},
        body=CancelIn,
        body_needed=False,
        bulk=True,
    ),
    Route(
        "POST",
        "/api/flows/{id}/retry",
        retry,
        "admin",
        "Run the dead nodes of a flow again",
        {200: Acted},
        bulk=True,
    ),
)
