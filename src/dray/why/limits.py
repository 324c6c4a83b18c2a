"""Pauses and limits that keep a ready job from starting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from dray.broker.actions import Query
from dray.broker.verbs import Broker, Limits, QueueInfo, Usage
from dray.duration import SECOND, format_duration
from dray.info import moment
from dray.job import Job, Record, State
from dray.policy import Rate
from dray.why.reasons import Reason, clock_time, counted

HOLDERS: Final = 5


class Slots(NamedTuple):
    """A limit of jobs that run at once."""

    what: str
    scope: str
    most: int
    fits: Callable[[Job], bool]


def paused(record: Record, queue: QueueInfo | None) -> Reason | None:
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
            text = f"{what} is paused{by} since {clock_time(pause.at)}{why}; `{command}` goes on"
            since = moment(pause.at).isoformat()
            return code, text, {"by": pause.by, "reason": pause.reason, "since": since}
    return None


async def limited(broker: Broker, record: Record, queue: QueueInfo | None) -> Reason | None:
    """A limit that is reached: of jobs that run at once, or of starts per period."""
    job, said = record.job, queue or QueueInfo(name=record.job.queue, counts={})
    slots, rates = list(slots_of(job, said)), list(rates_of(job, said))
    if not slots and not rates:
        return None
    usage = await broker.usage(job)
    for bound in slots:
        count = usage.running.get(bound.scope, 0)
        if count >= bound.most:
            return await _too_many(broker, job, bound, count)
    return _too_fast(usage, rates)


def slots_of(job: Job, queue: QueueInfo) -> Iterator[Slots]:
    """Every limit of jobs at once that applies to a job; the operator's overrides the task's own."""
    task = f"task {job.task} in queue {queue.name}"
    if queue.limits.max_running is not None:
        yield Slots(f"queue {queue.name}", "queue", queue.limits.max_running, lambda other: True)
    of_task = queue.task_limits.get(job.task, Limits()).max_running
    if of_task is None and job.running_key is None:
        of_task = job.max_running
    if of_task is not None:
        yield Slots(task, "task", of_task, lambda other: other.task == job.task)
    if job.running_key is not None and job.max_running is not None:
        key = job.running_key
        what = f"key {key} in queue {queue.name}"
        yield Slots(what, "key", job.max_running, lambda other: other.running_key == key)
    if job.group is not None and queue.limits.group_running is not None:
        what = f"group {job.group} in queue {queue.name}"
        yield Slots(what, "group", queue.limits.group_running, lambda other: other.group == job.group)


def rates_of(job: Job, queue: QueueInfo) -> Iterator[tuple[str, str, Rate]]:
    """Every rate that applies to a job: of what, its scope in `Usage`, the rate."""
    if queue.limits.rate is not None:
        yield f"queue {queue.name}", "queue", Rate.parse(queue.limits.rate)
    of_task = queue.task_limits.get(job.task, Limits()).rate
    if of_task is None and job.rate_key is None:
        of_task = job.rate
    if of_task is not None:
        yield f"task {job.task} in queue {queue.name}", "task", Rate.parse(of_task)
    if job.rate_key is not None and job.rate is not None:
        yield f"key {job.rate_key} in queue {queue.name}", "key", Rate.parse(job.rate)


async def _too_many(broker: Broker, job: Job, bound: Slots, count: int) -> Reason:
    page = await broker.find(Query(state=State.RUNNING, queue=job.queue), limit=1000)
    held = [one.id for one in page.records if bound.fits(one.job)][:HOLDERS]
    text = f"{bound.what} runs {counted(count, 'job')}, and may run {bound.most} at once"
    if held:
        text += f"; it starts when one ends: {', '.join(held[:3])}{', …' if count > 3 else ''}"
    details = {
        "limit": "max_running",
        "scope": bound.scope,
        "of": bound.what,
        "max_running": bound.most,
        "running": count,
        "held_by": held,
    }
    return "limited", text, details


def _too_fast(usage: Usage, rates: list[tuple[str, str, Rate]]) -> Reason | None:
    """Of the rates that are used up, the one that frees last."""
    found: list[tuple[int, str, str, Rate]] = []
    for what, scope, rate in rates:
        tat = usage.tats.get(scope, 0)
        if not rate.available(tat, usage.now):
            found.append((rate.free_at(tat, usage.now), what, scope, rate))
    if not found:
        return None
    free, what, scope, rate = max(found, key=lambda one: one[0])
    wait = max(1, free - usage.now)
    if wait > SECOND:
        wait = -(-wait // SECOND) * SECOND
    when = f"in {format_duration(wait)}, at {clock_time(free)}"
    text = f"{what} may start {rate}, and has: the next may start {when}"
    details: dict[str, Any] = {
        "limit": "rate",
        "scope": scope,
        "of": what,
        "rate": str(rate),
        "frees_at": moment(free).isoformat(),
    }
    return "rate_limited", text, details
