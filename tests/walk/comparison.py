"""The part of a reply that all brokers must agree on, and the first difference of two replies."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from dray.broker.verbs import Doc, DocReply, Heard, QueueInfo, Wake
from dray.errors import DrayError, InvalidInput
from dray.job import ENVELOPE_VERSION, Job, Record, State, Taken
from walk.scripted_broker import ScriptedBroker

EXACT = 50
"""Of more ready jobs a broker may only estimate how old the oldest is."""


def comparable(broker: ScriptedBroker, reply: Any) -> Any:
    """The part of a reply that is the same on every broker."""
    match reply:
        case DrayError():
            return "raised", type(reply).__name__, reply.field if isinstance(reply, InvalidInput) else None
        case Wake():
            # `work` means only that there may be some; `wait_take` checks that it is not missed.
            return "wake", reply.told, tuple(sorted(reply.finished))
        case Doc():
            return reply.kind, reply.name, reply.value, broker.version_rank(reply), reply.expires
        case DocReply():
            return reply.written, comparable(broker, reply.doc)
        case Heard():
            # These name sets of runs: nothing follows from their order.
            return reply.opened, reply.epoch, sorted(reply.lost), sorted(reply.cancelled)
        case list():
            return [comparable(broker, part) for part in reply]
        case tuple():
            return tuple(comparable(broker, part) for part in reply)
        case QueueInfo() if reply.counts.get(State.READY, 0) > EXACT:
            counts = {priority: (count, 0) for priority, (count, _) in reply.ready.items()}
            return replace(reply, oldest_ready=None, ready=counts)
        case Record() | Taken() if reply.job.version > ENVELOPE_VERSION:
            return replace(reply, job=_readable(reply.job))
        case {"docs": docs, "records": records, "queues": queues, **rest}:
            shown = {id: comparable(broker, record) for id, record in records.items()}
            lists = {"docs": comparable(broker, docs), "queues": comparable(broker, queues)}
            return {"records": shown, **lists, **rest}
        case _:
            return reply


def _readable(job: Job) -> Job:
    """The fields of a job of a newer envelope version that are readable; the rest is opaque once stored."""
    return Job(version=job.version, id=job.id, task=job.task, queue=job.queue, priority=job.priority)


def difference(first: Any, second: Any, path: str = "") -> str:
    """The first place where two values differ."""
    if isinstance(first, msgspec.Struct) and type(first) is type(second):
        for name in first.__struct_fields__:
            if getattr(first, name) != getattr(second, name):
                return difference(getattr(first, name), getattr(second, name), f"{path}.{name}")
    if isinstance(first, dict) and isinstance(second, dict):
        for key in sorted(first.keys() | second.keys(), key=str):
            if key not in first or key not in second:
                owner = first if key in first else second
                return f"{path}[{key!r}]: only the {'first' if owner is first else 'second'} has {owner[key]}"
            if first[key] != second[key]:
                return difference(first[key], second[key], f"{path}[{key!r}]")
    if isinstance(first, list | tuple) and isinstance(second, list | tuple) and len(first) == len(second):
        for place, (one, other) in enumerate(zip(first, second, strict=True)):
            if one != other:
                return difference(one, other, f"{path}[{place}]")
    return f"{path or 'reply'}:\n    {first!r}\n    {second!r}"
