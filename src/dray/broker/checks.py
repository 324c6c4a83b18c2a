"""What every broker checks and decides in the same way: pure functions of requests and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast, get_args

from msgspec import UNSET, UnsetType

from dray.broker.verbs import (
    PAGE_MAX,
    PUT_STEP,
    Beat,
    Cancel,
    DocWrite,
    Filter,
    Ids,
    JobAction,
    Limits,
    Pause,
    Query,
    Reprioritise,
    Reschedule,
    Scope,
    ScopeAction,
    SetLimits,
)
from dray.errors import InvalidInput, UnknownDependency
from dray.job import Job, Overflow, Record, State, check_name, check_word, parse_priority, queue_of
from dray.policy import Rate, Retention, check_batch

TIME_MAX: Final = 1 << 52
WANT_MAX: Final = 10_000
DOC_MAX: Final = 1 << 20
REASON_MAX: Final = 4096


def check_puts(jobs: Sequence[Job], when: DocWrite | None, durability: str | None) -> None:
    check_batch(jobs)
    if durability not in (None, "normal", "full"):
        raise InvalidInput("durability", durability, "normal or full is allowed")
    if when is None:
        return
    check_doc(when.kind, when.name, when.value, when.expect_version, when.ttl)
    if len(jobs) > PUT_STEP or len({job.queue for job in jobs}) > 1:
        raise InvalidInput(
            "when", when.name, f"it goes with at most {PUT_STEP} jobs, all of one queue, in one step"
        )


def check_dependency(job: Job, dependency: str, known: bool) -> None:
    """An id that names its queue may be put later; one that a client made up must be there."""
    if not known and queue_of(dependency) is None:
        raise UnknownDependency(
            "waits_for", dependency, f"job {job.id} can wait only for jobs that exist or are put with it"
        )


def check_take(session: str, request: int, queues: Sequence[str], filter: Filter, want: int) -> None:
    check_word("session", session)
    _check_int("request", request, 1, TIME_MAX)
    _check_int("want", want, 0, WANT_MAX)
    for queue in queues:
        check_name("queue", queue)
    if filter.priorities is not None:
        for priority in filter.priorities:
            parse_priority(priority)


def check_beats(beats: Sequence[Beat]) -> None:
    for beat in beats:
        check_word("session", beat.session)
        _check_int("lease", beat.lease, 1, TIME_MAX)


def check_limit(limit: int) -> None:
    _check_int("limit", limit, 1, TIME_MAX)


def check_page(limit: int) -> None:
    _check_int("limit", limit, 1, PAGE_MAX)


def check_doc(
    kind: str, name: str, value: bytes | UnsetType | None, expect_version: int | None, ttl: int | None
) -> None:
    check_name("kind", kind)
    check_word("name", name)
    if isinstance(value, bytes) and len(value) > DOC_MAX:
        raise InvalidInput("value", f"{len(value)} bytes", f"at most {DOC_MAX} bytes are allowed")
    if not isinstance(value, bytes | None | UnsetType):
        raise InvalidInput("value", value, "bytes, or None to delete, are allowed")
    if expect_version is not None:
        _check_int("expect_version", expect_version, 0, TIME_MAX)
    if ttl is not None:
        _check_int("ttl", ttl, 1, TIME_MAX)


def check_edit(selection: Ids | Query | Scope, action: JobAction | ScopeAction, limit: int) -> None:
    check_page(limit)
    takes = "a Scope" if isinstance(action, ScopeAction) else "Ids or a Query"
    if isinstance(action, ScopeAction) != isinstance(selection, Scope):
        raise InvalidInput("selection", selection, f"{type(action).__name__} takes {takes}")
    match action:
        case Reschedule(due=due):
            _check_int("due", due, 0, TIME_MAX)
        case Reprioritise(priority=priority):
            _check_int("priority", priority, 0, 9)
        case Cancel(reason=reason) | Pause(reason=reason):
            if len(reason) > REASON_MAX:
                raise InvalidInput("reason", reason, f"at most {REASON_MAX} characters are allowed")
        case SetLimits():
            _check_limits(cast(Scope, selection), action)
        case _:
            pass
    if isinstance(selection, Scope):
        check_name("queue", selection.queue)
        if selection.task is not None:
            check_name("task", selection.task)


def _check_limits(scope: Scope, action: SetLimits) -> None:
    if isinstance(action.rate, str):
        Rate.parse(action.rate)
    for field in ("max_running", "max_ready", "group_running"):
        value = getattr(action, field)
        if value is not None and value is not UNSET:
            _check_int(field, value, 1, TIME_MAX)
    if action.overflow not in (UNSET, None, *get_args(Overflow)):
        raise InvalidInput("overflow", action.overflow, f"{', '.join(get_args(Overflow))} are allowed")
    if scope.task is not None:
        for field in ("max_ready", "overflow", "group_running"):
            if getattr(action, field) is not UNSET:
                raise InvalidInput(field, getattr(action, field), "it can be set for a whole queue only")


def _check_int(field: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidInput(field, value, f"an integer from {least} to {most} is allowed")


def limits_after(limits: Limits, action: SetLimits) -> Limits:
    """The operator's limits after an edit: what the edit leaves unset stays."""

    def chosen(old: object, new: object) -> object:
        return old if new is UNSET else new

    return Limits(
        rate=cast("str | None", chosen(limits.rate, action.rate)),
        max_running=cast("int | None", chosen(limits.max_running, action.max_running)),
        max_ready=cast("int | None", chosen(limits.max_ready, action.max_ready)),
        overflow=cast("Overflow | None", chosen(limits.overflow, action.overflow)),
        group_running=cast("int | None", chosen(limits.group_running, action.group_running)),
    )


def forget_at(once: int | None, state: State, finished: int, retention: Retention) -> int:
    """When the record of a finished job may go. `once` keeps it as long as its key is taken."""
    if state is State.DEAD:
        return finished + retention.dead_ttl if retention.dead_ttl is not None else NEVER + finished
    keep = retention.done_ttl
    if state is State.SUCCEEDED and once is not None:
        keep = max(keep, once)
    return finished + keep


NEVER: Final = 1 << 51
"""Added to a time that never comes, so that such times keep their order."""


def shown_result(
    ttl: int | None, result: bytes | None, finished: int | None, now: int, keep: Retention
) -> bytes | None:
    """The result, while it is kept; `ttl` is what the job itself says."""
    ttl = keep.result_ttl if ttl is None else ttl
    return result if finished is None or now < finished + ttl else None


def error_kept(state: State, finished: int | None, now: int, keep: Retention) -> bool:
    """A dead job keeps its error for good; the last error of one that ended otherwise is kept for a while."""
    return state is State.DEAD or finished is None or now < finished + keep.error_ttl


def query_matches(query: Query, record: Record) -> bool:
    job = record.job
    return (
        (query.state is None or record.state is query.state)
        and (query.queue is None or job.queue == query.queue)
        and (query.task is None or job.task == query.task)
        and (query.priorities is None or job.priority in query.priorities)
        and (query.tag is None or query.tag in job.tags)
        and (query.group is None or job.group == query.group)
        and (query.key is None or job.key == query.key)
        and (query.parent is None or job.parent == query.parent)
    )


def check_cursor(cursor: Mapping[str, int]) -> None:
    for queue, number in cursor.items():
        check_name("cursor", queue)
        _check_int("cursor", number, 0, TIME_MAX)


def matches(filter: Filter, task: str, priority: int, version: int) -> bool:
    """May a worker with this filter run such a job?"""
    return (
        version <= filter.version
        and (filter.tasks is None or task in filter.tasks)
        and (filter.priorities is None or priority in filter.priorities)
    )
