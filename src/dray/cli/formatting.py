"""Jobs, queues, workers and statistics as table rows and as JSON, whose keys are stable."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from dray.broker.actions import Pause
from dray.broker.verbs import Limits, QueueInfo
from dray.cli.output import age, brief, counted, moment_of, one_line, plain, stamp
from dray.documents.queue_state import is_dedicated
from dray.documents.worker_registry import SKEWED, WorkerInfo, describe_skew
from dray.duration import format_duration
from dray.info import JobInfo, RunInfo
from dray.job import Progress, State
from dray.schedules.schedule import SCHEDULE_HEADER, TICK_HEADER
from dray.settings.forms import format_priorities
from dray.stats.task_stats import TaskStats

JOB_TITLES = ("ID", "TASK", "QUEUE", "STATUS", "TRY", "CREATED", "NOTE")
DEAD_TITLES = ("ID", "TASK", "QUEUE", "TRIES", "DIED", "REASON")
QUEUE_TITLES = ("OLDEST", "WORKERS", "STATE", "LIMITS")
WORKER_TITLES = (
    *("WORKER", "STATE", "QUEUES", "RUNNING", "DONE", "FAILED"),
    *("AVG", "P95", "CREW", "STARTED", "SEEN", "ROLE"),
)
TASK_NUMBERS = (
    *("ACCEPTED", "RUNS", "FAILED", "AVG", "P50", "P95", "P99"),
    *("WAIT P95", "CPU", "MEMORY", "STALLS", "SECOND RUNS"),
)
TASK_TITLES = ("TASK", *TASK_NUMBERS)
_ALWAYS_SHOWN = (State.READY, State.RUNNING)


# jobs


def job_row(info: JobInfo) -> list[str]:
    status = "stopping" if info.cancelling else str(info.status)
    tries = f"{info.attempt}/{info.retries + 1}"
    return [info.id, info.task, info.queue, status, tries, age(info.created_at), one_line(_note(info))]


def _note(info: JobInfo) -> str:
    if info.status in (State.SCHEDULED, State.RETRYING) and info.due_at is not None:
        why = f", {info.error.type}" if info.error is not None else ""
        return f"due {age(info.due_at)}{why}"
    if info.progress is not None:
        return _progress(info.progress)
    if info.parked:
        return f"parked, {info.reason}"
    if info.waits_for_events:
        return f"waits for event {', '.join(info.waits_for_events)}"
    if info.status is State.WAITING:
        return f"waits for {counted(len(info.waits_for), 'job', 'jobs')}"
    return info.reason or info.description


def dead_row(info: JobInfo) -> list[str]:
    died, reason = age(info.finished_at), one_line(_cause_of_death(info), 80)
    return [info.id, info.task, info.queue, str(info.attempt), died, reason]


def _cause_of_death(info: JobInfo) -> str:
    """The reason, and the error unless the reason quotes it."""
    reason, error = info.reason or "", info.error
    if error is None or (error.message and error.message in reason):
        return reason
    return f"{reason}: {error.type}: {error.message}".lstrip(": ")


def job_fields(info: JobInfo) -> list[tuple[str, str]]:
    """The fields of one job that have a value, in the order people ask."""
    fields = [
        ("id", info.id),
        ("task", info.task),
        ("call", _call(info)),
        ("status", f"{info.status}{_status_note(info)}"),
        ("reason", info.reason or ""),
        ("queue", info.queue),
        ("priority", str(info.priority)),
        ("attempt", f"{info.attempt} of {info.retries + 1}"),
        ("crashes", str(info.crashes or "")),
        ("created", stamp(info.created_at)),
        ("due", stamp(info.due_at)),
        ("expires", stamp(info.expires_at)),
        ("deadline", stamp(info.deadline)),
        ("started", stamp(info.started_at)),
        ("finished", stamp(info.finished_at)),
        ("timeout", "" if info.timeout is None else format_duration(round(info.timeout * 1000))),
        ("worker", info.worker or ""),
        ("progress", "" if info.progress is None else _progress(info.progress)),
        ("waits for", ", ".join(info.waits_for)),
        ("awaits event", ", ".join(info.waits_for_events)),
        ("sleeps until", stamp(info.sleeps_until)),
        ("rerun of", info.rerun_of or ""),
        ("flow", f"{info.flow}, node {info.node}" if info.node else info.flow or ""),
        ("schedule", _schedule(info)),
        ("parent", info.parent or ""),
        ("key", info.key or ""),
        ("group", info.group or ""),
        ("tags", ", ".join(info.tags)),
        ("description", info.description),
        ("result", brief(info.result, 2000) if info.result is not None else ""),
        (
            "error",
            ""
            if info.error is None
            else f"{info.error.type}: {info.error.message}\n{info.error.traceback}".rstrip(),
        ),
        ("runs", "\n".join(map(_run, info.run_history))),
    ]
    return [(name, value) for name, value in fields if value]


def _status_note(info: JobInfo) -> str:
    notes = {"asked to stop": info.cancelling, "parked": info.parked, "being undone": info.undoing}
    return "".join(f" ({note})" for note, holds in notes.items() if holds)


def _schedule(info: JobInfo) -> str:
    name, tick = (info.headers.get(header, "") for header in (SCHEDULE_HEADER, TICK_HEADER))
    return f"{name}, {tick}" if name and tick else ""


def _call(info: JobInfo) -> str:
    if info.args is None or info.kwargs is None:
        return "(its arguments cannot be read here)"
    parts = [brief(value, 500) for value in info.args]
    parts += [f"{name}={brief(value, 500)}" for name, value in info.kwargs.items()]
    return f"{info.task}({', '.join(parts)})"


def _progress(progress: Progress) -> str:
    total = "" if progress.total is None else f"/{progress.total:g}"
    data = f" {brief(progress.data, 500)}" if progress.data else ""
    return f"{progress.done:g}{total} {progress.note}".strip() + data


def _run(run: RunInfo) -> str:
    """`2  failed  12:30:01 – 12:30:04 (3.1s) on host-12/1.1: ValueError: no`."""
    until = run.ended_at or datetime.now(UTC)
    took = format_duration(max(0, round((until - run.started_at).total_seconds() * 1000)))
    on = f" on {run.worker}" if run.worker else ""
    error = f": {run.error}" if run.error else ""
    return f"{run.number}  {run.outcome}, {stamp(run.started_at)}, {took}{on}{error}"


# queues


def queue_json(info: QueueInfo, workers: Sequence[WorkerInfo]) -> dict[str, Any]:
    return {
        "name": info.name,
        "counts": {str(state): info.counts.get(state, 0) for state in State if state is not State.NOT_FOUND},
        "paused": _pause_json(info.paused),
        "limits": plain(info.limits),
        "paused_tasks": {task: _pause_json(pause) for task, pause in info.paused_tasks.items()},
        "task_limits": plain(info.task_limits),
        "next_due_at": plain(moment_of(info.next_due)),
        "oldest_ready_at": plain(moment_of(info.oldest_ready)),
        "dedicated": is_dedicated(info, workers),
        "workers": _serving(info, workers),
    }


def _serving(info: QueueInfo, workers: Sequence[WorkerInfo]) -> int:
    return sum(
        worker.state == "running" and worker.serves_queue(info.name, info.dedicated) for worker in workers
    )


def _pause_json(pause: Pause | None) -> dict[str, Any] | None:
    if pause is None:
        return None
    return {"by": pause.by, "reason": pause.reason, "at": plain(moment_of(pause.at))}


def shown_states(infos: Sequence[QueueInfo]) -> list[State]:
    """States with a column in the table of queues: those of any job, and two that are always there."""
    return [
        state for state in State if state in _ALWAYS_SHOWN or any(info.counts.get(state) for info in infos)
    ]


def queue_row(info: QueueInfo, workers: Sequence[WorkerInfo], states: Sequence[State]) -> list[str]:
    return [
        info.name,
        *(str(info.counts.get(state, 0) or "-") for state in states),
        age(info.oldest_ready),
        str(_serving(info, workers) or "none"),
        _queue_state(info, workers),
        limits_text(info),
    ]


def _queue_state(info: QueueInfo, workers: Sequence[WorkerInfo]) -> str:
    words = ["dedicated"] if is_dedicated(info, workers) else []
    if info.paused is not None:
        words.append("paused")
    elif info.paused_tasks:
        words.append(f"paused: {', '.join(sorted(info.paused_tasks))}")
    return ", ".join(words)


def limits_text(info: QueueInfo) -> str:
    scopes = [("", info.limits), *sorted((f"{task}: ", limits) for task, limits in info.task_limits.items())]
    return "; ".join(f"{scope}{text}" for scope, limits in scopes if (text := _limits(limits)))


def _limits(limits: Limits) -> str:
    given = [(name, getattr(limits, name)) for name in Limits.__struct_fields__]
    return " ".join(f"{name}={value}" for name, value in given if value is not None)


# workers


def worker_json(info: WorkerInfo, against_others: float | None) -> dict[str, Any]:
    shown: dict[str, Any] = plain(info)
    shown["running"], shown["slots"] = info.running, info.slots
    shown["against_crew"] = against_others
    for moment in ("started", "seen"):
        shown[f"{moment}_at"] = plain(moment_of(shown.pop(moment)))
    return shown


def worker_row(info: WorkerInfo, against_others: float | None) -> list[str]:
    queues = ",".join(info.queues)
    if info.priorities is not None:
        queues += f" [{format_priorities(frozenset(info.priorities))}]"
    done, failed = (sum(getattr(one, name) for one in info.executors) for name in ("succeeded", "failed"))
    mode = "" if info.mode == "default" else info.mode
    clock = f"clock {describe_skew(info.skew)} the broker's" if abs(info.skew) > SKEWED else ""
    role = ", ".join(word for word in ("leader" if info.leader else "", mode, clock) if word)
    running = f"{info.running}/{info.slots}" if info.slots else "-"
    return [
        info.id,
        info.state,
        queues,
        running,
        str(done),
        str(failed),
        "-" if info.average is None else seconds(info.average),
        "-" if info.p95 is None else seconds(info.p95),
        "-" if against_others is None else f"{against_others:.2g}×",
        age(info.started),
        age(info.seen),
        role,
    ]


# statistics of tasks


def task_row(stats: TaskStats) -> list[str]:
    took = stats.duration
    times = [seconds(time) for time in (took.average, took.p50, took.p95, took.p99)]
    return [
        stats.task,
        str(stats.accepted or "-"),
        str(stats.runs),
        str(stats.failed),
        *(times if stats.samples else ["-"] * len(times)),
        seconds(stats.wait.p95) if stats.wait.longest else "-",
        "-" if stats.cpu is None else seconds(stats.cpu),
        "-" if stats.memory is None else f"{stats.memory / (1 << 20):.0f} MiB",
        str(stats.stalls or "-"),
        f"{stats.won} won of {stats.launched}" if stats.launched else "-",
    ]


def seconds(time: float) -> str:
    """Seconds in a fitting unit: 840 µs, 12.3 ms, 4.56 s, 3.1 min."""
    if time < 0.001:
        return f"{time * 1e6:.0f} µs"
    if time < 1:
        return f"{time * 1e3:.3g} ms"
    return f"{time:.2f} s" if time < 100 else f"{time / 60:.1f} min"
