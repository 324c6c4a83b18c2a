"""Why a job stands where it stands: a sentence for people, a code and facts for programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from dray.broker.verbs import Broker, Query, QueueInfo
from dray.duration import format_duration
from dray.info import moment
from dray.job import Job, Record, State
from dray.policy import Rate
from dray.roster import WorkerInfo, read_workers

LOOK_AHEAD = 1000
"""How many jobs of the line are looked at to tell a position."""


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """The reason.

    `code` is one of not_found, waits_for_jobs, due_later, retry_later, queue_paused, task_paused, no_workers,
    no_worker_for_queue, no_worker_for_task, no_worker_for_priority, limited, in_line, running, stopping,
    succeeded, dead, cancelled.
    """

    id: str
    status: State
    code: str
    text: str
    details: dict[str, Any] = {}

    def __str__(self) -> str:
        return self.text


async def explain(broker: Broker, id: str) -> Why:
    """The reason as far as the broker and the roster of workers tell it."""
    (record,) = await broker.get([id])
    if record is None:
        text = "the broker does not know this id: it never was, was deleted, or is not kept any more"
        return Why(id=id, status=State.NOT_FOUND, code="not_found", text=text)
    if record.state is State.READY:
        return await _ready(broker, record)
    code, text, details = _TOLD_BY_RECORD[record.state](record)
    return Why(id=id, status=record.state, code=code, text=text, details=details)


Reason = tuple[str, str, dict[str, Any]]


def _waiting(record: Record) -> Reason:
    shown = ", ".join(record.waiting[:5]) + (", …" if len(record.waiting) > 5 else "")
    count = len(record.waiting)
    return (
        "waits_for_jobs",
        f"it waits for {count} other job{'s' if count != 1 else ''} to succeed: {shown}",
        {"waits_for": list(record.waiting)},
    )


def _scheduled(record: Record) -> Reason:
    due = moment(record.due or 0)
    return "due_later", f"it is not due before {due:%Y-%m-%d %H:%M:%S} UTC", {"due_at": due.isoformat()}


def _retrying(record: Record) -> Reason:
    due = moment(record.due or 0)
    failed = f": {record.error.type}: {record.error.message}" if record.error is not None else ""
    text = (
        f"attempt {record.failures} of {record.job.retries + 1} failed{failed}; "
        f"it is tried again at {due:%Y-%m-%d %H:%M:%S} UTC"
    )
    return "retry_later", text, {"due_at": due.isoformat(), "failures": record.failures}


def _running(record: Record) -> Reason:
    run = record.runs[-1] if record.runs else None
    if run is None:
        return "running", "it is running", {}
    since = moment(run.since)
    details: dict[str, Any] = {"worker": run.session, "since": since.isoformat(), "run": run.number}
    text = f"it runs on {run.session} since {since:%Y-%m-%d %H:%M:%S} UTC (attempt {record.attempt})"
    if run.progress is not None:
        total = "" if run.progress.total is None else f" of {run.progress.total:g}"
        text += f", at {run.progress.done:g}{total}{' ' + run.progress.note if run.progress.note else ''}"
    if record.cancel is not None:
        return "stopping", f"{text}; it was asked to stop ({record.cancel})", details
    return "running", text, details


def _succeeded(record: Record) -> Reason:
    ended = moment(record.finished or 0)
    return "succeeded", f"it succeeded at {ended:%Y-%m-%d %H:%M:%S} UTC", {"finished_at": ended.isoformat()}


def _dead(record: Record) -> Reason:
    text = f"it is dead: {record.reason or 'no reason given'}"
    if record.error is not None and record.error.message not in text:
        text += f" ({record.error.type}: {record.error.message})"
    return "dead", f"{text}; run it again with `dray jobs retry {record.id}`", {"reason": record.reason}


def _cancelled(record: Record) -> Reason:
    return "cancelled", f"it was cancelled: {record.reason or 'no reason given'}", {"reason": record.reason}


_TOLD_BY_RECORD = {
    State.WAITING: _waiting,
    State.SCHEDULED: _scheduled,
    State.RETRYING: _retrying,
    State.RUNNING: _running,
    State.SUCCEEDED: _succeeded,
    State.DEAD: _dead,
    State.CANCELLED: _cancelled,
}


async def _ready(broker: Broker, record: Record) -> Why:
    job = record.job
    queue = next((queue for queue in await broker.queues() if queue.name == job.queue), None)
    workers = [worker for worker in await read_workers(broker) if worker.state == "running"]
    reason = _paused(record, queue) or _no_worker(record, workers)
    reason = reason or await _limited(broker, record, queue)
    if reason is None:
        reason = await _in_line(broker, record, workers)
    code, text, details = reason
    return Why(id=job.id, status=State.READY, code=code, text=text, details=details)


def _paused(record: Record, queue: QueueInfo | None) -> Reason | None:
    if queue is None:
        return None
    job = record.job
    for code, what, pause, command in (
        ("queue_paused", f"queue {job.queue}", queue.paused, f"dray queues resume {job.queue}"),
        (
            "task_paused",
            f"task {job.task} in queue {job.queue}",
            queue.paused_tasks.get(job.task),
            f"dray queues resume {job.queue} --task {job.task}",
        ),
    ):
        if pause is not None:
            by = f" by {pause.by}" if pause.by else ""
            why = f" ({pause.reason})" if pause.reason else ""
            at = moment(pause.at)
            text = f"{what} is paused{by} since {at:%Y-%m-%d %H:%M:%S} UTC{why}; `{command}` goes on"
            return code, text, {"by": pause.by, "reason": pause.reason, "since": at.isoformat()}
    return None


def _no_worker(record: Record, workers: Sequence[WorkerInfo]) -> Reason | None:
    job = record.job
    if not workers:
        return "no_workers", "no worker is running: start one with `dray worker -A module:app`", {}
    names = {"workers": [worker.id for worker in workers]}
    serving = [worker for worker in workers if job.queue in worker.queues]
    if not serving:
        queues = sorted({queue for worker in workers for queue in worker.queues})
        text = f"no running worker serves queue {job.queue} (served are: {', '.join(queues)}); "
        return "no_worker_for_queue", text + f"start one with `dray worker -Q {job.queue}`", names
    knowing = [worker for worker in serving if job.task in worker.tasks]
    if not knowing:
        text = (
            f"no running worker of queue {job.queue} knows task {job.task}: "
            "it waits for one with newer code, and is in nobody's way"
        )
        return "no_worker_for_task", text, names
    if not any(worker.priorities is None or job.priority in worker.priorities for worker in knowing):
        text = f"no running worker of queue {job.queue} that knows {job.task} takes priority {job.priority}"
        return "no_worker_for_priority", text, names
    return None


async def _limited(broker: Broker, record: Record, queue: QueueInfo | None) -> Reason | None:
    """A limit on running jobs that is reached; whether a rate holds it back only the broker knows."""
    if queue is None:
        return None
    job, running = record.job, queue.counts.get(State.RUNNING, 0)
    by_operator = queue.task_limits.get(job.task)
    of_task = by_operator.max_running if by_operator is not None else None
    if of_task is None and job.running_key is None:
        of_task = job.max_running
    task, key, group = f"task {job.task} in queue {queue.name}", job.running_key, job.group
    of_key = job.max_running if key is not None else None
    of_group = queue.limits.group_running if group is not None else None
    for most, what, fits in (
        (queue.limits.max_running, f"queue {queue.name}", None),
        (of_task, task, lambda other: other.task == job.task),
        (of_key, f"{task} with key {key}", lambda other: (other.task, other.running_key) == (job.task, key)),
        (of_group, f"group {group} in queue {queue.name}", lambda other: other.group == group),
    ):
        if most is None or running < most:
            continue
        count = running if fits is None else await _running_jobs(broker, job.queue, fits)
        if count >= most:
            text = f"{what} runs {count} job{'s' if count != 1 else ''}, and may run {most} at once"
            return "limited", text, {"max_running": most, "running": count}
    return None


async def _running_jobs(broker: Broker, queue: str, fits: Callable[[Job], bool]) -> int:
    count, cursor = 0, None
    while True:
        page = await broker.find(Query(state=State.RUNNING, queue=queue), cursor=cursor, limit=LOOK_AHEAD)
        count += sum(1 for record in page.records if fits(record.job))
        cursor = page.cursor
        if cursor is None:
            return count


async def _in_line(broker: Broker, record: Record, workers: Sequence[WorkerInfo]) -> Reason:
    job, ahead, seen, cursor = record.job, 0, 0, None
    while seen < LOOK_AHEAD:
        page = await broker.find(Query(state=State.READY, queue=job.queue), cursor=cursor, limit=LOOK_AHEAD)
        seen += len(page.records)
        ahead += sum(
            1
            for other in page.records
            if other.id != job.id and (other.job.priority, other.created) < (job.priority, record.created)
        )
        cursor = page.cursor
        if cursor is None:
            break
    at_least = cursor is not None
    slots = sum(worker.processes * worker.concurrency for worker in workers if job.queue in worker.queues)
    text = f"it is in line in queue {job.queue}: {'at least ' if at_least else ''}{ahead} ahead of it"
    details: dict[str, Any] = {"ahead": ahead, "at_least": at_least, "slots": slots}
    rate = job.rate
    if rate is not None:
        limit = Rate.parse(rate)
        text += f"; its task may start {limit.count} per {format_duration(limit.period)}"
        details["rate"] = rate
    if job.max_running is not None:
        text += f"; at most {job.max_running} of its kind run at once"
        details["max_running"] = job.max_running
    return "in_line", text, details
