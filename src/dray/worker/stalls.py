"""Event loops that do not turn: noticed by the supervisor, named with the task and where its code stands.

The executor does nothing for it: its supervisor sees that the beat in the shared page is late, and has the
stacks written from outside, which works whatever the executor is busy with.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from dray.worker.executors import Executor
from dray.worker.stacks import Culprit, find_culprit, read_stacks
from dray.worker.stats import Books

STALL: Final = 1_000_000_000
"""Nanoseconds without a beat (there are four a second) that count as a stall."""
SAY_AGAIN: Final = 60.0
"""Seconds in which a task is complained about once; its other stalls are only counted."""
FRAMES: Final = 8

Begin = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]

log = logging.getLogger("dray.worker")


class Stall:
    def __init__(self) -> None:
        self.longest = 0
        self.task: str | None = None


class Stalls:
    """The stalls of a worker's executors, as they come and go. `begin` starts what takes a moment."""

    def __init__(self, books: Books, begin: Begin) -> None:
        self._books, self._begin = books, begin
        self._open: dict[Executor, Stall] = {}
        self._said: dict[str, float] = {}

    def look(self, executor: Executor, silence: int) -> None:
        """Called again and again; `silence` is how long its loop has not turned, in nanoseconds."""
        stall = self._open.get(executor)
        busy = executor.started.is_set() and not executor.stopping and not executor.doomed
        if stall is None:
            if silence > STALL and busy:
                stall = self._open[executor] = Stall()
                stall.longest = silence
                self._begin(lambda: self._name(executor, stall))
        elif silence > STALL and not executor.ended.is_set():
            stall.longest = max(stall.longest, silence)
        else:
            self._close(executor)

    def _close(self, executor: Executor) -> None:
        stall = self._open.pop(executor)
        if stall.task is not None:
            self._books.stalled(stall.task, stall.longest / 1e9)
            log.info("the event loop of executor %d turns again", executor.number)

    def forget(self, living: list[Executor]) -> None:
        """Those that ended in the midst of it."""
        for executor in [one for one in self._open if one not in living]:
            self._close(executor)

    async def _name(self, executor: Executor, stall: Stall) -> None:
        culprit = find_culprit(read_stacks(await executor.dump()), executor.tasks)
        if culprit is None or culprit.task is None:
            return  # the machine is slow, or somebody stopped it: nobody's fault here
        stall.task = culprit.task
        now = time.monotonic()
        if now - self._said.get(culprit.task, -SAY_AGAIN) < SAY_AGAIN:
            return
        self._said[culprit.task] = now
        log.warning("%s", _complaint(executor, culprit, stall.longest / 1e9))


def _complaint(executor: Executor, culprit: Culprit, seconds: float) -> str:
    frames = [f"    {frame}" for frame in culprit.stack.frames]
    shown = "\n".join(frames if len(frames) <= FRAMES else [*frames[: FRAMES - 1], "    …", frames[-1]])
    return (
        f"task {culprit.task} keeps the event loop of executor {executor.number} (pid {executor.pid}) from "
        f"turning, for {seconds:.1f} s by now: no other job of that process gets on. Await what takes long, "
        f"or make it a plain def, which runs in a thread. It stands at\n{shown}"
    )
