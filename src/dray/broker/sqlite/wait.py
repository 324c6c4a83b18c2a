"""Sleeping until there is news, and waking those who sleep.

A sleeper registers what would be news to it in the same transaction in which it found none, so nothing can
slip in between. A step that brings news removes the row and, after the commit, writes to the sleeper's
pipe. That may get lost (the writer dies between commit and write, or the two see different folders): a
sleeper therefore looks for itself every `poll` seconds, which costs one `PRAGMA data_version`.
"""

from __future__ import annotations

from collections.abc import Iterator
from secrets import randbits

from dray.broker.rules import matches
from dray.broker.sqlite.rows import QueueRow, decode_filter, encode
from dray.broker.sqlite.statements import SQL
from dray.broker.sqlite.take import class_room, offer_room, open_classes, task_limit
from dray.broker.sqlite.transaction import Transaction
from dray.broker.verbs import Filter, Interest, Wake
from dray.policy import Rate


def news(tx: Transaction, interest: Interest) -> Wake:
    """The news for a waiter; fetches the watcher's mail."""
    finished: tuple[str, ...] = ()
    if interest.watcher is not None and tx.db.execute(SQL["any_mail"], (tx.ns, interest.watcher)).fetchone():
        mail = tx.db.execute(SQL["fetch_mail"], (tx.ns, interest.watcher)).fetchall()
        finished = tuple(id for _, id in sorted(mail))
    queues = tuple(queue.name for queue in _queues(tx, interest) if _has_work(tx, queue, interest))
    return Wake(bool(queues), _has_notification(tx, interest.session), finished, queues=queues)


def _has_notification(tx: Transaction, name: str | None) -> bool:
    if name is None:
        return False
    row = tx.db.execute(SQL["find_session"], (tx.ns, name)).fetchone()
    if row is None:
        return True
    return bool(tx.db.execute(SQL["unreported"], (row[0],)).fetchone()[0])


def _has_work(tx: Transaction, queue: QueueRow, interest: Interest) -> bool:
    next_due = tx.db.execute(SQL["next_due"], (queue.id,)).fetchone()[0]
    if next_due is not None and next_due <= tx.now:
        return True
    tx.unblock("unblock_due", queue.id, tx.now)
    if any(
        class_room(tx, queue, class_.task, class_.rate, class_.max_running)
        for class_ in open_classes(tx, queue, interest.filter)
    ):
        return True
    return _has_offer(tx, queue, interest)


def _has_offer(tx: Transaction, queue: QueueRow, interest: Interest) -> bool:
    for (seq,) in tx.db.execute(SQL["offers"], (queue.id,)).fetchall():
        own = any(row[4] == interest.session for row in tx.db.execute(SQL["runs_of"], (seq,)))
        if not own and offer_room(tx, queue, seq, interest.filter):
            return True
    return False


def _queues(tx: Transaction, interest: Interest) -> Iterator[QueueRow]:
    for name in interest.queues:
        queue = tx.queue(name)
        if queue is not None:
            yield queue


def next_time(tx: Transaction, interest: Interest) -> int | None:
    """The next moment at which a job falls due or a rate has room again."""
    times: list[int] = []
    for queue in _queues(tx, interest):
        next_due = tx.db.execute(SQL["next_due"], (queue.id,)).fetchone()[0]
        if next_due is not None:
            times.append(next_due)
        if not queue.paused:
            times += _rates_free_at(tx, queue, interest.filter)
    return min(times, default=None)


def _rates_free_at(tx: Transaction, queue: QueueRow, filter: Filter) -> Iterator[int]:
    for _, priority, task, version, rate, _ in tx.db.execute(SQL["classes"], (queue.id,)).fetchall():
        if not matches(filter, task, priority, version) or task in queue.paused_tasks:
            continue
        task_rate, _ = task_limit(queue, task, rate, None)
        for scope, name, limit in (("queue", "", queue.limits.rate), ("task", task, task_rate)):
            if limit is None:
                continue
            row = tx.db.execute(SQL["rate_used"], (queue.id, scope, name)).fetchone()
            used = 0 if row is None else row[0]
            if not Rate.parse(limit).available(used, tx.now):
                yield Rate.parse(limit).free_at(used, tx.now)
    blocked = tx.db.execute(SQL["first_blocked"], (queue.id,)).fetchone()[0]
    if blocked is not None:
        yield blocked


def fall_asleep(tx: Transaction, interest: Interest, bell: str, until: int) -> int:
    # An id that is never used again: a woken waiter removes its row once more when it gets up, and would
    # else remove that of another who lay down meanwhile. Growing with time, so that the first is woken first.
    sleeper = (tx.now << 20) + randbits(20)
    row = (sleeper, tx.ns, bell, until, interest.session, interest.watcher, encode(interest.filter))
    while not tx.db.execute(SQL["insert_sleeper"], row).rowcount:
        sleeper += 1
        row = (sleeper, *row[1:])
    for queue in interest.queues:
        tx.db.execute(SQL["insert_sleeper_queue"], (tx.ns, queue, sleeper))
    return sleeper


def get_up(tx: Transaction, sleeper: int) -> None:
    tx.db.execute(SQL["delete_sleeper"], (sleeper,))
    tx.db.execute(SQL["forget_sleeper_queues"], (sleeper,))


def bells_to_ring(tx: Transaction) -> list[str]:
    """The sleepers to wake. A job that became ready wakes one that can run it, not all."""
    if not (tx.ready or tx.due or tx.unblocked or tx.notified or tx.mailed):
        return []
    if not tx.db.execute(SQL["any_sleeper"]).fetchone()[0]:
        return []
    woken: dict[int, str] = {}
    for queue in tx.unblocked:
        asleep = tx.db.execute(SQL["sleepers_of_queue"], (tx.ns, queue))
        woken |= {sleeper: bell for sleeper, bell, _, _ in asleep}
    for queue in tx.ready.keys() | tx.due.keys():
        woken |= _wake_for(tx, queue, woken)
    for session in tx.notified:
        woken |= dict(tx.db.execute(SQL["sleepers_of_session"], (tx.ns, session)).fetchall())
    for watcher in tx.mailed:
        woken |= dict(tx.db.execute(SQL["sleepers_of_watcher"], (tx.ns, watcher)).fetchall())
    for sleeper in woken:
        get_up(tx, sleeper)
    return list(dict.fromkeys(woken.values()))


def _wake_for(tx: Transaction, queue: int, woken: dict[int, str]) -> dict[int, str]:
    asleep = [
        (id, bell, until, decode_filter(filter))
        for id, bell, until, filter in tx.db.execute(SQL["sleepers_of_queue"], (tx.ns, queue))
        if id not in woken
    ]
    chosen: dict[int, str] = {}
    for priority, task, version in tx.ready.get(queue, ()):
        if len(chosen) == len(asleep):
            break
        for id, bell, _, filter in asleep:
            if id not in chosen and matches(filter, task, priority, version):
                chosen[id] = bell
                break
    due = tx.due.get(queue)
    if due is not None and not chosen:
        chosen |= {id: bell for id, bell, until, _ in asleep if until > due}
    return chosen
