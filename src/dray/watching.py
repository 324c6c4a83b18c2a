"""Who waits for the end of which jobs: the books of one link (see `dray.client`).

A link waits for word from the broker once, whatever number of callers wait on it. Each of them holds a
`Watching`, which is told of the ends of its own jobs only: waiting for one more job costs the others nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from dray.job import Record


class Watching:
    """The jobs that one caller waits for."""

    def __init__(self) -> None:
        self.records: dict[str, Record | None] = {}
        """How each stood when it was last read."""
        self.over: dict[str, None] = {}
        """Those that have ended since they were last asked for, in the order in which that was heard."""
        self.open: set[str] = set()
        """Those whose end is yet to come."""
        self.woken: Callable[[], None] | None = None

    def take(self) -> list[str]:
        """Those that have ended; each is told once."""
        over, self.over = list(self.over), {}
        return over

    def tell(self, id: str) -> None:
        self.open.discard(id)
        self.over[id] = None
        self.wake()

    def wake(self) -> None:
        if self.woken is not None:
            self.woken()


class Watches:
    """All who wait on one link."""

    def __init__(self) -> None:
        self.name = f"w-{secrets.token_hex(8)}"
        """What the broker knows the link by."""
        self.open: dict[str, dict[Watching, None]] = {}
        self.missed = False
        """A wait broke off: word that it may have heard is gone, so the jobs must be read."""

    def expect(self, watching: Watching, ids: Iterable[str]) -> None:
        for id in ids:
            watching.open.add(id)
            self.open.setdefault(id, {})[watching] = None

    def note(self, ids: Sequence[str], records: Sequence[Record | None]) -> None:
        """Jobs were read: whoever waits for one that has ended, or is gone, is told."""
        for id, record in zip(ids, records, strict=True):
            for watching in self.open.get(id, ()):
                watching.records[id] = record
            if record is None or record.state.finished:
                self.hear((id,))

    def hear(self, ids: Collection[str], records: Mapping[str, Record] | None = None) -> None:
        """Jobs have ended; `records` tells of some of them how."""
        for id in ids:
            for watching in self.open.pop(id, ()):
                if records and id in records:
                    watching.records[id] = records[id]
                watching.tell(id)

    def forget(self, watching: Watching) -> None:
        for id in watching.open:
            others = self.open[id]
            del others[watching]
            if not others:
                del self.open[id]
        watching.open = set()

    def wake_all(self) -> None:
        for watching in {one: None for waiting in self.open.values() for one in waiting}:
            watching.wake()
