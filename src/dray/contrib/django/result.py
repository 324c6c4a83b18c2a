"""Shows a job as a `TaskResult` of Django's."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

from dray.contrib.django.framework import TaskError, TaskResult, TaskResultDoesNotExist, TaskResultStatus
from dray.info import JobInfo, RunInfo, moment
from dray.job import State

PRIORITY, RUN_AFTER, ENQUEUED = "django-priority", "django-run-after", "django-enqueued-at"
"""Headers of a job: what Django knows and dray stores in another form, or not at all."""

STATUS: Final = {
    State.RUNNING: TaskResultStatus.RUNNING,
    State.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
    State.DEAD: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
}
"""All other states are READY: the job will be run, or run again."""
_NEVER_RAN: Final = frozenset({"given_back", "lost"})


def new_result(task: Any, id: str, args: Any, kwargs: Any, backend: str, now: int) -> Any:
    """The result of a call that is enqueued `now`; arguments that JSON cannot hold are a TypeError."""
    return TaskResult(
        task=task,
        id=id,
        status=TaskResultStatus.READY,
        enqueued_at=_shown(moment(now)),
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=list(args),
        kwargs=dict(kwargs),
        backend=backend,
        errors=[],
        worker_ids=[],
    )


def result_of(info: JobInfo, backend: str) -> Any:
    """The result of a job. One that is no task of Django's does not exist for Django."""
    attempts = [run for run in info.run_history if run.outcome not in _NEVER_RAN]
    result = TaskResult(
        task=_task_of(info),
        id=info.id,
        status=STATUS.get(info.status, TaskResultStatus.READY),
        enqueued_at=_header_time(info, ENQUEUED),
        started_at=_shown(info.started_at),
        finished_at=_shown(info.finished_at),
        last_attempted_at=_shown(attempts[-1].started_at if attempts else info.started_at),
        args=list(info.args or ()),
        kwargs=dict(info.kwargs or {}),
        backend=backend,
        errors=_errors(info, attempts),
        worker_ids=[(run.worker or "unknown").partition("/")[0] for run in attempts],
    )
    if info.status is State.SUCCEEDED:
        object.__setattr__(result, "_return_value", info.result)
    return result


def _task_of(info: JobInfo) -> Any:
    try:
        task = import_string(info.task)
        return task.using(
            priority=int(info.headers[PRIORITY]),
            queue_name=info.queue,
            run_after=_header_time(info, RUN_AFTER),
        )
    except (ImportError, KeyError, AttributeError, ValueError) as error:
        raise TaskResultDoesNotExist(info.id) from error


def _header_time(info: JobInfo, name: str) -> datetime | None:
    text = info.headers.get(name)
    return None if text is None else datetime.fromisoformat(text)


def _errors(info: JobInfo, attempts: list[RunInfo]) -> list[Any]:
    """One error per failed attempt; the newest with its traceback, which is all that the broker keeps."""
    kinds = [run.error.partition(":")[0] for run in attempts if run.error]
    if info.error is None:
        return (
            [_error("dray.errors.JobCancelled", info.reason or "")]
            if STATUS.get(info.status) == "FAILED"
            else []
        )
    older = [_error(kind, "") for kind in kinds[:-1]]
    return [*older, _error(info.error.type, info.error.traceback or info.error.message)]


def _error(kind: str, traceback: str) -> Any:
    return TaskError(exception_class_path=kind if "." in kind else f"builtins.{kind}", traceback=traceback)


def _shown(at: datetime | None) -> datetime | None:
    """As Django shows times: naive where USE_TZ is off."""
    return at if at is None or settings.USE_TZ else timezone.make_naive(at)
