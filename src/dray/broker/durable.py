"""The log and the mailbox of a durable job, as the verbs pass them."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from dray.job import State


class MemoWrite(msgspec.Struct, frozen=True, kw_only=True):
    """Append entries to the log of a durable job, in the name of its run."""

    id: str
    run: int
    position: int
    """The length of the log before this write. If just these entries follow there, the call is a repeat."""
    entries: tuple[bytes, ...] = ()
    children: tuple[str, ...] = ()
    """Jobs that this one calls: those that are unfinished when it ends are cancelled."""
    undo: bool | None = None
    """True: there is something to undo from now on; False: all is undone. None: as before."""
    consumed: dict[str, int] = {}
    """Names of events, and up to which number their messages may be dropped."""


class Message(msgspec.Struct, frozen=True, array_like=True):
    """A message in the mailbox of a job. Messages of one name are numbered from 1."""

    number: int
    id: str
    body: bytes


class Sent(msgspec.Struct, frozen=True):
    """The reply to `send`. `already`: a message of this id is there, or was."""

    verdict: Literal["accepted", "already", "finished", "not_found", "full"]
    state: State


MEMOS_MAX: Final = 10_000
"""Entries of a job's log."""
MEMO_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of a job's log."""
MAILBOX_MAX: Final = 1000
"""Messages of one name that a mailbox holds."""
MESSAGE_IDS_MAX: Final = 2 * MAILBOX_MAX
"""Ids of messages that a mailbox remembers, per name."""
MESSAGE_MAX: Final = 256 * 1024
"""Bytes of a message."""
RECALL_BYTES: Final = 4 * 1024 * 1024
"""A page of a log ends with the entry that reaches this size."""
