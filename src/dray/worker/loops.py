"""The event loop of a process that runs other people's code."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from importlib import import_module
from typing import Any, TypeVar

T = TypeVar("T")
log = logging.getLogger("dray.worker")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed."""
    try:
        made: asyncio.AbstractEventLoop = import_module("uvloop").new_event_loop()
    except ImportError:
        made = asyncio.new_event_loop()
    return made


def run_to_end(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, T]) -> T:
    """Run `main`, whatever jobs do to the loop.

    A `SystemExit` in a task that a job started makes asyncio leave the loop. It is the job's affair: the
    loop goes on where it was.
    """
    asyncio.set_event_loop(loop)
    task = loop.create_task(main)
    while True:
        try:
            return loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt) as error:
            if task.done():
                raise
            log.warning("something that a job started raised %s on the event loop", type(error).__name__)
