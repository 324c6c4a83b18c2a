"""Converts our values to messages of `dray.v1`, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, cast

import msgspec
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from dray.admin.held_job import HeldJob
from dray.broker.verbs import Entry, QueueInfo
from dray.codec.payload import to_json
from dray.errors import EncodeError
from dray.flows.api import FlowSummary
from dray.flows.reading import FlowInfo, NodeInfo
from dray.info import JobInfo, moment, plain
from dray.job import Error, Progress, State, check_progress_data
from dray.options import CALL_OPTIONS
from dray.serve.errors import Refused
from dray.serve.models import CallIn, JobIn
from dray.serve.rpc import dray_pb2 as pb

T = TypeVar("T")

_ON_DUPLICATE: Final[Mapping[int, str]] = {
    pb.ON_DUPLICATE_RETURN: "return",
    pb.ON_DUPLICATE_RAISE: "raise",
    pb.ON_DUPLICATE_REPLACE: "replace",
}
OPTION_FIELDS: Final[Mapping[str, Any]] = {
    name: fields[field]
    for fields in [pb.EnqueueRequest.DESCRIPTOR.fields_by_name]
    for name in CALL_OPTIONS
    for field in (name, f"{name}_seconds", f"max_{name}")
    if field in fields
}
"""Options of a call and the descriptors of the fields that hold them; durability has none."""
_write = msgspec.json.Encoder().encode


_STATES: Final = {
    name.removeprefix("STATE_").lower(): cast(pb.State, value) for name, value in pb.State.items()
}


def state(name: str) -> pb.State:
    """A state by its name; one that the .proto does not know is unspecified."""
    return _STATES.get(name, pb.STATE_UNSPECIFIED)


def stamp(when: datetime | None) -> Timestamp | None:
    if when is None:
        return None
    message = Timestamp()
    message.FromDatetime(when.astimezone(UTC).replace(tzinfo=None))
    return message


def given(message: Message, field: str) -> Any:
    """The value of an optional field; None if it was not given."""
    return getattr(message, field) if message.HasField(field) else None


# in


def read_json(field: str, text: str, kind: type[T], default: T) -> T:
    """The value of a JSON text; an empty text means the default."""
    if not text:
        return default
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Refused(422, f"invalid_{field}", f"{field}: {error}", field) from None


def job_in(request: pb.EnqueueRequest) -> CallIn:
    """A job to enqueue; its values are checked later, as those of an HTTP request."""
    given: dict[str, Any] = {}
    for field, value in request.ListFields():  # those that were given
        name = field.name
        read = _READERS.get(name)
        given[_OPTIONS.get(name, name)] = value if read is None else read(value)
    return JobIn(**({"task": ""} | given))


def _read_on_duplicate(value: int) -> str:
    if value not in _ON_DUPLICATE:
        raise Refused(422, "invalid_on_duplicate", "a value of OnDuplicate is allowed", "on_duplicate")
    return _ON_DUPLICATE[value]


def _read_time(value: Timestamp) -> datetime:
    try:
        return value.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise Refused(422, "invalid_at", "a time from 1970 to 9999 is allowed", "at") from None


_OPTIONS: Final = {"args_json": "args", "kwargs_json": "kwargs"} | {
    field.name: name for name, field in OPTION_FIELDS.items()
}
"""The fields of an `EnqueueRequest` and their names elsewhere."""
_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "args_json": lambda text: read_json("args_json", text, list[Any], []),
    "kwargs_json": lambda text: read_json("kwargs_json", text, dict[str, Any], {}),
    "at": _read_time,
    "on_duplicate": _read_on_duplicate,
    "headers": dict,
    "tags": list,
}


def read_error(message: pb.NackRequest | pb.WorkNack) -> Error | None:
    if not message.HasField("error"):
        return None
    error = message.error
    return Error(error.type or "Failed", error.message, error.traceback)


def read_progress(message: pb.ExtendRequest | pb.WorkProgress) -> Progress | None:
    if not message.HasField("progress"):
        return None
    progress = message.progress
    data = check_progress_data(read_json("data_json", progress.data_json, dict, {}))
    return Progress(progress.done, given(progress, "total"), progress.note, data)


# out


def job_out(info: JobInfo, result: object) -> pb.Job:
    """Everything known of a job. `result` is a tuple of one, or None if there is none."""
    message = pb.Job(
        id=info.id,
        task=info.task,
        queue=info.queue,
        priority=_whole(info.priority),
        status=state(info.status),
        attempt=_whole(info.attempt),
        created_at=stamp(info.created_at),
        due_at=stamp(info.due_at),
        expires_at=stamp(info.expires_at),
        deadline=stamp(info.deadline),
        started_at=stamp(info.started_at),
        finished_at=stamp(info.finished_at),
        reason=info.reason or "",
        worker=info.worker or "",
        runs=_whole(info.runs),
        failures=_whole(info.failures),
        crashes=_whole(info.crashes),
        max_retries=_whole(info.retries),
        key=info.key or "",
        group=info.group or "",
        tags=info.tags,
        description=info.description,
        waits_for=info.waits_for,
        parent=info.parent or "",
        cancelling=info.cancelling,
        flow=info.flow or "",
        node=info.node,
    )
    _add_parts(message, info)
    if isinstance(result, tuple):
        message.result_json = _text(result[0])
    return message


def flow_row(flow: FlowSummary) -> pb.Flow:
    """A flow in a list."""
    return pb.Flow(
        id=flow.id,
        name=flow.name,
        status=str(flow.status),
        reason=flow.reason or "",
        key=flow.key or "",
        created_at=stamp(flow.created_at),
        finished_at=stamp(flow.finished_at),
        node_count=flow.nodes,
    )


def flow_out(info: FlowInfo, most: int) -> pb.Flow:
    """A flow with its nodes, the first `most` of them."""
    return pb.Flow(
        id=info.id,
        name=info.name,
        status=str(info.status),
        reason=info.reason or "",
        key=info.key or "",
        created_at=stamp(info.created_at),
        finished_at=stamp(info.finished_at),
        counts={str(one): count for one, count in info.counts.items()},
        nodes=[_flow_node(node) for node in info.nodes[:most]],
        node_count=len(info.nodes),
    )


def _flow_node(node: NodeInfo) -> pb.FlowNode:
    return pb.FlowNode(
        name=node.name,
        id=node.id,
        task=node.task,
        queue=node.queue,
        status=state(node.status) if node.status is not State.NOT_FOUND else pb.STATE_UNSPECIFIED,
        when=node.when,
        inputs=node.inputs,
        skipped=node.skipped,
        reason=node.reason or "",
        items={str(one): count for one, count in (node.items or {}).items()},
    )


def _whole(number: int) -> int:
    """The nearest number that the message can hold; a store may hold any."""
    return min(max(number, 0), 2**32 - 1)


def _add_parts(message: pb.Job, info: JobInfo) -> None:
    if info.args is not None and info.kwargs is not None:
        message.args_json, message.kwargs_json = _text(info.args), _text(info.kwargs)
    if info.timeout is not None:
        message.timeout_seconds = info.timeout
    if info.error is not None:
        error = info.error
        message.error.CopyFrom(pb.Error(type=error.type, message=error.message, traceback=error.traceback))
    if info.progress is not None:
        done = info.progress
        data = _text(done.data) if done.data else ""
        message.progress.CopyFrom(
            pb.Progress(done=done.done, total=done.total, note=done.note, data_json=data)
        )
    message.run_history.extend(
        pb.Run(
            number=run.number,
            outcome=run.outcome,
            started_at=stamp(run.started_at),
            ended_at=stamp(run.ended_at),
            worker=run.worker or "",
            error=run.error,
        )
        for run in info.run_history
    )


def _text(value: object) -> str:
    """JSON for people: values that it cannot hold are described."""
    return _write(plain(value)).decode()


def held_out(job: HeldJob) -> pb.HeldJob:
    message = pb.HeldJob(
        id=job.id,
        token=job.token,
        task=job.task,
        queue=job.queue,
        priority=job.priority,
        attempt=job.attempt,
        max_retries=job.retries,
        timeout_seconds=job.timeout,
        lease_until=stamp(job.lease_until),
        suspect=job.suspect,
        run=job.run,
        key=job.key or "",
        group=job.group or "",
        tags=job.tags,
        description=job.description,
        headers=job.headers,
    )
    try:
        # For workers: values that JSON cannot hold unchanged are sent as the payload instead.
        message.args_json = to_json(job.args).decode() if job.args is not None else ""
        message.kwargs_json = to_json(job.kwargs).decode() if job.kwargs is not None else ""
    except EncodeError:
        message.args_json = message.kwargs_json = ""
    if not message.args_json:
        message.payload, message.codec = job.payload, job.codec
    return message


def queue_out(queue: QueueInfo) -> pb.Queue:
    return pb.Queue(
        name=queue.name,
        counts={str(name): count for name, count in queue.counts.items()},
        paused=queue.paused is not None,
        next_due=_moment(queue.next_due),
        oldest_ready=_moment(queue.oldest_ready),
    )


def events_out(entry: Entry) -> list[pb.Event]:
    at = _moment(entry.at)
    return [
        pb.Event(kind=event.kind, id=event.id, queue=entry.queue, run=event.run, at=at, number=entry.number)
        for event in entry.events
    ]


def _moment(ms: int | None) -> Timestamp | None:
    return None if ms is None else stamp(moment(ms))
