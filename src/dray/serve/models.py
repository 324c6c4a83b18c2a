"""Bodies of requests and replies as Structs: they check requests, shape replies, and document both."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal, cast

import msgspec
from msgspec import UNSET, Meta, UnsetType

from dray.info import JobInfo, plain
from dray.job import Overflow
from dray.options import CALL_OPTIONS, SCHEDULE_OPTIONS, JsonDuration, Name, Option, Word
from dray.schedules.decorators import TICK_OPTIONS

StateName = Literal["waiting", "scheduled", "ready", "running", "retrying", "succeeded", "dead", "cancelled"]
Positive = Annotated[int, Meta(ge=1, le=1_000_000_000)]
MANY = 1000
"""Jobs in a page, in a batch, in a list of ids."""
WAIT_MAX = 300


class In(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of requests: an unknown field is refused."""


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


class CallIn(In):
    """A call with options, which `JobIn` and `ScheduleIn` add from the table of options."""

    task: Name
    args: list[Any] = []
    kwargs: dict[str, Any] = {}

    option_names: ClassVar[tuple[str, ...]] = ()
    """The fields that are options."""

    def options(self) -> dict[str, Any]:
        """The options that were given."""
        return {name: value for name in self.option_names if (value := getattr(self, name)) is not None}


def with_options(
    name: str, doc: str, options: Iterable[Option], fields: Iterable[tuple[Any, ...]] = ()
) -> type[CallIn]:
    given = [(option.name, option.json_type, None) for option in options]
    names = tuple(field[0] for field in (*fields, *given) if field[0] != "name")
    kind = msgspec.defstruct(
        name,
        [*fields, *given],
        bases=(CallIn,),
        namespace={"__doc__": doc, "option_names": names},
        module=__name__,
        kw_only=True,
        forbid_unknown_fields=True,
    )
    return cast("type[CallIn]", kind)


JobIn = with_options("JobIn", "A job to enqueue.", CALL_OPTIONS.values())
ScheduleIn = with_options(
    "ScheduleIn",
    "A schedule to make: `cron` (with `tz`) or `every`, the call, and what its jobs are like.",
    (*SCHEDULE_OPTIONS.values(), *TICK_OPTIONS.values()),
    [
        ("name", Name),
        ("cron", str | None, None),
        ("tz", str | None, None),
        ("every", JsonDuration | None, None),
    ],
)


class BatchIn(In):
    """Jobs to enqueue together."""

    jobs: Annotated[list[JobIn], Meta(min_length=1, max_length=MANY)]  # type: ignore[valid-type]  # made above


class RawBatch(In):
    """A batch whose jobs are read one by one, so that an invalid one does not affect the others."""

    jobs: Annotated[list[msgspec.Raw], Meta(min_length=1, max_length=MANY)]


class Submitted(Out):
    id: str
    status: str
    duplicate: bool
    """Its key or id was taken: this is the job that was there before."""


class BatchResult(Out):
    """The result of one job: `id`, `status` and `duplicate`, or `error`."""

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
    data: dict[str, Any] = {}


class RunOut(Out):
    number: int
    outcome: str
    """`running`, or how it ended."""
    started_at: datetime
    ended_at: datetime | None = None
    worker: str | None = None
    error: str = ""


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
    updated_at: datetime
    due_at: datetime | None = None
    expires_at: datetime | None = None
    deadline: datetime | None = None
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
    flow: str | None = None
    node: str = ""
    headers: dict[str, str] = {}
    """Texts that travel with it."""
    run_history: list[RunOut] = []
    sleeps_until: datetime | None = None
    waits_for_events: list[str] = []
    parked: bool = False
    undoing: bool = False
    rerun_of: str | None = None
    log_entries: int = 0


def job_out(info: JobInfo) -> JobOut:
    """A job in types of JSON."""
    return msgspec.convert(plain(info), JobOut)


class AnyJson(Out):
    """A body of any JSON value."""

    value: Any = None


class JobPage(Out):
    """Jobs that fit, those that arrived last first.

    Go on with `cursor` until it is null; a page may be short, or empty, before that. `total` is how many fit,
    on the first page, where that is known cheaply: by state and queue, or if this is all.
    """

    jobs: list[JobOut]
    cursor: str | None
    total: int | None = None


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


Priorities = Annotated[str, Meta(pattern="^([0-9]|high|normal|low)$", description="A name means its band")]
Since = Annotated[
    str,
    Meta(max_length=64, description="Created since then: a duration before now (30m, 2d), or a time"),
]
Reason = Annotated[str, Meta(max_length=1000, description="Why; shown at the job")]


class PageQuery(In):
    cursor: Annotated[str, Meta(max_length=4096)] | None = None
    limit: Annotated[int, Meta(ge=1, le=MANY)] = 100


class JobsQuery(PageQuery):
    state: StateName | None = None
    queue: Name | None = None
    task: Name | None = None
    tag: Word | None = None
    priority: Priorities | None = None
    group: Word | None = None
    key: Word | None = None
    parent: Word | None = None
    since: Since | None = None
    q: (
        Annotated[
            str,
            Meta(
                min_length=1, max_length=256, description="A part of the id, task, key, tags or description"
            ),
        ]
        | None
    ) = None


Force = Annotated[bool, Meta(description="Stop what runs at once; kill it if it is isolated")]


class CancelQuery(In):
    reason: Reason | None = None
    force: Force = False


class CancelIn(In):
    reason: Reason = ""
    force: Force = False


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
    dedicated: bool
    """Served only by workers that list it by its name."""
    workers: int
    """Running workers that serve it."""


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
    dedicated: bool | UnsetType | None = UNSET


class ChangedOut(Out):
    """What a change did, or would do. `ids` are the first thousand at most."""

    changed: int
    """How many jobs."""
    ids: list[str]
    refused: dict[str, str]
    dry_run: bool


ChangedOut.__name__ = "Changed"  # the published name of its schema


class ExecutorOut(Out):
    number: int
    pid: int
    session: str | None
    running: int
    slots: int
    """Jobs that it runs at a time at present."""
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
    concurrency: int | None
    """Jobs that each executor runs at a time; null: they adapt it."""
    running: int
    slots: int
    """Jobs that all its executors run at a time at present."""
    leader: bool
    started_at: datetime
    seen_at: datetime
    executors: list[ExecutorOut]
    average: float | None = None
    """Seconds that its runs took lately."""
    p95: float | None = None


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
    accepted: list[AcceptedOut]
    """Jobs that were ever enqueued."""


class AcceptedOut(Out):
    """Jobs of one task, queue and source (`python`, `http`, `grpc`, `cli`, `schedule`) that were enqueued."""

    task: str
    queue: str
    source: str
    jobs: int


# dead jobs


class DeadQuery(PageQuery):
    queue: Name | None = None
    task: Name | None = None


class DeadIn(In):
    """Which dead jobs: `ids`, or a filter, or `all`."""

    ids: Annotated[list[Word], Meta(min_length=1, max_length=MANY)] | None = None
    queue: Name | None = None
    task: Name | None = None
    older: JsonDuration | None = None
    all: bool = False
    dry_run: bool = False


# events and health


class EventsQuery(In):
    queue: Name | None = None


class HealthOut(Out):
    status: Literal["ok"]
