"""Why a job is in its state: a sentence for people, a code and facts for programs.

reasons           the reason as a value; reasons that the job's own record shows
suspensions       what a durable job waits for; that it is parked or undone
eligible_workers  the workers that could run it, and what the others lack; the worker that runs it
limits            pauses, and limits that are reached
position          its position in the queue, and an estimate of its start
"""

from __future__ import annotations

from dray.broker.verbs import Broker
from dray.documents.queue_state import read_queues
from dray.documents.worker_registry import read_workers
from dray.info import moment
from dray.job import Record, State
from dray.why.eligible_workers import no_worker, running
from dray.why.limits import limited, paused
from dray.why.position import in_line
from dray.why.reasons import CODES, Reason, Why, clock_time, read_from_record, waited_for, waiting
from dray.why.suspensions import read_log, suspended, undoing

__all__ = ["CODES", "Why", "explain"]


async def explain(broker: Broker, id: str) -> Why:
    """The reason, from the job's record, its queue and the registry of workers."""
    (record,) = await broker.get([id])
    if record is None:
        text = "the broker does not know this id: it never was, was deleted, or is not kept any more"
        return Why(id=id, status=State.NOT_FOUND, code="not_found", text=text)
    code, text, details = await _reason(broker, record)
    if record.deadline is not None and not record.state.finished:
        text += f"; its deadline is {clock_time(record.deadline)}"
        details["deadline_at"] = moment(record.deadline).isoformat()
    return Why(id=id, status=record.state, code=code, text=text, details=details)


async def _reason(broker: Broker, record: Record) -> Reason:
    if record.suspended is not None and not (record.state.finished or record.suspended.all_jobs):
        log = await read_log(broker, record) if record.suspended.events else []
        return suspended(record, record.suspended, log)
    code, text, details = await _of_state(broker, record)
    if record.undo is not None and not record.state.finished:
        return undoing(record.undo, text, details)
    return code, text, details


async def _of_state(broker: Broker, record: Record) -> Reason:
    match record.state:
        case State.READY:
            return await _ready(broker, record)
        case State.RUNNING:
            return running(record, await read_workers(broker), broker.clock())
        case State.WAITING:
            return waiting(record, await broker.get(waited_for(record)[:100]))
        case _:
            return read_from_record(record)


async def _ready(broker: Broker, record: Record) -> Reason:
    """The first that holds: a pause, no worker for it, a limit, the jobs ahead of it."""
    queue = next((queue for queue in await read_queues(broker) if queue.name == record.job.queue), None)
    workers = [worker for worker in await read_workers(broker) if worker.state == "running"]
    reason = paused(record, queue) or no_worker(record, workers, queue)
    if reason is None:
        reason = await limited(broker, record, queue)
    return reason or await in_line(broker, record, workers, queue)
