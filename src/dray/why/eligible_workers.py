"""Who could run a job, what the others lack for it, and who runs it now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dray.duration import format_duration
from dray.info import moment
from dray.job import Job, Record, Run
from dray.roster import WorkerInfo
from dray.tokens import EXTERNAL
from dray.why.reasons import Reason, clock_time

_SHOWN: Final = 3


def lacks(worker: WorkerInfo, job: Job) -> list[str]:
    """What a running worker would need to take a job; empty if it would."""
    missing = []
    if job.queue not in worker.queues:
        missing.append("queue")
    if job.task not in worker.tasks:
        missing.append("task")
    if worker.priorities is not None and job.priority not in worker.priorities:
        missing.append("priority")
    return missing


def no_worker(record: Record, workers: Sequence[WorkerInfo]) -> Reason | None:
    """Nobody would take it: who comes nearest, and what they lack."""
    job = record.job
    if not workers:
        return "no_workers", "no worker is running: start one with `dray worker -A module:app`", {}
    nearest = sorted(((lacks(worker, job), worker) for worker in workers), key=lambda pair: len(pair[0]))
    if not nearest[0][0]:
        return None
    details: dict[str, Any] = {
        "workers": [worker.id for worker in workers],
        "nearly": [{"worker": worker.id, "lacks": missing} for missing, worker in nearest[:20]],
    }
    serving = [worker for worker in workers if job.queue in worker.queues]
    starting = [worker for worker in serving if not worker.tasks and worker.processes]
    code, text = _for_want_of(job, workers, serving)
    if starting:
        names = ", ".join(worker.id for worker in starting[:_SHOWN])
        return "workers_starting", f"workers of queue {job.queue} are still starting: {names}", details
    return code, f"{text}; nearest: {_nearest(job, nearest)}", details


def _for_want_of(job: Job, workers: Sequence[WorkerInfo], serving: Sequence[WorkerInfo]) -> tuple[str, str]:
    if not serving:
        queues = ", ".join(sorted({queue for worker in workers for queue in worker.queues})) or "none"
        text = f"no running worker serves queue {job.queue} (served are: {queues})"
        return "no_worker_for_queue", f"{text}: start one with `dray worker -Q {job.queue}`"
    if not any(job.task in worker.tasks for worker in serving):
        return "no_worker_for_task", (
            f"no running worker of queue {job.queue} takes task {job.task}: "
            "it waits for one that does, and is in nobody's way"
        )
    text = f"no running worker of queue {job.queue} that takes {job.task} takes priority {job.priority}"
    return "no_worker_for_priority", text


def _nearest(job: Job, nearest: Sequence[tuple[list[str], WorkerInfo]]) -> str:
    words = {name: f"{name} {getattr(job, name)}" for name in ("queue", "task", "priority")}
    least = len(nearest[0][0])
    shown = [
        f"{worker.id} lacks {' and '.join(words[one] for one in missing)}"
        for missing, worker in nearest[:_SHOWN]
        if len(missing) == least
    ]
    return ", ".join(shown)


def running(record: Record, workers: Sequence[WorkerInfo], now: int) -> Reason:
    """Held by whom, since when, and when that worker was last heard of."""
    if not record.runs:
        return "running", "it is running", {}
    newest = record.runs[-1]
    details = _facts(newest, _worker_of(newest, workers))
    text = f"it runs on {newest.session} since {clock_time(newest.since)} (attempt {record.attempt})"
    text += f"{_progress(newest)}; {_heard_of(newest, _worker_of(newest, workers), now)}"
    if len(record.runs) > 1:
        details["runs"] = [_facts(one, _worker_of(one, workers)) for one in record.runs]
        text += f"; another run is on {record.runs[0].session}, and the first to end counts"
    if record.cancel is not None:
        details["cancel"] = record.cancel
        return "stopping", f"{text}; it was asked to stop ({record.cancel})", details
    return "running", text, details


def _worker_of(run: Run, workers: Sequence[WorkerInfo]) -> WorkerInfo | None:
    # The session of an executor is its worker's id, its number and that of the session: `worker/3.1`.
    name = run.session.rpartition("/")[0]
    return next((worker for worker in workers if worker.id == name), None)


def _facts(run: Run, worker: WorkerInfo | None) -> dict[str, Any]:
    return {
        "session": run.session,
        "worker": run.session if worker is None else worker.id,
        "since": moment(run.since).isoformat(),
        "run": run.number,
        "seen_at": None if worker is None else moment(worker.seen).isoformat(),
    }


def _progress(run: Run) -> str:
    if run.progress is None:
        return ""
    done, total, note = run.progress.done, run.progress.total, run.progress.note
    return f", at {done:g}{'' if total is None else f' of {total:g}'}{' ' + note if note else ''}"


def _heard_of(run: Run, worker: WorkerInfo | None, now: int) -> str:
    if run.session.startswith(EXTERNAL):
        return "an external worker holds it: if that is gone, another one takes over after its lease"
    if worker is None:
        return "no such worker is on the roster: if it is gone, another one takes over after its lease"
    age = (now - worker.seen) // 1000
    return f"its worker was last heard of {format_duration(age * 1000) + ' ago' if age > 0 else 'just now'}"
