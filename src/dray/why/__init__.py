"""Why a job stands where it stands: a sentence for people, a code and facts for programs.

`reasons`: what the record itself tells. `crew`: who could run it, and what they lack. `limits`: what holds it
back, and until when. `line`: its place in line, and when it may start.
"""

from __future__ import annotations

from dray.broker.verbs import Broker
from dray.job import Record, State
from dray.roster import read_workers
from dray.why.crew import no_worker, running
from dray.why.limits import limited, paused
from dray.why.line import in_line
from dray.why.reasons import CODES, Reason, Why, told_by_record, waiting

__all__ = ["CODES", "Why", "explain"]


async def explain(broker: Broker, id: str) -> Why:
    """The reason as far as the broker and the roster of workers tell it."""
    (record,) = await broker.get([id])
    if record is None:
        text = "the broker does not know this id: it never was, was deleted, or is not kept any more"
        return Why(id=id, status=State.NOT_FOUND, code="not_found", text=text)
    code, text, details = await _reason(broker, record)
    return Why(id=id, status=record.state, code=code, text=text, details=details)


async def _reason(broker: Broker, record: Record) -> Reason:
    match record.state:
        case State.READY:
            return await _ready(broker, record)
        case State.RUNNING:
            return running(record, await read_workers(broker), broker.clock())
        case State.WAITING:
            return waiting(record, await broker.get(record.waiting[:100]))
        case _:
            return told_by_record(record)


async def _ready(broker: Broker, record: Record) -> Reason:
    """What is nearest to the job comes first: a pause, nobody to run it, a limit, those ahead of it."""
    queue = next((queue for queue in await broker.queues() if queue.name == record.job.queue), None)
    workers = [worker for worker in await read_workers(broker) if worker.state == "running"]
    reason = paused(record, queue) or no_worker(record, workers)
    if reason is None:
        reason = await limited(broker, record, queue)
    return reason or await in_line(broker, record, workers, queue)
