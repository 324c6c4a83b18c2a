"""Schedules as documents of the broker; those declared in code are reconciled when a worker starts.

A schedule that exists already keeps `run_count`, the `last_…` fields, a pause, and `next_run` unless its rule
was changed.

Two versions of the code may run side by side for a while. So `Schedule.declared` is the time at which the
newest worker that declares it was started:

- A worker keeps declarations of workers that started after it, also when it replaces one of its processes.
- A schedule is removed when no running worker can declare it: all were started after `declared`. At once if
  one of them knows its task (the code is there, the rule is not), else after `UNDECLARED_FOR`, because the
  task may belong to another code base that is down for a moment. A paused one stays until it is deleted.

A schedule made at run time is never touched by code that declares the same name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from dray.broker.verbs import Broker, Doc
from dray.documents.worker_registry import WorkerInfo, read_workers
from dray.duration import HOUR
from dray.errors import DecodeError
from dray.schedules.schedule import KIND, NEWS, Schedule, decode, encode

UNDECLARED_FOR: Final = HOUR
"""How long a schedule stays whose task no worker knows any more."""

log = logging.getLogger("dray.schedules")


class Reconciled(msgspec.Struct, frozen=True, kw_only=True):
    """Names of declared schedules by what happened to them; those not listed were up to date."""

    created: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    """A schedule of this name was made at run time, or by a newer version of the code."""
    removed: tuple[str, ...] = ()


async def read_schedules(broker: Broker) -> list[tuple[Schedule, int]]:
    """All schedules, by name, each with its document's version; unreadable ones are left out."""
    found = []
    for doc in await broker.docs(KIND):
        try:
            found.append((decode(doc.value), doc.version))
        except DecodeError as error:
            log.warning("schedule %s was written by another version of dray: %s", doc.name, error)
    return found


async def read_schedule(broker: Broker, name: str) -> tuple[Schedule | None, int]:
    """One schedule and its document's version; None and 0 if there is none."""
    return _content((await broker.doc(KIND, name)).doc)


async def announce(broker: Broker) -> None:
    """Make schedulers read all schedules again."""
    await broker.doc(*NEWS, b"")


async def rewrite(
    broker: Broker, name: str, change: Callable[[Schedule | None], Schedule | None]
) -> Schedule | None:
    """Change a schedule by compare-and-set, repeated until it succeeds; returns the result.

    `change` gets the stored schedule (None: there is none) and returns the new one (None: delete it; the same
    one: nothing to do). Call `announce` afterwards if its times changed.
    """
    doc = (await broker.doc(KIND, name)).doc
    while True:
        before, version = _content(doc)
        after = change(before)
        if after == before:
            return before
        value = None if after is None else encode(after)
        reply = await broker.doc(KIND, name, value, expect_version=version)
        if reply.written:
            return after
        doc = reply.doc


def _content(doc: Doc | None) -> tuple[Schedule | None, int]:
    return (None, 0) if doc is None else (decode(doc.value), doc.version)


async def reconcile(
    broker: Broker, declared: Sequence[Schedule], now: int | None = None, *, started: int | None = None
) -> Reconciled:
    """Write the declared schedules, keep their state, and remove those that no code declares any more.

    `started` is when the worker was started; for a process that replaces another, that is before now.
    """
    there = {schedule.name: schedule for schedule, _ in await read_schedules(broker)}
    now = broker.clock() if now is None else now
    since = now if started is None else started
    created, changed, refused = [], [], []
    for schedule in declared:
        before = there.get(schedule.name)
        after = _merged(before, schedule, now, since)
        if after is None:
            refused.append(schedule.name)
            if before is not None and before.origin != "code":
                log.warning(
                    "schedule %s was made at run time: what the code declares is left out", before.name
                )
        elif after != before:
            await _write(broker, schedule, now, since)
            if before is None:
                created.append(schedule.name)
            elif replace(after, declared=before.declared, undeclared=before.undeclared) != before:
                changed.append(schedule.name)
    if created or changed:
        await announce(broker)
    removed = await remove_undeclared(broker, now, spared={schedule.name for schedule in declared})
    return Reconciled(
        created=tuple(created), changed=tuple(changed), refused=tuple(refused), removed=tuple(removed)
    )


async def _write(broker: Broker, schedule: Schedule, now: int, since: int) -> None:
    await rewrite(broker, schedule.name, lambda before: _merged(before, schedule, now, since) or before)


def _merged(before: Schedule | None, declared: Schedule, now: int, since: int) -> Schedule | None:
    """The declaration with the stored state; None if the stored schedule wins."""
    if before is None:
        return replace(
            declared,
            origin="code",
            next_run=declared.rule.next(now),
            created=now,
            updated=now,
            declared=since,
            undeclared=None,
        )
    if before.origin != "code" or since < before.declared:
        return None
    after = replace(
        before,
        task=declared.task,
        rule=declared.rule,
        job=declared.job,
        jitter=declared.jitter,
        catch_up=declared.catch_up,
        catch_up_cap=declared.catch_up_cap,
        overlap=declared.overlap,
    )
    if after != before:
        after = replace(after, updated=now)
    if after.rule != before.rule:
        after = replace(after, next_run=after.rule.next(now))
    return replace(after, declared=since, undeclared=None)


async def remove_undeclared(
    broker: Broker, now: int | None = None, *, spared: set[str] | None = None
) -> list[str]:
    """Remove schedules that no code declares any more, by the rules at the top; called regularly."""
    there = [schedule for schedule, _ in await read_schedules(broker)]
    doubtful = [one for one in there if one.origin == "code" and one.name not in (spared or ())]
    if not doubtful:
        return []
    workers = [worker for worker in await read_workers(broker) if worker.tasks]
    at, removed = broker.clock() if now is None else now, []
    for schedule in doubtful:
        after = await rewrite(broker, schedule.name, lambda before: _undeclared(before, workers, at))
        if after is None:
            removed.append(schedule.name)
            log.info("schedule %s is removed: the code does not declare it any more", schedule.name)
    return removed


def _undeclared(schedule: Schedule | None, workers: list[WorkerInfo], now: int) -> Schedule | None:
    """Unchanged if a worker may still declare it, marked if none does, None if it is to be removed."""
    if schedule is None or schedule.origin != "code" or not workers:
        return schedule
    if any(worker.started <= schedule.declared for worker in workers):
        return schedule if schedule.undeclared is None else replace(schedule, undeclared=None)
    since = now if schedule.undeclared is None else schedule.undeclared
    known = any(schedule.task in worker.tasks for worker in workers)
    if schedule.paused is None and (known or now - since >= UNDECLARED_FOR):
        return None
    return replace(schedule, undeclared=since)
