"""Whether a worker is of use, as health checks ask: it took work or tried to lately, or has its hands full.

The supervisor replaces executors that hang by itself; a check is for what it cannot mend, such as a machine
that has lost its network.
"""

from __future__ import annotations

from typing import Final

from dray.roster import ExecutorInfo, WorkerInfo

LATELY: Final = 60_000
"""Milliseconds. An idle executor asks at least every twenty seconds."""


def unfit(worker: WorkerInfo, now: int) -> str | None:
    """Why it is of no use at the moment; None if it is."""
    silent = now - worker.seen
    if silent > LATELY:
        return f"it was last heard of {silent // 1000} s ago"
    if worker.state != "running":
        return "it is stopping"
    if worker.mode == "scheduler-only":
        return None
    if not worker.executors:
        return "it has no executor"
    reasons = [_idle(executor, worker.concurrency, silent) for executor in worker.executors]
    return None if None in reasons else reasons[0]


def _idle(executor: ExecutorInfo, concurrency: int, silent: int) -> str | None:
    name = f"executor {executor.number}"
    if executor.session is None:
        return f"{name} has not started yet"
    if executor.running >= concurrency:
        return None
    if executor.tried_age is None:
        return f"{name} has not asked for work yet"
    age = executor.tried_age + max(0, silent)
    return None if age <= LATELY else f"{name} last asked for work {age // 1000} s ago"
