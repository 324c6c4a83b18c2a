"""Looking at jobs and changing them by hand, on the reference broker's world."""

from __future__ import annotations

from collections import Counter

from dray.broker.checks import error_kept, limits_after, query_matches, read_number, refusal, shown_result
from dray.broker.memory.world import Kept, World
from dray.broker.verbs import (
    Cancel,
    Delete,
    Edited,
    Event,
    Ids,
    JobAction,
    Limits,
    Pause,
    Query,
    QueueInfo,
    Reprioritise,
    Reschedule,
    Resume,
    Retry,
    Scope,
    SetLimits,
    Speculate,
)
from dray.job import FINISHED, Move, Record, Sign, State
from dray.policy import Retention

SCAN_FACTOR = 10
"""How many jobs a page may look at for each one it may return."""


def record(kept: Kept, now: int, retention: Retention) -> Record:
    return Record(
        job=kept.job,
        state=kept.state,
        created=kept.created,
        due=kept.due,
        expires=kept.expires,
        run=kept.run,
        settled=kept.settled,
        failures=kept.failures,
        crashes=kept.crashes,
        suspect=kept.suspect,
        cancel=kept.cancel,
        runs=tuple(kept.runs.values()),
        waiting=tuple(sorted(kept.waiting)),
        started=kept.started,
        finished=kept.finished,
        reason=kept.reason,
        result=shown_result(kept.job.result_ttl, kept.result, kept.finished, now, retention),
        error=kept.error if error_kept(kept.state, kept.finished, now, retention) else None,
    )


def scan(
    world: World, query: Query, cursor: str | None, limit: int, now: int
) -> tuple[list[Kept], str | None]:
    """A page of matching jobs in the order of arrival, which no edit changes, and where to go on."""
    found: list[Kept] = []
    previous = after = read_number("cursor", cursor)
    arrived = sorted(world.jobs.values(), key=lambda kept: kept.number)
    for looked, kept in enumerate(kept for kept in arrived if kept.number > after):
        if len(found) == limit or looked == limit * SCAN_FACTOR:
            return found, str(previous)
        if query_matches(query, record(kept, now, world.retention)):
            found.append(kept)
        previous = kept.number
    return found, None


def page(
    world: World, query: Query, cursor: str | None, limit: int, now: int
) -> tuple[list[Kept], str | None]:
    """A page of matching jobs by state and queue, and where to go on."""
    found: list[Kept] = []
    previous = after = _read_place(cursor)
    places = sorted(
        ((STATES.index(kept.state), kept.job.queue, kept.number), kept.job.id)
        for kept in world.jobs.values()
        if query.state in (None, kept.state) and query.queue in (None, kept.job.queue)
    )
    for looked, (place, id) in enumerate(item for item in places if item[0] > after):
        if len(found) == limit or looked == limit * SCAN_FACTOR:
            return found, ":".join(map(str, previous))
        if query_matches(query, record(world.jobs[id], now, world.retention)):
            found.append(world.jobs[id])
        previous = place
    return found, None


STATES = tuple(State)


def _read_place(cursor: str | None) -> tuple[int, str, int]:
    if cursor is None:
        return (-1, "", -1)
    state, _, rest = cursor.partition(":")
    queue, _, number = rest.partition(":")
    return (read_number("cursor", state), queue, read_number("cursor", number))


def apply(
    world: World,
    selection: Ids | Query,
    action: JobAction,
    cursor: str | None,
    limit: int,
    dry_run: bool,
    now: int,
) -> Edited:
    """Change the selected jobs, as far as one step goes."""
    changed, refused = [], []
    if isinstance(selection, Ids):
        start = read_number("cursor", cursor)
        ids = selection.ids[start : start + limit]
        more = str(start + limit) if len(selection.ids) > start + limit else None
    else:
        found, more = scan(world, selection, cursor, limit, now)
        ids = tuple(kept.job.id for kept in found)
    for id in ids:
        kept = world.jobs.get(id)
        why = "not_found" if kept is None else _refusal(kept, action, world, now)
        if kept is not None and why is None:
            changed.append(id)
            if not dry_run:
                change(world, kept, action, now)
        elif why is not None and isinstance(selection, Ids):
            refused.append((id, why))
    return Edited(tuple(changed), tuple(refused), more)


def _refusal(kept: Kept, action: JobAction, world: World, now: int) -> str | None:
    why = refusal(
        action,
        kept.state,
        stopping=kept.cancel is not None,
        speculate=kept.job.speculate,
        second_run=kept.offered or len(kept.runs) > 1,
    )
    if why is None and isinstance(action, Retry) and kept.state in FINISHED:
        holder = world.other_key_holder(kept, now)
        return None if holder is None else f"its key is taken by {holder}"
    return why


def change(world: World, kept: Kept, action: JobAction, now: int) -> None:
    match action:
        case Cancel(reason=reason):
            if kept.state is not State.RUNNING:
                world.finish(kept, Move.CANCELLED, State.CANCELLED, now, reason)
            elif kept.cancel is None:
                world.ask_to_stop(kept, reason)
        case Retry():
            world.replay(kept, now)
        case Delete():
            world.delete(kept, now)
        case Reschedule(due=due):
            world.line_up(kept, Move.RESCHEDULED, due, now)
        case Reprioritise(priority=priority):
            world.reprioritise(kept, priority)
        case Speculate():
            world.offer(kept)


def set_scope(world: World, scope: Scope, action: Pause | Resume | SetLimits, now: int) -> Edited:
    """Pause, resume or limit a queue, or one task in it."""
    line = world.queue(scope.queue).line
    match action:
        case Pause(by=by, reason=reason):
            paused = Pause(by, reason, now)
            if scope.task is None:
                line.paused = paused
            else:
                line.paused_tasks[scope.task] = paused
            sign = Sign.PAUSED
        case Resume():
            if scope.task is None:
                line.paused = None
            else:
                line.paused_tasks.pop(scope.task, None)
            sign = Sign.RESUMED
        case SetLimits():
            if scope.task is None:
                line.limits = limits_after(line.limits, action)
            else:
                limits = limits_after(line.task_limits.get(scope.task, Limits()), action)
                line.task_limits[scope.task] = limits
                if limits == Limits():
                    del line.task_limits[scope.task]
            sign = Sign.LIMITED
    world.notes.setdefault(scope.queue, []).append(Event(sign))
    return Edited()


def info(world: World) -> list[QueueInfo]:
    """Every queue that holds a job or a setting."""
    counts = Counter((kept.job.queue, kept.state) for kept in world.jobs.values())
    ready = _ready(world)
    return [
        QueueInfo(
            name=name,
            counts={state: n for state in State if (n := counts[name, state])},
            paused=queue.line.paused,
            limits=queue.line.limits,
            paused_tasks=dict(queue.line.paused_tasks),
            task_limits=dict(queue.line.task_limits),
            next_due=queue.due.first(),
            oldest_ready=min((oldest for _, oldest in ready.get(name, {}).values()), default=None),
            ready=dict(sorted(ready.get(name, {}).items())),
        )
        for name, queue in sorted(world.queues.items())
        if queue.has_settings() or any(of == name for of, _ in counts)
    ]


def _ready(world: World) -> dict[str, dict[int, tuple[int, int]]]:
    """Queue → priority → how many ready jobs, and when the oldest was created."""
    found: dict[str, dict[int, tuple[int, int]]] = {}
    for kept in world.jobs.values():
        if kept.state is State.READY:
            of_queue = found.setdefault(kept.job.queue, {})
            count, oldest = of_queue.get(kept.job.priority, (0, kept.created))
            of_queue[kept.job.priority] = (count + 1, min(oldest, kept.created))
    return found
