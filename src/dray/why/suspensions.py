"""What a durable job waits for; that it is parked, or undone before it ends."""

from __future__ import annotations

from typing import Any

from dray.broker.verbs import Broker
from dray.durable.identity import difference_of
from dray.durable.steps import StepInfo, steps_of
from dray.info import moment
from dray.job import Record, Suspension, Undo
from dray.why.reasons import Reason, clock_time, counted


async def read_log(broker: Broker, record: Record) -> list[StepInfo]:
    entries: list[bytes] = []
    while len(entries) < record.memos and (page := await broker.recall(record.id, len(entries))):
        entries += page
    return steps_of(entries)


def suspended(record: Record, what: Suspension, steps: list[StepInfo]) -> Reason:
    """`steps` say since when it waits for events."""
    details: dict[str, Any] = {}
    until = ""
    if what.until is not None:
        details["until"] = moment(what.until).isoformat()
        until = f", until {clock_time(what.until)} at the latest"
    if what.parked:
        return _parked(record)
    if what.events:
        return _events(what, steps, details, until)
    if what.jobs:
        details["waits_for"] = list(what.jobs)
        shown = ", ".join(what.jobs[:5]) + (", …" if len(what.jobs) > 5 else "")
        text = f"it waits for the end of {counted(len(what.jobs), 'job')} that it called: {shown}{until}"
        return "waits_for_child", text, details
    if record.error is not None and record.due is not None and record.state == "retrying":
        text = f"a step failed: {record.error.type}: {record.error.message}; the next try is at "
        return "step_retry", text + clock_time(record.due), details
    return "sleeping", f"it sleeps until {clock_time(what.until or 0)}", details


def _events(what: Suspension, steps: list[StepInfo], details: dict[str, Any], until: str) -> Reason:
    names, shown = list(what.events), []
    waits = {
        name: step.at
        for name in names
        for step in steps
        if step.status == "waiting" and step.id.startswith(f"event({name})")
    }
    for name in names:
        since = f" since {clock_time(waits[name])}" if name in waits else ""
        shown.append(f"{name!r}{since}")
    details["events"] = {name: moment(at).isoformat() for name, at in waits.items()} | {
        name: None for name in names if name not in waits
    }
    what_for = "event" if len(names) == 1 else "events"
    return "waits_for_event", f"it waits for {what_for} {', '.join(shown)}{until}", details


def _parked(record: Record) -> Reason:
    difference = difference_of(record.reason)
    text = (
        f"it is parked, because its code has changed: {difference}. "
        f"`dray jobs continue {record.id}` goes on with what it remembers, "
        f"`dray jobs rerun {record.id} --from STEP` begins anew at a step, `dray jobs cancel` ends it"
    )
    return "parked", text, {"difference": difference}


def undoing(undo: Undo, text: str, details: dict[str, Any]) -> Reason:
    """`text` says where its undo run stands."""
    after = f"it is being undone, and then {undo.state}: {undo.reason}; of its undo run: {text}"
    return "undoing", after, details | {"then": str(undo.state), "reason": undo.reason}
