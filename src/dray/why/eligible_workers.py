"""The workers that could run a job, what the others lack, and the worker that runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from dray.broker.verbs import QueueInfo
from dray.documents.lease_token import EXTERNAL
from dray.documents.queue_state import is_dedicated
from dray.documents.worker_registry import WorkerInfo
from dray.duration import format_duration
from dray.info import moment
from dray.job import Job, Record, Run
from dray.why.reasons import Reason, clock_time

_SHOWN: Final = 3
DATA_SHOWN: Final = 200
"""Characters of a run's progress data."""


def lacks(worker: WorkerInfo, job: Job) -> list[str]:
    """What a running worker lacks to take a job; empty if it would take it."""
    missing = []
    if not worker.serves_queue(job.queue):
        missing.append("queue")
    if job.task not in worker.tasks:
        missing.append("task")
    if worker.priorities is not None and job.priority not in worker.priorities:
        missing.append("priority")
    return missing


def no_worker(record: Record, workers: Sequence[WorkerInfo], queue: QueueInfo | None) -> Reason | None:
    """No worker would take it: the nearest ones, and what they lack."""
    job = record.job
    if not workers:
        named = f" -Q {job.queue}" if queue is not None and queue.dedicated else ""
        return "no_workers", f"no worker is running: start one with `dray worker -A module:app{named}`", {}
    nearest = sorted(((lacks(worker, job), worker) for worker in workers), key=lambda pair: len(pair[0]))
    if not nearest[0][0]:
        return None
    details: dict[str, Any] = {
        "workers": [worker.id for worker in workers],
        "nearly": [{"worker": worker.id, "lacks": missing} for missing, worker in nearest[:20]],
    }
    if is_dedicated(queue or QueueInfo(name=job.queue, counts={}), workers):
        details["dedicated"] = True
    serving = [worker for worker in workers if worker.serves_queue(job.queue)]
    # A worker without a list of queues knows them only once it has imported the app.
    coming = [worker for worker in workers if worker in serving or not worker.queues]
    starting = [worker for worker in coming if not worker.tasks and worker.processes]
    code, text = _missing(job, workers, serving, "dedicated" in details)
    if starting:
        names = ", ".join(worker.id for worker in starting[:_SHOWN])
        return "workers_starting", f"workers of queue {job.queue} are still starting: {names}", details
    return code, f"{text}; nearest: {_nearest(job, nearest)}", details


def _missing(
    job: Job, workers: Sequence[WorkerInfo], serving: Sequence[WorkerInfo], dedicated: bool
) -> tuple[str, str]:
    if not serving:
        queues = ", ".join(sorted({queue for worker in workers for queue in worker.queues})) or "none"
        text = f"no running worker serves queue {job.queue} (served are: {queues})"
        if dedicated:
            text += "; it is dedicated, so that only workers that list it serve it"
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
    """The worker that runs it, since when, and when that worker was last seen."""
    if not record.runs:
        return "running", "it is running", {}
    newest = record.runs[-1]
    details = _facts(newest, _worker_of(newest, workers))
    text = f"it runs on {newest.session} since {clock_time(newest.since)} (attempt {record.attempt})"
    text += f"{_progress(newest)}; {_last_seen(newest, _worker_of(newest, workers), now)}"
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
        "progress": None if run.progress is None else msgspec.structs.asdict(run.progress),
    }


def _progress(run: Run) -> str:
    if run.progress is None:
        return ""
    done, total, note = run.progress.done, run.progress.total, run.progress.note
    data = msgspec.json.encode(run.progress.data).decode() if run.progress.data else ""
    shown = f" {data if len(data) <= DATA_SHOWN else data[:DATA_SHOWN] + '…'}" if data else ""
    return f", at {done:g}{'' if total is None else f' of {total:g}'}{' ' + note if note else ''}{shown}"


def _last_seen(run: Run, worker: WorkerInfo | None, now: int) -> str:
    if run.session.startswith(EXTERNAL):
        return "an external worker holds it: if that is gone, another one takes over after its lease"
    if worker is None:
        return "no such worker is on the roster: if it is gone, another one takes over after its lease"
    age = (now - worker.seen) // 1000
    return f"its worker was last heard of {format_duration(age * 1000) + ' ago' if age > 0 else 'just now'}"
