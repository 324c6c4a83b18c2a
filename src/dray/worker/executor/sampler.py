"""Samples the stacks of all threads of an executor, when an operator asks for a profile.

It is a thread, because profiles are asked for when the event loop is blocked. The request comes through
memory shared with the supervisor; the profile is written over a connection of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Final

from dray.broker.verbs import Broker
from dray.documents.profile import Profile, write_profile
from dray.worker.shared_memory import SharedHeartbeat, now

LOOK_EVERY: Final = 0.5
SAMPLE_EVERY: Final = 0.01
DEEPEST: Final = 100
"""The innermost frames of a stack that are kept."""
MOST_STACKS: Final = 5000
_OWN: Final = frozenset({"dray guard", "dray child", "dray profile"})
"""Threads that only wait."""
_IDLE: Final = (("selectors.py", "select"), ("threads.py", "_rest"), ("process.py", "run_to_end"))
"""File and function of the innermost frame of an idle thread."""

Stack = tuple[str, ...]

log = logging.getLogger("dray.worker")


def start_sampler(
    heartbeat: SharedHeartbeat, worker: str, executor: int, connect: Callable[[], Awaitable[Broker]]
) -> None:
    """Serve requests for profiles until the process ends."""

    def serve() -> None:
        served = 0
        while True:
            time.sleep(LOOK_EVERY)
            request = heartbeat.read("profile")
            if request == served:
                continue
            served = request
            try:
                profile = take_profile(worker, executor, heartbeat.read("profile_ms") / 1000)
                asyncio.run(_write(connect, f"{served:x}", profile))
            except Exception:
                log.exception("a profile was asked for, and could not be taken or written")

    threading.Thread(target=serve, name="dray profile", daemon=True).start()


async def _write(connect: Callable[[], Awaitable[Broker]], name: str, profile: Profile) -> None:
    broker = await connect()
    try:
        await write_profile(broker, name, profile)
    finally:
        await broker.close()


def take_profile(worker: str, executor: int, seconds: float) -> Profile:
    """Sample this process for so many seconds."""
    seen, samples, end = Counter[Stack](), 0, now() + int(seconds * 1e9)
    left_out = 0
    while now() < end:
        samples += 1
        for stack in _stacks():
            if stack in seen or len(seen) < MOST_STACKS:
                seen[stack] += 1
            else:
                left_out += 1
        time.sleep(SAMPLE_EVERY)
    frames: dict[str, int] = {}
    stacks = [
        ([frames.setdefault(frame, len(frames)) for frame in stack], count)
        for stack, count in seen.most_common()
    ]
    return Profile(
        worker=worker,
        executor=executor,
        pid=os.getpid(),
        seconds=seconds,
        samples=samples,
        frames=list(frames),
        stacks=stacks,
        left_out=left_out,
    )


def _stacks() -> list[Stack]:
    """The stack of every busy thread: its name, then its frames from the outermost."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = []
    for ident, frame in sys._current_frames().items():
        name = names.get(ident, "a thread that Python did not start")
        if name not in _OWN and not _is_idle(frame):
            found.append((name, *_frames(frame)))
    return found


def _is_idle(frame: FrameType) -> bool:
    code = frame.f_code
    return any(code.co_name == name and code.co_filename.endswith(file) for file, name in _IDLE)


def _frames(innermost: FrameType) -> list[str]:
    found: list[str] = []
    frame: FrameType | None = innermost
    while frame is not None and len(found) < DEEPEST:
        code = frame.f_code
        found.append(f"{code.co_qualname} ({_short(code.co_filename)}:{frame.f_lineno})")
        frame = frame.f_back
    found.reverse()
    return found


def _short(file: str) -> str:
    """The last two parts of a path."""
    return "/".join(Path(file).parts[-2:])
