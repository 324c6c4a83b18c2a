"""What goes in and out, as Structs: they check requests, shape replies, and document both."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from dray.info import JobInfo, plain
from dray.job import OnDuplicate, Overflow
from dray.schedule import CatchUp
from dray.schedule import Overlap as Overlapping

Name = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z0-9_.\-]+$", min_length=1, max_length=128, description="Letters, digits, _ . -"),
]
Word = Annotated[str, Meta(min_length=1, max_length=256, description="Printable characters")]
Duration = Annotated[
    float | str, Meta(description="Seconds, or a text like 30s, 5m, 1h30m, 250ms", examples=[30, "5m"])
]
Priority = Annotated[int, Meta(ge=0, le=9)] | Literal["high", "normal", "low"]
StateName = Literal["waiting", "scheduled", "ready", "running", "retrying", "succeeded", "dead", "cancelled"]
Positive = Annotated[int, Meta(ge=1, le=1_000_000_000)]
MANY = 1000
"""Jobs in a page, in a batch, in a list of ids."""
WAIT_MAX = 300


class In(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of requests: an unknown field is a mistake that its sender should hear of."""


class Out(msgspec.Struct, kw_only=True):
    """Base of replies."""


# errors


class ErrorBody(Out):
    code: str
    message: str
    field: str | None


class ErrorOut(Out):
    """Every error looks like this."""

    error: ErrorBody


# jobs


class JobIn(In):
    """A job to enqueue."""

    task: Name
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    queue: Name | None = None
    priority: Priority | None = None
    delay: Duration | None = None
    at: Annotated[datetime, Meta(tz=True, description="Start no sooner than then")] | None = None
    key: Word | None = None
    key_ttl: Duration | None = None
    on_duplicate: OnDuplicate | None = None
    once: Duration | None = None
    id: Word | None = None
    retries: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    backoff: str | None = None
    timeout: Duration | None = None
    ttl: Duration | None = None
    result_ttl: Duration | None = None
    group: Word | None = None
    tags: Annotated[list[Word], Meta(max_length=100)] = []
    description: str | None = None
    durability: Literal["normal", "full"] | None = None
    headers: dict[str, str] | None = None


class BatchIn(In):
    """Jobs to enqueue together."""

    jobs: Annotated[list[JobIn], Meta(min_length=1, max_length=MANY)]


class RawBatch(In):
    """A batch whose jobs are read one by one, so that a wrong one does not cost its neighbours."""

    jobs: Annotated[list[msgspec.Raw], Meta(min_length=1, max_length=MANY)]


class Submitted(Out):
    id: str
    status: str
    duplicate: bool
    """Its key or id was taken: this is the job that was there before."""


class BatchResult(Out):
    """What became of one job: `id`, `status` and `duplicate`, or `error`."""

    id: str | UnsetType = UNSET
    status: str | UnsetType = UNSET
    duplicate: bool | UnsetType = UNSET
    error: ErrorBody | UnsetType = UNSET


class BatchOut(Out):
    """One result per job, in their order."""

    results: list[BatchResult]


class Failure(Out):
    type: str
    message: str
    traceback: str = ""


class ProgressOut(Out):
    done: float | None
    total: float | None = None
    note: str = ""


class JobOut(Out):
    """Everything known of a job."""

    id: str
    task: str
    queue: str
    priority: int
    status: str
    attempt: int
    args: list[Any] | None
    kwargs: dict[str, Any] | None
    created_at: datetime
    due_at: datetime | None = None
    expires_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    result: Any = None
    error: Failure | None = None
    reason: str | None = None
    progress: ProgressOut | None = None
    worker: str | None = None
    runs: int = 0
    failures: int = 0
    crashes: int = 0
    retries: int = 0
    timeout: float | None = None
    key: str | None = None
    group: str | None = None
    tags: list[str] = []
    description: str = ""
    waits_for: list[str] = []
    parent: str | None = None
    cancelling: bool = False


def job_out(info: JobInfo) -> JobOut:
    """A job in the types that JSON has."""
    return msgspec.convert(plain(info), JobOut)


class JobPage(Out):
    """Jobs that fit. Go on with `cursor` until it is null; a page may be short, or empty, before that."""

    jobs: list[JobOut]
    cursor: str | None


class ResultOut(Out):
    """How a job ended: `result`, or `error`; neither while it is not finished."""

    id: str
    status: str
    result: Any | UnsetType = UNSET
    error: Failure | UnsetType = UNSET


class WhyOut(Out):
    id: str
    status: str
    code: str
    text: str
    details: dict[str, Any]


class Acted(Out):
    """Whether it changed anything."""

    id: str
    status: str
    changed: bool


class Page(In):
    cursor: Annotated[str, Meta(max_length=4096)] | None = None
    limit: Annotated[int, Meta(ge=1, le=MANY)] = 100


class JobsQuery(Page):
    state: StateName | None = None
    queue: Name | None = None
    task: Name | None = None
    tag: Word | None = None
    priority: (
        Annotated[str, Meta(pattern="^([0-9]|high|normal|low)$", description="A name means its band")] | None
    ) = None
    group: Word | None = None
    key: Word | None = None
    q: (
        Annotated[
            str,
            Meta(
                min_length=1, max_length=256, description="A part of the id, task, key, tags or description"
            ),
        ]
        | None
    ) = None


class ResultQuery(In):
    wait: Annotated[float, Meta(ge=0, le=WAIT_MAX, description="Seconds to wait for the end of the job")] = 0


# queues and workers


class PauseOut(Out):
    by: str
    reason: str
    at: datetime | None


class QueueOut(Out):
    """How a queue stands."""

    name: str
    counts: dict[str, int]
    paused: PauseOut | None
    limits: dict[str, Any]
    paused_tasks: dict[str, PauseOut]
    task_limits: dict[str, dict[str, Any]]
    next_due_at: datetime | None
    oldest_ready_at: datetime | None


class QueuesOut(Out):
    queues: list[QueueOut]


class PauseIn(In):
    task: Name | None = None
    reason: Annotated[str, Meta(max_length=1000)] = ""


class ResumeIn(In):
    task: Name | None = None


class PurgeIn(In):
    states: list[StateName] | None = None
    task: Name | None = None
    dry_run: bool = False


class LimitsIn(In):
    """Limits to set; null takes one back, what is not named stays."""

    task: Name | None = None
    rate: str | UnsetType | None = UNSET
    enqueue_rate: str | UnsetType | None = UNSET
    max_running: Positive | UnsetType | None = UNSET
    max_ready: Positive | UnsetType | None = UNSET
    overflow: Overflow | UnsetType | None = UNSET
    group_running: Positive | UnsetType | None = UNSET


class Changed(Out):
    """What a change did, or would do. `ids` are the first thousand at most."""

    count: int
    ids: list[str]
    refused: dict[str, str]
    dry_run: bool


class ExecutorOut(Out):
    number: int
    pid: int
    session: str | None
    running: int
    succeeded: int
    failed: int
    beat_age: int
    tried_age: int | None


class WorkerOut(Out):
    id: str
    host: str
    pid: int
    state: str
    mode: str
    version: str
    queues: list[str]
    tasks: list[str]
    priorities: list[int] | None
    processes: int
    concurrency: int
    running: int
    leader: bool
    started_at: datetime
    seen_at: datetime
    executors: list[ExecutorOut]


class WorkersOut(Out):
    workers: list[WorkerOut]


class StatsOut(Out):
    """How everything stands, summed up."""

    counts: dict[str, int]
    queues: int
    paused: list[str]
    """Queues that are paused."""
    workers: int
    slots: int
    """Jobs that all workers together can run at a time."""
    oldest_ready_at: datetime | None
    next_due_at: datetime | None


# dead jobs


class DeadQuery(Page):
    queue: Name | None = None
    task: Name | None = None


class DeadIn(In):
    """Which dead jobs: `ids`, or a filter, or `all`."""

    ids: Annotated[list[Word], Meta(min_length=1, max_length=MANY)] | None = None
    queue: Name | None = None
    task: Name | None = None
    older: Duration | None = None
    all: bool = False
    dry_run: bool = False


# schedules


class ScheduleIn(In):
    """A schedule to make: `cron` (with `tz`) or `every`, the call, and what its jobs are like."""

    name: Name
    task: Name
    cron: str | None = None
    tz: str | None = None
    every: Duration | None = None
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    queue: Name | None = None
    priority: Priority | None = None
    retries: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    backoff: str | None = None
    timeout: Duration | None = None
    ttl: Duration | None = None
    result_ttl: Duration | None = None
    group: Word | None = None
    tags: Annotated[list[Word], Meta(max_length=100)] | None = None
    description: str | None = None
    headers: dict[str, str] | None = None
    jitter: Duration | None = None
    catch_up: CatchUp | None = None
    catch_up_cap: Positive | None = None
    overlap: Overlapping | None = None


# events and health


class EventsQuery(In):
    queue: Name | None = None


class HealthOut(Out):
    status: Literal["ok"]
