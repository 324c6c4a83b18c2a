"""The log of a job while a run replays it: what is remembered, what is new, and what has changed.

Operations are found by identity, never by position. The number of a call among those of the run serves for
one thing only: a new operation where a remembered one should have come means that the code has changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from dray.broker.durable import MEMO_BYTES_MAX, MEMOS_MAX
from dray.durable.entries import (
    Accepted,
    Child,
    Copied,
    Entry,
    Expired,
    Failure,
    Intent,
    Mail,
    Marker,
    Operation,
    Sleep,
    Try,
    Value,
    Wait,
    Winner,
    pack_entry,
    unpack_entry,
)
from dray.errors import InvalidInput, TooLarge

VALUE_MAX: Final = 256 * 1024
"""Bytes of the value of one step."""
UNDO_ROOM: Final = 2
"""Entries of the log that are kept free for each undo."""
_SHOWN: Final = 3
"""Skipped steps that a difference names."""

Done = Value | Failure | Mail | Expired | Winner | Marker


class Memory:
    """What the log says of one operation."""

    __slots__ = (
        *("call", "child", "digest", "done", "forgot", "id", "intent"),
        *("position", "shown", "sleep", "tried", "wait"),
    )

    def __init__(self, id: str, call: int, position: int) -> None:
        self.id, self.call, self.position = id, call, position
        self.digest = self.shown = ""
        self.done: Done | None = None
        self.tried: Try | None = None
        self.intent: Intent | None = None
        self.sleep: Sleep | None = None
        self.wait: Wait | None = None
        self.child: Child | None = None
        self.forgot = False
        """Its final error was forgotten, because the job was replayed by hand."""

    def add(self, entry: Operation, forget: int) -> None:
        """`forget`: errors of runs up to this one do not count any more."""
        if isinstance(entry, Value | Failure | Try | Child | Intent) and entry.digest:
            self.digest, self.shown = entry.digest, entry.shown
        if isinstance(entry, Failure | Expired | Try | Intent) and entry.run <= forget:
            self.forgot = self.forgot or not isinstance(entry, Try)
            self.wait = None
            return
        match entry:
            case Try():
                self.tried, self.intent = entry, None
            case Intent():
                self.intent = entry
            case Sleep():
                self.sleep = entry
            case Wait():
                self.wait = entry
            case Child():
                self.child = entry
            case _:
                self.done = entry


class Journal:
    def __init__(self, job: str, entries: Iterable[bytes] = (), forget: int = 0) -> None:
        self._job, self._forget = job, forget
        self.length = self.size = 0
        self.memories: dict[str, Memory] = {}
        self.unvisited: dict[str, Memory] = {}
        """Remembered operations that this run has not called yet."""
        self.received: dict[str, int] = {}
        """Names of events, and the number of the last message that the job has."""
        self.undos: dict[str, Value] = {}
        """Values whose undo has not ended, by the identity of the undo, in the order of the log."""
        self.copied: Copied | None = None
        self._trusted = 0
        """Entries before this position are not compared: a person accepted them, or had them copied."""
        self._counts: Counter[str] = Counter()
        self._open: dict[str, str] = {}
        """Names of operations that run now without a key, and their identities."""
        self._keyed: set[str] = set()
        self._calls = 0
        for data in entries:
            self.read(data)

    # reading and writing

    def read(self, data: bytes) -> None:
        """An entry of the log, in its turn."""
        entry = unpack_entry(data)
        self.add(entry, len(data))
        if isinstance(entry, Operation):
            self.unvisited[entry.id] = self.memories[entry.id]

    def add(self, entry: Entry, size: int) -> None:
        """The log has this entry now."""
        position, self.length, self.size = self.length, self.length + 1, self.size + size
        if isinstance(entry, Accepted):
            self._trusted = self.length
        elif isinstance(entry, Copied):
            self.copied, self._trusted = entry, self.length + entry.count
        else:
            memory = self.memories.get(entry.id)
            if memory is None:
                memory = self.memories[entry.id] = Memory(entry.id, entry.call, position)
            memory.add(entry, self._forget)
            if isinstance(entry, Value | Failure):
                self.undos.pop(entry.id, None)
            if isinstance(entry, Value) and entry.undo is not None:
                self.undos[undo_of(entry.id)] = entry
            if isinstance(entry, Mail):
                self.received[entry.name] = max(entry.number, self.received.get(entry.name, 0))

    def pack(self, entry: Entry, *, reserve: bool = True) -> bytes:
        """The entry as bytes; TooLarge if the log has no room for it. Undo runs may use the reserve."""
        data = pack_entry(entry)
        most = MEMOS_MAX - (UNDO_ROOM * (len(self.undos) + 1) if reserve else 0)
        if self.length >= most or self.size + len(data) > MEMO_BYTES_MAX:
            raise TooLarge(
                f"step {getattr(entry, 'id', '')!r} of job {self._job} cannot be remembered: a job has at "
                f"most {MEMOS_MAX:,} entries and {MEMO_BYTES_MAX >> 20} MiB in its log (now {self.length:,} "
                f"and {self.size >> 10:,} KiB); let children (ctx.call) do parts of the work"
            )
        return data

    # calls of a run

    def claim(self, name: str, key: str | None = None) -> tuple[str, int, Memory | None]:
        """The identity of an operation that is called now, its number, and what is remembered of it."""
        if key is not None:
            id = f"{name}[{key}]"
            if id in self._keyed:
                raise InvalidInput(
                    "key", key, f"{id!r} was called before in this run: each call needs a key of its own"
                )
            self._keyed.add(id)
        elif name in self._open:
            raise InvalidInput(
                "key",
                None,
                f"{name!r} was called again before {self._open[name]!r} has ended: counting cannot tell them "
                "apart after a restart, so give each a key=",
            )
        else:
            self._counts[name] += 1
            count = self._counts[name]
            id = self._open[name] = name if count == 1 else f"{name}#{count}"
        self._calls += 1
        self.unvisited.pop(id, None)
        return id, self._calls, self.memories.get(id)

    def release(self, name: str) -> None:
        """The operation without a key has ended: its name may be called again."""
        self._open.pop(name, None)

    @property
    def replaying(self) -> bool:
        return bool(self.unvisited)

    # changes

    def changed_arguments(self, memory: Memory, digest: str, shown: str) -> str:
        """The difference in words; empty if there is none."""
        same = not digest or not memory.digest or digest == memory.digest
        if same or memory.position < self._trusted:
            return ""
        return f"the arguments of step {memory.id!r} were {memory.shown}, and are {shown} now"

    def skipped(self, call: int) -> list[Memory]:
        """Remembered operations whose turn was before, or at, this call of a new operation."""
        if not self.unvisited:
            return []
        return [
            memory
            for memory in self.unvisited.values()
            if memory.call <= call and memory.position >= self._trusted and memory.call > 0
        ]

    def skipped_text(self, id: str, skipped: list[Memory]) -> str:
        names = ", ".join(repr(memory.id) for memory in skipped[:_SHOWN])
        more = f" and {len(skipped) - _SHOWN} more" if len(skipped) > _SHOWN else ""
        return f"the new step {id!r} comes where the remembered {names}{more} should"

    def says_changed(self, id: str) -> bool | None:
        """The answer of `ctx.changed` that follows from the log; None: it is new, and the answer is yes."""
        memory = self.memories.get(id)
        self.unvisited.pop(id, None)
        if memory is not None and isinstance(memory.done, Marker):
            return memory.done.new
        return False if self.unvisited else None


def undo_of(id: str) -> str:
    """The identity of the undo of a step."""
    return f"undo({id})"
