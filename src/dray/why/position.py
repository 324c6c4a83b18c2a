"""The position of a ready job in its queue, and an estimate of its start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from dray.broker.actions import Query
from dray.broker.verbs import Broker, QueueInfo
from dray.documents.worker_registry import WorkerInfo
from dray.duration import format_duration
from dray.info import moment
from dray.job import GROUP_MAX, Record, State
from dray.policy import Rate
from dray.stats.task_stats import estimate, read_stats
from dray.why.eligible_workers import lacks
from dray.why.limits import rates_of, slots_of
from dray.why.reasons import Reason, clock_time

LOOK_AHEAD: Final = 1000
"""Jobs of the queue that are read to find the position."""


async def in_line(
    broker: Broker, record: Record, workers: Sequence[WorkerInfo], queue: QueueInfo | None
) -> Reason:
    """Only the jobs ahead of it, and those that run, keep it from starting."""
    job, said = record.job, queue or QueueInfo(name=record.job.queue, counts={})
    others, at_least = await _ready_jobs(broker, record)
    ahead = jobs_ahead(record, others)
    able = [worker for worker in workers if not lacks(worker, job)]
    slots = sum(worker.slots for worker in able)
    running = sum(worker.running for worker in able)
    total = sum(ahead.values())
    text = f"it is in line in queue {job.queue}: {'at least ' if at_least else ''}{total} ahead of it"
    if slots and running >= slots:
        text += f", and all {slots} slots of the workers that could run it are busy"
        if any(worker.concurrency is None for worker in able):
            text += " (concurrency is auto: there will be more if that makes jobs end sooner)"
    details: dict[str, Any] = {"ahead": total, "at_least": at_least, "slots": slots, "running": running}
    rates = [rate for _, _, rate in rates_of(job, said)]
    seconds = None if at_least else await _start_in(broker, record, ahead, slots, rates)
    if seconds is not None:
        at = broker.clock() + round(seconds * 1000)
        details["starts_in"], details["starts_at"] = round(seconds, 3), moment(at).isoformat()
        text += f"; it may start {_soon(seconds, at)}"
    for what, _, rate in rates_of(job, said):
        text += f"; {what} may start {rate}"
        details["rate"] = str(rate)
    for bound in slots_of(job, said):
        text += f"; {bound.what} may run {bound.most} at once"
        details["max_running"] = bound.most
    paced = [worker for worker in able if worker.rate is not None]
    if paced and len(paced) == len(able):
        shown = ", ".join(f"{worker.id} at most {worker.rate}" for worker in paced[:3])
        text += f"; all workers that could run it keep to a rate of their own: {shown}"
        details["worker_rates"] = {worker.id: worker.rate for worker in paced}
    if record.suspect:
        text += f"; its worker died while it ran, so it runs in a child process, {_with(record.suspect)}"
        details["suspect"] = True
    return "in_line", text, details


def _with(group: int) -> str:
    if group == 1:
        return "alone"
    return "with other suspects" if group >= GROUP_MAX else f"with {group - 1} other suspects at most"


def _soon(seconds: float, at: int) -> str:
    if seconds < 1:
        return "at any moment"
    return f"in about {format_duration(round(seconds) * 1000)}, at {clock_time(at)}"


async def _ready_jobs(broker: Broker, record: Record) -> tuple[list[Record], bool]:
    """Ready jobs of the same queue, at most `LOOK_AHEAD` or a little more; True if there are others."""
    found: list[Record] = []
    cursor = None
    query = Query(state=State.READY, queue=record.job.queue)
    while True:
        page = await broker.find(query, cursor=cursor, limit=LOOK_AHEAD)
        found += page.records
        cursor = page.cursor
        if cursor is None or len(found) >= LOOK_AHEAD:
            return found, cursor is not None


def jobs_ahead(record: Record, others: Iterable[Record]) -> Counter[str]:
    """The number of jobs of each task that start before a job.

    These are jobs of higher priority, and older ones. Other groups of its task take turns with its own group:
    of each, as many as the turns it has to wait.
    """
    job, ahead = record.job, Counter[str]()
    groups: Counter[str | None] = Counter()
    own = 0
    for other in others:
        if other.id == record.id:
            continue
        older = other.created < record.created or (
            other.created == record.created and other.id < record.id and other.job.group == job.group
        )
        same_class = (other.job.task, other.job.priority) == (job.task, job.priority)
        if same_class and other.job.group != job.group:
            groups[other.job.group] += 1
        elif other.job.priority < job.priority or (other.job.priority == job.priority and older):
            ahead[other.job.task] += 1
            own += same_class
    ahead[job.task] += sum(min(count, own + 1) for count in groups.values())
    return ahead


async def _start_in(
    broker: Broker, record: Record, ahead: Counter[str], slots: int, rates: Sequence[Rate]
) -> float | None:
    """Seconds until it may start, by the durations of tasks so far and by its rates; None if unknown."""
    page = await broker.find(Query(state=State.RUNNING, queue=record.job.queue), limit=LOOK_AHEAD)
    held = Counter(one.job.task for one in page.records)
    seconds = estimate(ahead + held, slots, (await read_stats(broker)).tasks)
    if seconds is None:
        return None
    paced = [ahead[record.job.task] * rate.interval / 1_000_000 for rate in rates]
    return max([seconds, *paced])
