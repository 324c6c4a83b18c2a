"""The reason as a value, and the reasons that a job's own record shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from dray.info import moment
from dray.job import Record, State

CODES: Final = (
    *("not_found", "waits_for_jobs", "due_later", "retry_later", "queue_paused", "task_paused"),
    *("no_workers", "no_worker_for_queue", "no_worker_for_task", "no_worker_for_priority"),
    *("workers_starting", "limited", "rate_limited", "in_line"),
    *("running", "stopping", "succeeded", "dead", "cancelled"),
    *("sleeping", "step_retry", "waits_for_event", "waits_for_child", "parked", "undoing"),
)
_SHOWN: Final = 5
_DEATHS: Final = frozenset({"poison", "expired", "deadline", "dropped", "undecodable", "rejected"})
"""Kinds of death, as reasons begin with them; any other death is a failure of the task."""


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """The reason.

    `code` is one of not_found, waits_for_jobs, due_later, retry_later, queue_paused, task_paused, no_workers,
    no_worker_for_queue, no_worker_for_task, no_worker_for_priority, workers_starting, limited, rate_limited,
    in_line, running, stopping, succeeded, dead, cancelled; of durable jobs also sleeping, step_retry,
    waits_for_event, waits_for_child, parked, undoing. docs/why.md lists the `details` of each.
    """

    id: str
    status: State
    code: str
    text: str
    details: dict[str, Any] = {}

    def __str__(self) -> str:
        return self.text


Reason = tuple[str, str, dict[str, Any]]
"""Code, text and details."""


def clock_time(ms: int) -> str:
    return f"{moment(ms):%Y-%m-%d %H:%M:%S} UTC"


def counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def read_from_record(record: Record) -> Reason:
    """The reason for a state that the record explains by itself."""
    return {
        State.SCHEDULED: _scheduled,
        State.RETRYING: _retrying,
        State.SUCCEEDED: _succeeded,
        State.DEAD: _dead,
        State.CANCELLED: _cancelled,
    }[record.state](record)


def waiting(record: Record, others: Sequence[Record | None]) -> Reason:
    """`others` are the first of the jobs it waits for. Nodes of a flow are named."""
    waits = waited_for(record)
    found = list(zip(waits, others, strict=False))
    states = {id: State.NOT_FOUND if other is None else other.state for id, other in found}
    nodes = {id: other.job.node for id, other in found if other is not None and other.job.node}
    shown = ", ".join(
        f"{f'node {nodes[id]}, ' if id in nodes else ''}{id} ({state})"
        for id, state in list(states.items())[:_SHOWN]
    )
    more = ", …" if len(waits) > _SHOWN else ""
    goal = {"cancel": "to succeed", "wait": "to succeed", "first": "until one succeeds"}
    how = "to end" if record.suspended is not None else goal.get(record.job.orphan, "to end")
    details = {"waits_for": list(waits), "states": {id: str(state) for id, state in states.items()}}
    if nodes:
        details["nodes"] = nodes
    return "waits_for_jobs", f"it waits for {counted(len(waits), 'other job')} {how}: {shown}{more}", details


def waited_for(record: Record) -> tuple[str, ...]:
    """The jobs that it waits for, as a dependant or while its run is suspended."""
    return record.waiting or (() if record.suspended is None else record.suspended.jobs)


def _scheduled(record: Record) -> Reason:
    due = record.due or 0
    return "due_later", f"it is not due before {clock_time(due)}", {"due_at": moment(due).isoformat()}


def _retrying(record: Record) -> Reason:
    due, error = record.due or 0, record.error
    failed = f": {error.type}: {error.message}" if error is not None else ""
    text = (
        f"attempt {record.failures} of {record.job.retries + 1} failed{failed}; "
        f"it is tried again at {clock_time(due)}"
    )
    return "retry_later", text, {"due_at": moment(due).isoformat(), "failures": record.failures}


def _succeeded(record: Record) -> Reason:
    ended = record.finished or 0
    details = {"finished_at": moment(ended).isoformat(), "attempt": record.attempt}
    return "succeeded", f"it succeeded at {clock_time(ended)} (attempt {record.attempt})", details


def _dead(record: Record) -> Reason:
    reason, error = record.reason or "no reason given", record.error
    text = f"it is dead since {clock_time(record.finished or 0)}: {reason}"
    if error is not None and error.message not in text:
        text += f" ({error.type}: {error.message})"
    kind = reason.partition(":")[0]
    details: dict[str, Any] = {
        "reason": record.reason,
        "kind": kind if kind in _DEATHS else "failed",
        "finished_at": moment(record.finished or 0).isoformat(),
        "failures": record.failures,
        "crashes": record.crashes,
    }
    if error is not None:
        details["error"] = {"type": error.type, "message": error.message}
    return "dead", f"{text}; run it again with `dray jobs retry {record.id}`", details


def _cancelled(record: Record) -> Reason:
    began = "after it had started" if record.run else "before it had started"
    ended = record.finished or 0
    text = f"it was cancelled {began}, at {clock_time(ended)}: {record.reason or 'no reason given'}"
    details = {
        "reason": record.reason,
        "finished_at": moment(ended).isoformat(),
        "started": record.run > 0,
    }
    return "cancelled", text, details
