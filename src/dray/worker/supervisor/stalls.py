"""Event loops that do not turn: detected, and logged with the task and the line that blocks them.

The supervisor sees in shared memory that an executor's heartbeat is late. It then has the executor's
faulthandler write the stacks of all threads, which works whatever the interpreter is busy with.
"""

from __future__ import annotations

import ast
import logging
import re
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from dray.worker.supervisor.executor_process import ExecutorProcess
from dray.worker.supervisor.statistics import WorkerStatistics

STALL: Final = 1_000_000_000
"""Nanoseconds without a heartbeat (there are four a second) that count as a stall."""
WARN_EVERY: Final = 60.0
"""Seconds in which a task is warned about once; its other stalls are only counted."""
FRAMES: Final = 8

Begin = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]

_THREAD = re.compile(r"(?:Current thread|Thread) (0x[0-9a-f]+)(?: \[(.*)\])? \(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_WAITING: Final = frozenset({"select", "_run_once", "wait", "get"})
"""Innermost functions of a thread that only waits for work."""

Tasks = Mapping[str, tuple[str, int]]
"""Task name → file and first line of its function."""

log = logging.getLogger("dray.worker")


class Stall:
    def __init__(self) -> None:
        self.longest = 0
        self.task: str | None = None


class Stalls:
    """The stalls of a worker's executors. `begin` starts a background task."""

    def __init__(self, statistics: WorkerStatistics, begin: Begin) -> None:
        self._statistics, self._begin = statistics, begin
        self._open: dict[ExecutorProcess, Stall] = {}
        self._warned: dict[str, float] = {}

    def look(self, executor: ExecutorProcess, silence: int) -> None:
        """Called twice a second; `silence` is the time in nanoseconds for which its loop has not turned."""
        stall = self._open.get(executor)
        busy = executor.started.is_set() and not executor.stopping and not executor.killing
        if stall is None:
            if silence > STALL and busy:
                stall = self._open[executor] = Stall()
                stall.longest = silence
                self._begin(lambda: self._find_task(executor, stall))
        elif silence > STALL and not executor.ended.is_set():
            stall.longest = max(stall.longest, silence)
        else:
            self._close(executor)

    def _close(self, executor: ExecutorProcess) -> None:
        stall = self._open.pop(executor)
        if stall.task is not None:
            self._statistics.add_stall(stall.task, stall.longest / 1e9)
            log.info("the event loop of executor %d turns again", executor.number)

    def forget(self, living: list[ExecutorProcess]) -> None:
        """Close the stalls of executors that have ended."""
        for executor in [one for one in self._open if one not in living]:
            self._close(executor)

    async def _find_task(self, executor: ExecutorProcess, stall: Stall) -> None:
        culprit = find_culprit(read_stacks(await executor.dump()), executor.tasks)
        if culprit is None or culprit.task is None:
            return  # the machine is slow, or the process was stopped: no task is to blame
        stall.task = culprit.task
        now = time.monotonic()
        if now - self._warned.get(culprit.task, -WARN_EVERY) < WARN_EVERY:
            return
        self._warned[culprit.task] = now
        log.warning("%s", _warning(executor, culprit, stall.longest / 1e9))


def _warning(executor: ExecutorProcess, culprit: Culprit, seconds: float) -> str:
    frames = [f"    {frame}" for frame in culprit.stack.frames]
    shown = "\n".join(frames if len(frames) <= FRAMES else [*frames[: FRAMES - 1], "    …", frames[-1]])
    return (
        f"task {culprit.task} keeps the event loop of executor {executor.number} (pid {executor.pid}) from "
        f"turning, for {seconds:.1f} s by now: no other job of that process gets on. Await what takes long, "
        f"or make it a plain def, which runs in a thread. It stands at\n{shown}"
    )


class Frame(msgspec.Struct, frozen=True):
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f'File "{self.file}", line {self.line} in {self.function}'


class Stack(msgspec.Struct, frozen=True):
    """One thread, the innermost call first."""

    thread: str
    frames: tuple[Frame, ...]

    def __str__(self) -> str:
        return "\n".join(f"    {frame}" for frame in self.frames)

    @property
    def waits(self) -> bool:
        return not self.frames or self.frames[0].function in _WAITING


class Culprit(msgspec.Struct, frozen=True):
    """The stack that is to blame, and the task it is in, where one is recognised."""

    stack: Stack
    task: str | None


def read_stacks(dump: str) -> list[Stack]:
    """The threads of a dump, in its order: the main thread is last."""
    _last_line.cache_clear()  # the files may have changed since the last time
    stacks: list[Stack] = []
    frames: list[Frame] = []
    for line in dump.splitlines():
        if thread := _THREAD.fullmatch(line):
            frames = []
            stacks.append(Stack(thread[2] or thread[1], ()))
        elif (frame := _FRAME.fullmatch(line)) and stacks:
            frames.append(Frame(frame[1], int(frame[2]), frame[3]))
            stacks[-1] = Stack(stacks[-1].thread, tuple(frames))
    return stacks


def find_culprit(stacks: list[Stack], tasks: Tasks) -> Culprit | None:
    """The thread that keeps the event loop from turning.

    That is the main thread, which runs the loop, unless it only waits. Then it may be a thread that never
    releases the interpreter: any thread inside a task is named.
    """
    if not stacks:
        return None
    main = _suspect(stacks[-1], tasks)
    if main.task is not None or not main.stack.waits:
        return main
    others = [_suspect(stack, tasks) for stack in stacks[:-1]]
    return next((other for other in others if other.task is not None), main)


def find_task(stacks: list[Stack], tasks: Tasks, wanted: frozenset[str]) -> list[Culprit]:
    """The threads that are inside one of the wanted tasks."""
    suspects = [_suspect(stack, tasks) for stack in stacks]
    return [suspect for suspect in suspects if suspect.task in wanted]


def _suspect(stack: Stack, tasks: Tasks) -> Culprit:
    """The task of the outermost frame that lies within a task's function; frames outside are dray's."""
    for depth in range(len(stack.frames), 0, -1):
        frame = stack.frames[depth - 1]
        above = [(line, name) for name, (file, line) in tasks.items() if file == frame.file]
        for line, name in sorted(above, reverse=True):
            if line <= frame.line <= _last_line(frame.file, line):
                return Culprit(Stack(stack.thread, stack.frames[:depth]), name)
    return Culprit(stack, None)


@lru_cache(maxsize=256)
def _last_line(file: str, first: int) -> float:
    """Last line of the function that begins (with its decorators) in line `first`; infinity if unknown."""
    try:
        tree = ast.parse(Path(file).read_text("utf-8"))
    except (OSError, ValueError, SyntaxError):
        return float("inf")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            decorators = getattr(node, "decorator_list", [])
            if min([node.lineno, *(one.lineno for one in decorators)]) == first and node.end_lineno:
                return node.end_lineno
    return float("inf")
