"""A schedule as it is stored, and what its ticks come to. Pure: no I/O, no clock.

A scheduler reads the document, asks `step` what is due, and puts the jobs together with the
advanced document in one compare-and-set. Of any number of schedulers one gets through, and the ids of jobs
are derived from their ticks, so a tick never makes two.

Rules of `step`, for the ticks from `next_run` up to now:

- A tick is *late* up to `GRACE` after its time, and *missed* beyond that: no scheduler ran then.
- Every late tick gets its job. Of missed ones, `catch_up` decides: "skip" drops them; "one" makes one job for
  all of them, unless a late tick makes one anyway; "all" makes a job for each, the newest `catch_up_cap`.
- Unless `overlap` is "allow", at most the newest tick gets a job, and "skip" drops that too while the job
  before it is unfinished.
- `run_count` counts jobs, `last_run` is the tick of the newest one and `last_job` its id. `last_error` says
  what was dropped when ticks were last due, and is None when nothing was.
"""

from __future__ import annotations

import hashlib
from collections import deque
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from dray.codec.values import unreadable
from dray.duration import MINUTE
from dray.job import Job, State
from dray.schedules.cron import Every, Rule

KIND: Final = "schedule"
"""The kind of its document."""
NEWS: Final = ("schedules", "changed")
"""Kind and name of a document that is written (with any value) after a user's change of a schedule: a
scheduler looks at its version every second, and reads all schedules only when it is new."""
GRACE: Final = MINUTE
"""How late a tick may be without being missed: leadership changes hands in less."""
CATCH_UP_CAP: Final = 100
CATCH_UP_MAX: Final = 1000
"""As many jobs as a broker puts in one step together with a document."""
SCHEDULE_HEADER: Final = "schedule"
TICK_HEADER: Final = "tick"
TAG: Final = "schedule:"

CatchUp = Literal["skip", "one", "all"]
Overlap = Literal["allow", "skip", "cancel_previous"]
Origin = Literal["code", "user"]


class Paused(msgspec.Struct, frozen=True):
    """Who paused a schedule, why and when."""

    by: str = ""
    reason: str = ""
    at: int = 0


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """The stored document. New fields go to the end, with a default."""

    name: str
    task: str
    rule: Rule
    job: Job
    """What each tick puts, without an id."""
    jitter: int = 0
    """Jobs start up to this much later than their tick, each tick always by the same time."""
    catch_up: CatchUp = "skip"
    catch_up_cap: int = CATCH_UP_CAP
    overlap: Overlap = "allow"
    paused: Paused | None = None
    origin: Origin = "user"
    next_run: int | None = None
    """The first tick that has not been dealt with; None: there is no further one."""
    last_run: int | None = None
    run_count: int = 0
    last_error: str | None = None
    last_job: str | None = None
    created: int = 0
    updated: int = 0
    """When it was last changed by hand or by code; ticks do not count."""
    declared: int = 0
    """When the newest worker whose code declares it was started; see `dray.schedules.store`."""
    undeclared: int | None = None
    """Since when no worker is known to declare it."""


class Step(msgspec.Struct, frozen=True):
    """What the ticks that are due come to."""

    schedule: Schedule
    """Advanced: to be written together with the jobs."""
    jobs: tuple[Job, ...] = ()
    cancel: str | None = None
    """The job before, which is to make way. Cancel it before the put: repeating that does no harm."""
    missed: int = 0
    """Ticks that got no job, other than for overlap; more than a thousand are not counted."""


def encode(schedule: Schedule) -> bytes:
    """The value of its document."""
    return _encode(schedule)


def decode(value: bytes) -> Schedule:
    """The schedule of a document's value. Raises DecodeError, and nothing else, for any other bytes."""
    try:
        return _decode(value)
    except Exception as error:
        raise unreadable(error) from error


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Schedule).decode


def tick_id(name: str, queue: str, tick: int) -> str:
    """The id of the job that a tick makes, in the form of generated ids: it names its queue."""
    return f"{queue}:{_digest(name, tick).hex()}"


def delay_of(name: str, tick: int, jitter: int) -> int:
    """How much later than its tick a job starts: spread evenly, but always the same for one tick."""
    return int.from_bytes(_digest(name + "/jitter", tick)[:8], "big") % (jitter + 1)


def _digest(name: str, tick: int) -> bytes:
    return hashlib.blake2b(f"{name}@{tick}".encode(), digest_size=16).digest()


def job_of(schedule: Schedule, tick: int) -> Job:
    """The job of one tick. It does not start before its tick, also if the scheduler's clock is ahead."""
    job = schedule.job
    text = datetime.fromtimestamp(tick / 1000, UTC).isoformat()
    return replace(
        job,
        id=tick_id(schedule.name, job.queue, tick),
        due=tick + delay_of(schedule.name, tick, schedule.jitter),
        headers=job.headers | {SCHEDULE_HEADER: schedule.name, TICK_HEADER: text},
        tags=(*job.tags, TAG + schedule.name),
    )


def step(schedule: Schedule, now: int, *, previous: State | None = None, grace: int = GRACE) -> Step | None:
    """What the ticks due by `now` come to; None when there is nothing to do.

    `previous` is the state of `schedule.last_job`; it matters unless `overlap` is "allow". Raises
    InvalidInput if this machine does not know the rule's time zone.
    """
    first = schedule.next_run
    if first is None or schedule.paused is not None or now < first:
        return None
    ticks, missed = _choose(schedule, first, now, now - grace)
    running = previous is not None and not previous.finished and previous is not State.NOT_FOUND
    error = _missed(missed) if missed else None
    cancel = None
    if schedule.overlap != "allow" and ticks:
        ticks = ticks[-1:]
        if running and schedule.overlap == "skip":
            ticks, error = [], f"skipped: the previous run, job {schedule.last_job}, is {previous}"
        elif running:
            cancel = schedule.last_job
    jobs = tuple(job_of(schedule, tick) for tick in ticks)
    advanced = replace(schedule, next_run=schedule.rule.next(max(now, first)), last_error=error)
    if jobs:
        advanced = replace(
            advanced,
            last_run=ticks[-1],
            last_job=jobs[-1].id,
            run_count=schedule.run_count + len(jobs),
        )
    return Step(advanced, jobs, cancel, missed)


def _choose(schedule: Schedule, first: int, now: int, deadline: int) -> tuple[list[int], int]:
    """The ticks that get a job, and how many get none because they were missed."""
    rule = schedule.rule
    late = ticks_between(rule, first, max(first, deadline), now, CATCH_UP_MAX)
    if first >= deadline:
        return late, 0
    missed = ticks_between(rule, first, first, deadline - 1, CATCH_UP_MAX + 1)
    if schedule.catch_up == "all":
        room = min(schedule.catch_up_cap, CATCH_UP_MAX - len(late))
        caught = missed[-room:] if room else []
        return caught + late, len(missed) - len(caught)
    if schedule.catch_up == "one" and not late:
        return missed[-1:], len(missed) - 1
    return late, len(missed)


def ticks_between(rule: Rule, first: int, start: int, end: int, most: int) -> list[int]:
    """The newest `most` ticks from `start` to `end`, both included; `first` counts as one.

    A long silence of a frequent schedule leaves more ticks than anyone wants to walk through, so the newest
    are looked for in stretches that grow backwards from the end.
    """
    span = rule.interval * most if isinstance(rule, Every) else MINUTE
    while True:
        begin = max(start, end - span)
        found: deque[int] = deque(maxlen=most)
        tick = first if begin <= first else rule.next(begin - 1)
        while tick is not None and tick <= end:
            found.append(tick)
            tick = rule.next(tick)
        if len(found) == most or begin == start:
            return list(found)
        span *= 2


def _missed(count: int) -> str:
    if count > CATCH_UP_MAX:
        return f"missed more than {CATCH_UP_MAX} ticks: no scheduler ran"
    return f"missed {count} tick{'s' if count > 1 else ''}: no scheduler ran"
