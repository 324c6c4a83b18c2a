"""The executor's listener in a test: checks for work when the store changes.

The listener of a real worker waits at the broker with a task and a timer per wait, which would cost more here
than the jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from dray.broker.verbs import Filter, Interest, NextTake, Wake
from dray.testing.loops import call_soon
from dray.testing.memory_store import HarnessStore
from dray.worker.executor.listener import Aim, Listener


class InProcessListener(Listener):
    def __init__(
        self,
        store: HarnessStore,
        queues: tuple[str, ...],
        filter: Filter,
        heard: Callable[[str, Wake | Exception], None],
    ) -> None:
        super().__init__(store, queues, filter, heard, random=lambda: 0.5)
        self._store, self._looking = store, False
        self._listeners = store.control.listeners
        self._listeners.append(self._changed)

    def aim(self, session: str, work: bool, next_take: NextTake | None = None) -> None:
        self._aim = Aim(session, work)
        self._changed()

    def close(self) -> Coroutine[Any, Any, None]:
        self._aim = None
        if self._changed in self._listeners:
            self._listeners.remove(self._changed)
        return self._closed()

    def _changed(self) -> None:
        """Called in any thread."""
        if self._looking or self._aim is None:
            return
        self._looking = True
        call_soon(self._loop, self._look)

    def _look(self) -> None:
        self._looking = False
        if self._aim is None:
            return
        session, work, _ = self._aim
        queues = self._queues if work else ()
        wake = self._store.news(Interest(queues=queues, filter=self._filter, session=session))
        if wake != Wake():
            self._aim = None
            self._heard(session, wake)
