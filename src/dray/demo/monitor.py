"""The worker of the demo, and the broker's events: the scenario waits for events, never for time to pass."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from dray.app import App
from dray.broker.verbs import Broker
from dray.demo.view import View
from dray.documents.worker_registry import ExecutorInfo
from dray.job import Progress, State

EXECUTORS: Final = 2
OPTIONS: Final = f"-p {EXECUTORS} -c 4"
COMMAND: Final = (sys.executable, "-m", "dray", "worker", *OPTIONS.split(), "--shutdown-grace", "5s")
STOP_TIMEOUT: Final = 10.0
TIMEOUT: Final = 45.0
"""Seconds to wait for one condition. Each takes about one; the machine may be busy."""
LOG_LINES: Final = 15
IDS_SHOWN: Final = 4
ENDS: Final = ("succeeded", "died", "cancelled")
LINES: Final = {
    "retried": ("retry", "failed ({error}), to be tried again"),
    "died": ("dead", "dead, {reason}"),
    "cancelled": ("cancel", "cancelled: {reason}"),
    "crashed": ("crash", "lost with the process, ready again"),
    "succeeded": ("done", "succeeded in run {run}"),
}
"""Kinds of events that get a line → its label and text; success only if the first run failed."""


class DemoFailed(Exception):
    """The demo cannot go on; the message names what was expected and what was found."""


class DemoEvent(NamedTuple):
    """One event of the feed. Jobs of the demo are named after their task: `email-3`."""

    kind: str
    id: str
    run: int
    at: int

    @property
    def task(self) -> str:
        return self.id.partition("-")[0]


@dataclass
class DemoWorker:
    """One real `dray worker` process, and its executors as the worker registry lists them."""

    app: App
    log: Path
    process: Process | None = None
    executors: tuple[ExecutorInfo, ...] = ()

    async def start(self) -> int:
        """Start `dray worker`; returns its pid."""
        with self.log.open("wb") as log:
            # Its own session: Ctrl-C reaches only the demo, which then stops the worker itself.
            self.process = await asyncio.create_subprocess_exec(
                *COMMAND, stdin=DEVNULL, stdout=log, stderr=STDOUT, start_new_session=True
            )
        return self.process.pid

    async def refresh(self) -> None:
        """Read the registry again. Raises if the worker has ended."""
        if self.process is None:
            return
        if (code := self.process.returncode) is not None:
            raise DemoFailed(f"the worker ended by itself, with exit code {code}{self.log_tail()}")
        found = await self.app.workers.alist()
        self.executors = found[0].executors if found else ()

    @property
    def complete(self) -> bool:
        """Every executor is alive and has a session."""
        return sum(one.session is not None and _is_alive(one.pid) for one in self.executors) == EXECUTORS

    async def stop(self, number: signal.Signals, timeout: float) -> int | None:
        """Send a signal and wait for the end; returns the exit code, None if the worker still runs."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), timeout)
        return None if self.process is None else self.process.returncode

    async def clean_up(self) -> None:
        """End all its processes, however the demo ended."""
        for number, timeout in ((signal.SIGTERM, 0.2), (signal.SIGTERM, STOP_TIMEOUT), (signal.SIGKILL, 1.0)):
            await self.stop(number, timeout)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT):
                # Executors notice that their supervisor is gone, and end by themselves.
                while any(_is_alive(one.pid) for one in self.executors):  # noqa: ASYNC110 (not our children)
                    await asyncio.sleep(0.02)

    def log_tail(self) -> str:
        """The end of the worker's log, for a message."""
        lines = self.log.read_text("utf-8", "replace").splitlines() if self.log.exists() else []
        return "".join(f"\n  | {line}" for line in lines[-LOG_LINES:])


def _is_alive(pid: int) -> bool:
    with suppress(OSError):  # gone, or the number is another user's by now
        os.kill(pid, 0)
        return True
    return False


@dataclass
class Monitor:
    """All events so far and the current state; reads on and redraws the view while the scenario waits."""

    broker: Broker
    worker: DemoWorker
    view: View
    cursor: dict[str, int] = field(default_factory=dict)
    events: list[DemoEvent] = field(default_factory=list)
    counts: Counter[State] = field(default_factory=Counter)
    progress: dict[str, Progress] = field(default_factory=dict)

    async def until(self, what: str, condition: Callable[[], object]) -> None:
        """Wait until a condition is true; `what` names it in the error."""
        deadline = time.monotonic() + TIMEOUT
        await self._refresh()
        while not condition():
            if time.monotonic() > deadline:
                states = ", ".join(f"{count} {state}" for state, count in self.counts.items() if count)
                log = self.worker.log_tail()
                raise DemoFailed(f"waited {TIMEOUT:g} s for {what}; the jobs are {states}{log}")
            await asyncio.sleep(0.1)
            await self._refresh()

    async def until_seen(self, count: int, task: str, *kinds: str) -> None:
        """Wait until so many jobs of a task have had an event of these kinds, or have ended."""
        await self.until(f"{count} jobs of the task {task}", lambda: len(self.ids(task, *kinds)) >= count)

    def ids(self, task: str, *kinds: str) -> set[str]:
        """Jobs of a task that have had an event of these kinds, or have ended."""
        return {event.id for event in self.events if event.task == task and event.kind in (kinds or ENDS)}

    async def _refresh(self) -> None:
        known = len(self.events)
        while (feed := await self.broker.events(self.cursor)).entries:
            self.cursor = dict(feed.cursor)
            for entry in feed.entries:
                self.events += [DemoEvent(one.kind, one.id, one.run, entry.at) for one in entry.events]
        self.counts = Counter()
        for queue in await self.broker.queues():
            self.counts.update(queue.counts)
        await self.worker.refresh()
        await self._report(self.events[known:])
        below = [f"process {one.pid} runs {one.running}" for one in self.worker.executors]
        for id, it in self.progress.items():
            below.append(f"{id}: {it.done:g} of {it.total or 0:g} ({it.note})")
        self.view.draw(self.counts, "  |  ".join(below) or "no worker yet")

    async def _report(self, events: list[DemoEvent]) -> None:
        """Note progress, and print a line for all jobs of a task with the same notable event."""
        groups: dict[tuple[str, str], dict[str, DemoEvent]] = {}
        for event in events:
            if event.kind in (*LINES, "progress") and (event.kind != "succeeded" or event.run > 1):
                groups.setdefault((event.kind, event.task), {})[event.id] = event
        for (kind, _), group in groups.items():
            records = [record for record in await self.broker.get(list(group)) if record is not None]
            if kind == "progress":
                progress = {record.id: record.runs[-1].progress for record in records if record.runs}
                self.progress |= {id: it for id, it in progress.items() if it is not None}
            elif records:
                label, text = LINES[kind]
                last, ids = records[-1], list(group)
                error = last.error.message if last.error else "an error"
                reason = last.reason or "no reason is known"
                text = text.format(error=error, reason=reason, run=group[last.id].run)
                if len(ids) > IDS_SHOWN:
                    ids = [", ".join(ids[: IDS_SHOWN - 1]) + f" and {len(ids) - IDS_SHOWN + 1} more"]
                self.view.say(label, f"{', '.join(ids)} {text}")
