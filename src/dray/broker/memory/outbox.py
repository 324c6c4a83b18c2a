"""Delivers messages between jobs: to dependants and children of one that ended, to those that one revives."""

from __future__ import annotations

from dray.broker.memory.durable import wake
from dray.broker.memory.entries import JobEntry
from dray.broker.memory.store import JobStore, Post
from dray.broker.rules import is_first, is_released_by, orphaned, parent_ended, undo_ends
from dray.job import Move, State


def deliver(store: JobStore, post: Post, now: int) -> None:
    """Deliver one message. Delivering it twice changes nothing."""
    entry = store.jobs.get(post.id)
    if entry is None:
        return
    match post.kind:
        case "dependency" if post.sender in entry.waiting:
            _dependency_ended(store, entry, post, now)
        case "parent":
            cancel(store, entry, parent_ended(post.sender, post.state), False, now)
        case "revived":
            _revive(store, entry, post.sender, now)
        case _:
            pass


def _dependency_ended(store: JobStore, entry: JobEntry, post: Post, now: int) -> None:
    suspended, orphan = entry.suspended, entry.job.orphan
    if suspended is None and not is_released_by(post.state, orphan):
        if orphan == "cancel":
            reason = orphaned(post.sender, post.state)
            store.finish(entry, Move.CANCELLED, State.CANCELLED, now, reason)
            entry.orphaned_by = post.sender if entry.state.finished else None
        return
    del entry.waiting[post.sender]
    store.forget_dependant(post.sender, entry.job.id)
    if suspended is not None:
        if not entry.waiting or not suspended.all_jobs:
            wake(store, entry, now)
    elif not entry.waiting or is_first(post.state, orphan):
        store.stop_waiting(entry)
        store.line_up(entry, Move.RELEASED, entry.job.due, now)


def cancel(store: JobStore, entry: JobEntry, reason: str, force: bool, now: int) -> None:
    """A job that runs is asked to stop; any other ends, or is undone. `force` skips the undo."""
    if entry.state.finished or (entry.undo is not None and not force):
        return
    if entry.state is State.RUNNING:
        if entry.cancel is None or (force and not entry.forced):
            store.ask_to_stop(entry, reason, force)
        return
    entry.forced = force
    if entry.undo is not None:
        store.after_run(entry, undo_ends(entry.undo, reason), 0, now)
    else:
        store.finish(entry, Move.CANCELLED, State.CANCELLED, now, reason)


def _revive(store: JobStore, entry: JobEntry, dependency: str, now: int) -> None:
    """Let a finished job wait again: it was cancelled because of the dependency, or it follows it."""
    orphan = entry.state is State.CANCELLED and entry.orphaned_by == dependency
    follows = entry.state.finished and entry.job.orphan == "follow"
    if not (orphan or follows) or store.other_key_holder(entry, now) is not None:
        return
    store.claim_key(entry, now)
    store.begin_again(entry, now)
    for id in (dependency,) if follows else entry.job.waits_for:
        _wait_again(store, entry, id)
    store.move(entry, Move.REVIVED, State.WAITING)
    store.tell_revived(entry)
    if not entry.waiting:
        store.line_up(entry, Move.RELEASED, entry.job.due, now)


def _wait_again(store: JobStore, entry: JobEntry, dependency: str) -> None:
    store.wait_for(entry, dependency)
    if dependency not in store.jobs:
        store.outbox.append(Post("dependency", entry.job.id, dependency, State.NOT_FOUND))
