"""Reading the stacks that an executor's faulthandler wrote, and naming the task that holds everybody up.

An executor whose event loop hangs cannot tell what it does. Its faulthandler can: on a signal it writes the
stacks of all threads from C, without asking the interpreter.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

_THREAD = re.compile(r"(?:Current thread|Thread) (0x[0-9a-f]+)(?: \[(.*)\])? \(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_RESTING: Final = frozenset({"select", "_run_once", "wait", "get"})
"""Innermost functions of a thread that merely waits for something to do."""

Tasks = Mapping[str, tuple[str, int]]
"""Task name → file and first line of its function."""


class Frame(msgspec.Struct, frozen=True):
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f'File "{self.file}", line {self.line} in {self.function}'


class Stack(msgspec.Struct, frozen=True):
    """One thread; the innermost call comes first."""

    thread: str
    frames: tuple[Frame, ...]

    def __str__(self) -> str:
        return "\n".join(f"    {frame}" for frame in self.frames)

    @property
    def resting(self) -> bool:
        return not self.frames or self.frames[0].function in _RESTING


class Culprit(msgspec.Struct, frozen=True):
    """The stack that looks guilty, and the task it is in, where one is recognised."""

    stack: Stack
    task: str | None


def read_stacks(dump: str) -> list[Stack]:
    """The threads of a dump, in its order: the main thread is the last."""
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
    """Who keeps the event loop from turning.

    The main thread runs the loop: what it is in, if it is in anything, is what holds it up. If it only waits,
    a thread that never lets go of the interpreter may be the one: then any thread inside a task is named.
    """
    if not stacks:
        return None
    main = _suspect(stacks[-1], tasks)
    if main.task is not None or not main.stack.resting:
        return main
    others = [_suspect(stack, tasks) for stack in stacks[:-1]]
    return next((other for other in others if other.task is not None), main)


def find_task(stacks: list[Stack], tasks: Tasks, wanted: frozenset[str]) -> list[Culprit]:
    """The threads that are inside one of the wanted tasks."""
    suspects = [_suspect(stack, tasks) for stack in stacks]
    return [suspect for suspect in suspects if suspect.task in wanted]


def _suspect(stack: Stack, tasks: Tasks) -> Culprit:
    """The task is that of the outermost frame that lies within a task's function; outside it all is ours."""
    for depth in range(len(stack.frames), 0, -1):
        frame = stack.frames[depth - 1]
        above = [(line, name) for name, (file, line) in tasks.items() if file == frame.file]
        for line, name in sorted(above, reverse=True):
            if line <= frame.line <= _last_line(frame.file, line):
                return Culprit(Stack(stack.thread, stack.frames[:depth]), name)
    return Culprit(stack, None)


@lru_cache(maxsize=256)
def _last_line(file: str, first: int) -> float:
    """Where the function that begins (with its decorators) in line `first` ends; unknown is no bound."""
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
