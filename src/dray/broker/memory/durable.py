"""The log, the mailbox and the suspension of durable jobs."""

from __future__ import annotations

from collections.abc import Sequence

from dray.broker.checks import check_log_size
from dray.broker.durable import MAILBOX_MAX, MESSAGE_IDS_MAX, RECALL_BYTES, MemoWrite, Message, Sent
from dray.broker.memory.entries import JobEntry, Mailbox
from dray.broker.memory.store import JobStore
from dray.broker.rules import suspended_state
from dray.job import Move, Outcome, State, Suspension, Verdict


def write_memos(store: JobStore, session: str, writes: Sequence[MemoWrite]) -> list[Verdict]:
    verdicts = [_verdict(store, session, write) for write in writes]
    new = [write for write, verdict in zip(writes, verdicts, strict=True) if verdict is Verdict.ACCEPTED]
    for write in new:
        log = [*store.jobs[write.id].log, *write.entries]
        check_log_size(write.id, len(log), sum(map(len, log)))
    for write in new:
        _write_memo(store.jobs[write.id], write)
    return verdicts


def _verdict(store: JobStore, session: str, write: MemoWrite) -> Verdict:
    holder, entry = store.sessions.get(session), store.jobs.get(write.id)
    if holder is None or entry is None or (write.id, write.run) not in holder.holds:
        return Verdict.REFUSED
    if write.position == len(entry.log):
        return Verdict.ACCEPTED
    there = tuple(entry.log[write.position :])
    return Verdict.ALREADY if there and there == write.entries else Verdict.REFUSED


def _write_memo(entry: JobEntry, write: MemoWrite) -> None:
    entry.log += write.entries
    entry.children |= dict.fromkeys(write.children)
    if write.undo is not None:
        entry.undoable = write.undo
    for name, number in write.consumed.items():
        mailbox = entry.mailboxes.get(name)
        if mailbox is not None:
            mailbox.held = [message for message in mailbox.held if message.number > number]


def read_log(store: JobStore, id: str, position: int, limit: int) -> list[bytes]:
    """A page of the log: at least one entry, if there is one."""
    entry, page, size = store.jobs.get(id), list[bytes](), 0
    for memo in entry.log[position : position + limit] if entry is not None else ():
        page.append(memo)
        size += len(memo)
        if size >= RECALL_BYTES:
            break
    return page


def send(store: JobStore, id: str, name: str, message: str, body: bytes, now: int) -> Sent:
    """Keep the message, and wake the job if it waits for one."""
    entry = store.jobs.get(id)
    if entry is None:
        return Sent("not_found", State.NOT_FOUND)
    mailbox = entry.mailboxes.get(name, Mailbox())
    if message in mailbox.ids:
        return Sent("already", entry.state)
    if entry.state.finished:
        return Sent("finished", entry.state)
    if len(mailbox.held) >= MAILBOX_MAX:
        return Sent("full", entry.state)
    entry.mailboxes[name] = mailbox
    mailbox.sent += 1
    mailbox.held.append(Message(mailbox.sent, message, body))
    mailbox.ids[message] = None
    if len(mailbox.ids) > MESSAGE_IDS_MAX:
        del mailbox.ids[next(iter(mailbox.ids))]
    if entry.suspended is not None and has_news(entry, entry.suspended):
        wake(store, entry, now)
    return Sent("accepted", entry.state)


def read_mailbox(store: JobStore, id: str, name: str, after: int, limit: int) -> list[Message]:
    entry = store.jobs.get(id)
    mailbox = entry.mailboxes.get(name) if entry is not None else None
    return [message for message in mailbox.held if message.number > after][:limit] if mailbox else []


def suspend(store: JobStore, entry: JobEntry, outcome: Outcome, suspended: Suspension, now: int) -> None:
    """Its run has ended: look whether what it waits for is there, or register; then wait or go on."""
    entry.suspect = 0
    missing = [id for id in suspended.jobs if not _has_ended(store, id)]
    for id in suspended.jobs:
        if id in store.jobs and id not in missing:
            store.remember_dependant(store.jobs[id], entry.job.id)
    enough = len(missing) < len(suspended.jobs) if not suspended.all_jobs else not missing
    come = has_news(entry, suspended) or (bool(suspended.jobs) and enough)
    state = suspended_state(outcome, suspended, come, now)
    if state is State.READY:
        store.line_up(entry, Move.SUSPENDED, None, now, outcome.run)
        return
    entry.suspended = suspended
    if state is State.WAITING:
        entry.reason = outcome.reason if suspended.parked else None
        for id in missing:
            store.wait_for(entry, id)
    else:
        entry.due = suspended.until
    store.move(entry, Move.SUSPENDED, state, outcome.run)


def wake(store: JobStore, entry: JobEntry, now: int) -> None:
    """What a suspended job waits for has come, or is not waited for any longer."""
    store.stop_waiting(entry)
    entry.reason = None
    store.line_up(entry, Move.WOKEN, None, now)


def has_news(entry: JobEntry, suspended: Suspension) -> bool:
    """A message has come that the run had not seen."""
    sent = {name: mailbox.sent for name, mailbox in entry.mailboxes.items()}
    return any(sent.get(name, 0) > seen for name, seen in suspended.events.items())


def _has_ended(store: JobStore, id: str) -> bool:
    """A job that is gone counts as ended: it cannot wake another any more."""
    entry = store.jobs.get(id)
    return entry is None or entry.state.finished
