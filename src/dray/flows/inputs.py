"""The inputs of a node when it starts: whether it runs at all, and with what.

Waiting and cancelling are the broker's work; this decides what only the results of the inputs can tell: a
node for failures of which there are none, one whose input is being run again, one that takes failures as
well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from dray.broker.verbs import Broker
from dray.codec.inputs import INPUTS_MAX, Failed, Filled, Given, Slot, failed, places_of, read, write
from dray.context import EndRun
from dray.flows.graph import SKIPPED
from dray.flows.reading import STEP, is_skipped, standing
from dray.job import FINISHED, Error, Job, OutcomeKind, Record, State, Suspension

_NOTHING: Final = Given("none")


async def resolve(broker: Broker, jobs: Sequence[Job]) -> list[bytes | EndRun]:
    """For each job its payload with all inputs, or how its run ends instead. One read for all of them."""
    ids = list(dict.fromkeys(id for job in jobs for id in job.waits_for))
    records = await _read(broker, ids)
    await _read_causes(broker, records)
    return [_decide(job, read(job.payload), records) for job in jobs]


async def _read(broker: Broker, ids: Sequence[str]) -> dict[str, Record | None]:
    records: dict[str, Record | None] = {}
    for first in range(0, len(ids), STEP):
        step = ids[first : first + STEP]
        records.update(zip(step, await broker.get(step), strict=True))
    return records


async def _read_causes(broker: Broker, records: dict[str, Record | None]) -> None:
    """Read also the jobs whose end cancelled these: one that was skipped is no failure."""
    while True:
        known = [one for one in records.values() if one is not None]
        unread = {one.orphaned_by for one in known if one.orphaned_by and one.orphaned_by not in records}
        if not unread:
            return
        records.update(await _read(broker, [id for id in unread if id]))


def _decide(job: Job, filled: Filled, records: Mapping[str, Record | None]) -> bytes | EndRun:
    inputs = [records[id] for id in job.waits_for]
    unfinished = tuple(
        id
        for id, record in zip(job.waits_for, inputs, strict=True)
        if record is not None and record.state not in FINISHED
    )
    succeeded = [record for record in inputs if record is not None and record.state is State.SUCCEEDED]
    if unfinished and not (filled.when == "any" and succeeded):
        wait = Suspension(jobs=unfinished, all_jobs=filled.when != "any")
        return EndRun(OutcomeKind.SUSPENDED, suspend=wait)
    return _refusal(job, filled, inputs, records) or _filled(job, filled, inputs)


def _refusal(
    job: Job, filled: Filled, inputs: Sequence[Record | None], records: Mapping[str, Record | None]
) -> EndRun | None:
    """How the run ends if the node must not run."""
    known = {id: standing(record) for id, record in records.items() if record is not None}
    ended = list(zip(job.waits_for, inputs, strict=True))
    skipped = [id for id, record in ended if record is not None and is_skipped(known[id], known)]
    bad = [
        (id, record)
        for id, record in ended
        if (record is None or record.state is not State.SUCCEEDED) and id not in skipped
    ]
    match filled.when:
        case "success" if bad:
            return EndRun(OutcomeKind.CANCELLED, _named(*bad[0]))
        case "success" if skipped:
            name = _name(skipped[0], records[skipped[0]])
            return EndRun(OutcomeKind.CANCELLED, f"{SKIPPED}: its input {name} was skipped")
        case "failed" if not bad:
            return EndRun(OutcomeKind.CANCELLED, f"{SKIPPED}: none of its inputs failed")
        case "any" if len(bad) + len(skipped) == len(ended):
            return _none_succeeded(bad)
    return None


def _none_succeeded(bad: Sequence[tuple[str, Record | None]]) -> EndRun:
    if not bad:
        return EndRun(OutcomeKind.CANCELLED, f"{SKIPPED}: all its inputs were skipped")
    reason = f"none of its inputs succeeded: {_named(*bad[0])}"
    return EndRun(OutcomeKind.DEAD, reason, error=Error("JobFailed", reason))


def _filled(job: Job, filled: Filled, inputs: Sequence[Record | None]) -> bytes | EndRun:
    size = sum(len(one.result) for one in inputs if one is not None and one.result is not None)
    if size > INPUTS_MAX:
        reason = (
            f"its inputs have {size:,} bytes, more than {INPUTS_MAX >> 20} MiB: pass large data by its place"
        )
        return EndRun(OutcomeKind.DEAD, reason, error=Error("TooLarge", reason))
    given = [_given(id, record) for id, record in zip(job.waits_for, inputs, strict=True)]
    used = {place for slot in filled.slots for place in places_of(slot.at)}
    for place in used:
        if isinstance(given[place], EndRun):
            return given[place]  # type: ignore[return-value]
    slots = [
        slot
        if slot.values is not None
        else Slot(slot.path, [], slot.many, [given[place] for place in places_of(slot.at)])  # type: ignore[misc]
        for slot in filled.slots
    ]
    return write(Filled(filled.payload, filled.when, slots))


def _given(id: str, record: Record | None) -> Given | EndRun:
    if record is None:
        return failed(Failed(id, "JobNotFound", "its job was deleted", "", "deleted"))
    if record.state is State.SUCCEEDED:
        if record.result is not None:
            return Given("value", record.result)
        reason = f"the result of its input {_name(id, record)} is not kept any more"
        return EndRun(OutcomeKind.DEAD, reason, error=Error("ResultGone", reason))
    if record.state not in FINISHED:
        return _NOTHING
    error = record.error
    if record.state is State.CANCELLED or error is None:
        return failed(Failed(id, str(record.state), record.reason or "", "", record.reason or ""))
    return failed(Failed(id, error.type, error.message, error.traceback, record.reason or ""))


def _name(id: str, record: Record | None) -> str:
    return record.job.node if record is not None and record.job.node else id


def _named(id: str, record: Record | None) -> str:
    """A sentence about an input that did not succeed."""
    if record is None:
        return f"its input {id} was deleted"
    return f"its input {_name(id, record)} ({id}) is {record.state}: {record.reason or 'no reason given'}"


def with_payload(job: Job, payload: bytes) -> Job:
    return msgspec.structs.replace(job, payload=payload)
