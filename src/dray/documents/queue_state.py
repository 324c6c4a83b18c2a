"""Queues in relation to workers: dedicated ones, and ones with waiting jobs that no worker serves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from dray.broker.verbs import Broker, QueueInfo
from dray.documents.worker_registry import WorkerInfo
from dray.errors import InvalidInput
from dray.job import State, check_name
from dray.settings.queue_choice import DEDICATED, DEFAULT


async def read_queues(broker: Broker, declared: Iterable[str | None] = ()) -> list[QueueInfo]:
    """Every queue that holds a job or a setting, by name; `declared` are queues that tasks dedicate."""
    found = {info.name: info for info in await broker.queues()}
    marked = {doc.name for doc in await broker.docs(DEDICATED)}
    for name in marked.union(queue for queue in declared if queue is not None and queue in found):
        info = found.get(name, QueueInfo(name=name, counts={}))
        found[name] = msgspec.structs.replace(info, dedicated=True)
    return [found[name] for name in sorted(found)]


def check_dedicated(limits: Mapping[str, object], queue: str, task: str | None) -> bool | None:
    """The setting `dedicated` among limits; None if it is not there."""
    if "dedicated" not in limits:
        return None
    check_name("queue", queue)
    value = limits["dedicated"]
    if not isinstance(value, bool | None):
        raise InvalidInput("dedicated", value, "True or False is allowed")
    if task is not None:
        raise InvalidInput("dedicated", value, "it can be set for a whole queue only")
    return bool(value)


async def dedicate(broker: Broker, queue: str, dedicated: bool) -> None:
    """Have a queue served only by workers that list it, or undo that. Workers notice within seconds."""
    await broker.doc(DEDICATED, queue, b"" if dedicated else None)


def waiting_jobs(info: QueueInfo) -> int:
    """The number of jobs of a queue that would start sooner or later if a worker served it."""
    return sum(info.counts.get(state, 0) for state in (State.READY, State.SCHEDULED, State.RETRYING))


def unserved(queues: Iterable[QueueInfo], workers: Sequence[WorkerInfo]) -> list[QueueInfo]:
    """Queues with waiting jobs that no running worker serves."""
    running = [worker for worker in workers if worker.state == "running"]
    return [
        info
        for info in queues
        if waiting_jobs(info)
        and not any(worker.serves_queue(info.name, info.dedicated) for worker in running)
    ]


def is_dedicated(info: QueueInfo, workers: Iterable[WorkerInfo]) -> bool:
    """An operator dedicated the queue, or a task of a running worker does."""
    return info.dedicated or any(info.name in worker.dedicated for worker in workers)


def describe_unserved(info: QueueInfo, workers: Sequence[WorkerInfo]) -> str:
    count = waiting_jobs(info)
    jobs = f"{count} job waits" if count == 1 else f"{count} jobs wait"
    kind = "which is dedicated, and " if is_dedicated(info, workers) else "which "
    served = info.name != DEFAULT or any(worker.state == "running" for worker in workers)
    return f"{jobs} in queue {info.name}, {kind}no worker serves: dray worker{f' -Q {info.name}' * served}"
