"""Sleeping until there is news, and waking those who sleep.

A sleeper registers what would be news to it in the same transaction in which it found none, so nothing can
slip in between. Whoever brings news removes the row and, after the commit, rings the sleeper's bell. A ring
may get lost (the ringer dies between commit and ring, or the two see different folders): a sleeper therefore
looks for itself every `poll` seconds, at the cost of one `PRAGMA data_version` while nothing has changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from secrets import randbits

from dray.broker.checks import matches
from dray.broker.sqlite.rows import QueueRow, decode_filter, encode
from dray.broker.sqlite.statements import SQL
from dray.broker.sqlite.step import Step
from dray.broker.sqlite.take import class_room, offer_room, open_classes, task_limit
from dray.broker.verbs import Filter, Interest, Wake
from dray.policy import Rate


def news(step: Step, interest: Interest) -> Wake:
    """What there is of interest now; fetches the watcher's mail."""
    finished: tuple[str, ...] = ()
    if (
        interest.watcher is not None
        and step.db.execute(SQL["any_mail"], (step.ns, interest.watcher)).fetchone()
    ):
        mail = step.db.execute(SQL["fetch_mail"], (step.ns, interest.watcher)).fetchall()
        finished = tuple(id for _, id in sorted(mail))
    return Wake(_has_work(step, interest), _has_word(step, interest.session), finished)


def _has_word(step: Step, name: str | None) -> bool:
    if name is None:
        return False
    row = step.db.execute(SQL["find_session"], (step.ns, name)).fetchone()
    if row is None:
        return True
    return bool(step.db.execute(SQL["untold"], (row[0],)).fetchone()[0])


def _has_work(step: Step, interest: Interest) -> bool:
    for queue in _queues(step, interest):
        next_due = step.db.execute(SQL["next_due"], (queue.id,)).fetchone()[0]
        if next_due is not None and next_due <= step.now:
            return True
        step.unblock("unblock_due", queue.id, step.now)
        if any(
            class_room(step, queue, class_.task, class_.rate, class_.max_running)
            for class_ in open_classes(step, queue, interest.filter)
        ):
            return True
        if _has_offer(step, queue, interest):
            return True
    return False


def _has_offer(step: Step, queue: QueueRow, interest: Interest) -> bool:
    for (seq,) in step.db.execute(SQL["offers"], (queue.id,)).fetchall():
        own = any(row[4] == interest.session for row in step.db.execute(SQL["runs_of"], (seq,)))
        if not own and offer_room(step, queue, seq, interest.filter):
            return True
    return False


def _queues(step: Step, interest: Interest) -> Iterator[QueueRow]:
    for name in interest.queues:
        queue = step.queue(name)
        if queue is not None:
            yield queue


def next_time(step: Step, interest: Interest) -> int | None:
    """When there may be work though nothing happens: a job falls due or a rate has room again."""
    times: list[int] = []
    for queue in _queues(step, interest):
        next_due = step.db.execute(SQL["next_due"], (queue.id,)).fetchone()[0]
        if next_due is not None:
            times.append(next_due)
        if not queue.paused:
            times += _rates_free_at(step, queue, interest.filter)
    return min(times, default=None)


def _rates_free_at(step: Step, queue: QueueRow, filter: Filter) -> Iterator[int]:
    for _, priority, task, version, rate, _ in step.db.execute(SQL["classes"], (queue.id,)).fetchall():
        if not matches(filter, task, priority, version) or task in queue.paused_tasks:
            continue
        task_rate, _ = task_limit(queue, task, rate, None)
        for scope, name, limit in (("queue", "", queue.limits.rate), ("task", task, task_rate)):
            if limit is None:
                continue
            row = step.db.execute(SQL["rate_used"], (queue.id, scope, name)).fetchone()
            used = 0 if row is None else row[0]
            if not Rate.parse(limit).available(used, step.now):
                yield Rate.parse(limit).free_at(used, step.now)
    blocked = step.db.execute(SQL["first_blocked"], (queue.id,)).fetchone()[0]
    if blocked is not None:
        yield blocked


def fall_asleep(step: Step, interest: Interest, bell: str, until: int) -> int:
    # An id that is never used again: whoever was woken removes its row once more when it gets up, and would
    # else remove that of another who lay down meanwhile. Growing with time, so that the first is woken first.
    sleeper = (step.now << 20) + randbits(20)
    row = (sleeper, step.ns, bell, until, interest.session, interest.watcher, encode(interest.filter))
    while not step.db.execute(SQL["insert_sleeper"], row).rowcount:
        sleeper += 1
        row = (sleeper, *row[1:])
    for queue in interest.queues:
        step.db.execute(SQL["insert_sleeper_queue"], (step.ns, queue, sleeper))
    return sleeper


def get_up(step: Step, sleeper: int) -> None:
    step.db.execute(SQL["delete_sleeper"], (sleeper,))
    step.db.execute(SQL["forget_sleeper_queues"], (sleeper,))


def bells_to_ring(step: Step) -> list[str]:
    """Whom the step has news for. A job that became ready wakes one who can run it, not everybody."""
    if not (step.ready or step.due or step.stirred or step.told or step.mailed):
        return []
    if not step.db.execute(SQL["any_sleeper"]).fetchone()[0]:
        return []
    woken: dict[int, str] = {}
    for queue in step.stirred:
        asleep = step.db.execute(SQL["sleepers_of_queue"], (step.ns, queue))
        woken |= {sleeper: bell for sleeper, bell, _, _ in asleep}
    for queue in step.ready.keys() | step.due.keys():
        woken |= _wake_for(step, queue, woken)
    for session in step.told:
        woken |= dict(step.db.execute(SQL["sleepers_of_session"], (step.ns, session)).fetchall())
    for watcher in step.mailed:
        woken |= dict(step.db.execute(SQL["sleepers_of_watcher"], (step.ns, watcher)).fetchall())
    for sleeper in woken:
        get_up(step, sleeper)
    return list(dict.fromkeys(woken.values()))


def _wake_for(step: Step, queue: int, woken: dict[int, str]) -> dict[int, str]:
    asleep = [
        (id, bell, until, decode_filter(filter))
        for id, bell, until, filter in step.db.execute(SQL["sleepers_of_queue"], (step.ns, queue))
        if id not in woken
    ]
    chosen: dict[int, str] = {}
    for priority, task, version in step.ready.get(queue, ()):
        if len(chosen) == len(asleep):
            break
        for id, bell, _, filter in asleep:
            if id not in chosen and matches(filter, task, priority, version):
                chosen[id] = bell
                break
    due = step.due.get(queue)
    if due is not None and not chosen:
        chosen |= {id: bell for id, bell, until, _ in asleep if until > due}
    return chosen
