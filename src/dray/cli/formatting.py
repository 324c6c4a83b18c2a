"""How jobs, queues and workers look: as rows of a table, and as JSON with keys that stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dray.broker.verbs import Limits, Pause, QueueInfo
from dray.cli.output import Column, age, brief, moment_of, one_line, plain, stamp
from dray.cli.shapes_stats import seconds
from dray.duration import format_duration
from dray.info import JobInfo
from dray.job import Error, Progress, State
from dray.roster import SKEWED, WorkerInfo, describe_skew
from dray.schedule import SCHEDULE_HEADER, TICK_HEADER
from dray.settings.forms import format_priorities

JOB_COLUMNS = tuple(map(Column, ("ID", "TASK", "QUEUE", "STATUS", "TRY", "CREATED", "NOTE")))
DEAD_COLUMNS = tuple(map(Column, ("ID", "TASK", "QUEUE", "TRIES", "DIED", "REASON")))
_ALWAYS = (State.READY, State.RUNNING)
WORKER_COLUMNS = tuple(
    map(Column, ("WORKER", "STATE", "QUEUES", "RUNNING", "DONE", "FAILED", "AVG", "STARTED", "SEEN", "ROLE"))
)


# jobs


def job_json(info: JobInfo) -> dict[str, Any]:
    """Every field of `JobInfo`, under its own name."""
    shown: dict[str, Any] = plain(info)
    return shown


def job_row(info: JobInfo) -> list[str]:
    status = "stopping" if info.cancelling else str(info.status)
    tries = f"{info.attempt}/{info.retries + 1}"
    return [info.id, info.task, info.queue, status, tries, age(info.created_at), one_line(_note(info))]


def _note(info: JobInfo) -> str:
    if info.status in (State.SCHEDULED, State.RETRYING) and info.due_at is not None:
        why = f", {info.error.type}" if info.error is not None else ""
        return f"due {age(info.due_at)}{why}"
    if info.progress is not None:
        return progress_text(info.progress)
    if info.status is State.WAITING:
        return f"waits for {len(info.waits_for)} jobs"
    return info.reason or info.description


def dead_row(info: JobInfo) -> list[str]:
    return [
        info.id,
        info.task,
        info.queue,
        str(info.attempt),
        age(info.finished_at),
        one_line(death(info), 80),
    ]


def death(info: JobInfo) -> str:
    """Why a job is dead, with the error it left."""
    reason = info.reason or ""
    if info.error is None:
        return reason
    error = f"{info.error.type}: {info.error.message}"
    return (
        reason if info.error.message and info.error.message in reason else f"{reason}: {error}".lstrip(": ")
    )


def job_fields(info: JobInfo) -> list[tuple[str, str]]:
    """Everything worth telling of one job, in the order people ask."""
    fields = [
        ("id", info.id),
        ("task", info.task),
        ("call", _call(info)),
        ("status", f"{info.status}{' (asked to stop)' if info.cancelling else ''}"),
        ("reason", info.reason or ""),
        ("queue", info.queue),
        ("priority", str(info.priority)),
        ("attempt", f"{info.attempt} of {info.retries + 1}"),
        ("crashes", str(info.crashes or "")),
        ("created", stamp(info.created_at)),
        ("due", stamp(info.due_at)),
        ("expires", stamp(info.expires_at)),
        ("started", stamp(info.started_at)),
        ("finished", stamp(info.finished_at)),
        ("timeout", "" if info.timeout is None else format_duration(round(info.timeout * 1000))),
        ("worker", info.worker or ""),
        ("progress", "" if info.progress is None else progress_text(info.progress)),
        ("waits for", ", ".join(info.waits_for)),
        ("schedule", _schedule(info)),
        ("parent", info.parent or ""),
        ("key", info.key or ""),
        ("group", info.group or ""),
        ("tags", ", ".join(info.tags)),
        ("description", info.description),
        ("result", brief(info.result, 2000) if info.result is not None else ""),
        ("error", "" if info.error is None else error_text(info.error)),
    ]
    return [(name, value) for name, value in fields if value]


def _schedule(info: JobInfo) -> str:
    name, tick = (info.headers.get(header, "") for header in (SCHEDULE_HEADER, TICK_HEADER))
    return f"{name}, {tick}" if name and tick else ""


def _call(info: JobInfo) -> str:
    if info.args is None or info.kwargs is None:
        return "(its arguments cannot be read here)"
    parts = [brief(value, 500) for value in info.args]
    parts += [f"{name}={brief(value, 500)}" for name, value in info.kwargs.items()]
    return f"{info.task}({', '.join(parts)})"


def progress_text(progress: Progress) -> str:
    total = "" if progress.total is None else f"/{progress.total:g}"
    return f"{progress.done:g}{total} {progress.note}".strip()


def error_text(error: Error) -> str:
    return f"{error.type}: {error.message}\n{error.traceback}".rstrip()


# queues


def queue_json(info: QueueInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "counts": {str(state): info.counts.get(state, 0) for state in State if state is not State.NOT_FOUND},
        "paused": _pause_json(info.paused),
        "limits": plain(info.limits),
        "paused_tasks": {task: _pause_json(pause) for task, pause in info.paused_tasks.items()},
        "task_limits": plain(info.task_limits),
        "next_due_at": plain(moment_of(info.next_due)),
        "oldest_ready_at": plain(moment_of(info.oldest_ready)),
    }


def _pause_json(pause: Pause | None) -> dict[str, Any] | None:
    if pause is None:
        return None
    return {"by": pause.by, "reason": pause.reason, "at": plain(moment_of(pause.at))}


def queue_table(infos: Sequence[QueueInfo]) -> tuple[list[Column], list[list[str]]]:
    """Queues and their jobs by state; states that no job is in are left out."""
    states = [state for state in State if state in _ALWAYS or any(info.counts.get(state) for info in infos)]
    counts = [Column(state.upper(), right=True) for state in states]
    columns = [Column("QUEUE"), *counts, *map(Column, ("OLDEST", "STATE", "LIMITS"))]
    rows = [
        [
            info.name,
            *(str(info.counts.get(state, 0) or "-") for state in states),
            _waited(info),
            _state(info),
            limits_text(info),
        ]
        for info in infos
    ]
    return columns, rows


def _waited(info: QueueInfo) -> str:
    return "" if info.oldest_ready is None else age(info.oldest_ready)


def _state(info: QueueInfo) -> str:
    if info.paused is not None:
        return "paused"
    return f"paused: {', '.join(sorted(info.paused_tasks))}" if info.paused_tasks else ""


def limits_text(info: QueueInfo) -> str:
    scopes = [("", info.limits), *sorted((f"{task}: ", limits) for task, limits in info.task_limits.items())]
    return "; ".join(f"{scope}{text}" for scope, limits in scopes if (text := _limits(limits)))


def _limits(limits: Limits) -> str:
    given = [(name, getattr(limits, name)) for name in Limits.__struct_fields__]
    return " ".join(f"{name}={value}" for name, value in given if value is not None)


# workers


def worker_json(info: WorkerInfo) -> dict[str, Any]:
    shown: dict[str, Any] = plain(info)
    shown["running"] = info.running
    for moment in ("started", "seen"):
        shown[f"{moment}_at"] = plain(moment_of(shown.pop(moment)))
    return shown


def worker_row(info: WorkerInfo) -> list[str]:
    slots = sum(1 for _ in info.executors) * info.concurrency
    queues = ",".join(info.queues)
    if info.priorities is not None:
        queues += f" [{format_priorities(frozenset(info.priorities))}]"
    done, failed = (sum(getattr(one, name) for one in info.executors) for name in ("succeeded", "failed"))
    mode = "" if info.mode == "default" else info.mode
    clock = f"clock {describe_skew(info.skew)} the broker's" if abs(info.skew) > SKEWED else ""
    role = ", ".join(word for word in ("leader" if info.leader else "", mode, clock) if word)
    running = f"{info.running}/{slots}" if slots else "-"
    return [
        info.id,
        info.state,
        queues,
        running,
        str(done),
        str(failed),
        "-" if info.average is None else seconds(info.average),
        age(info.started),
        age(info.seen),
        role,
    ]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and largest of some measurements."""
    ordered = sorted(values)
    return {
        "p50": ordered[len(ordered) // 2],
        "p99": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
        "max": ordered[-1],
    }
