"""What happens in the demo, scene by scene. Each scene enqueues jobs and waits for what must follow."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dray.broker.actions import Query
from dray.broker.verbs import PAGE_MAX, Broker
from dray.demo import tasks
from dray.demo.monitor import EXECUTORS, OPTIONS, STOP_TIMEOUT, DemoFailed, DemoWorker, Monitor
from dray.demo.summary import Facts
from dray.demo.view import View
from dray.documents.worker_registry import ExecutorInfo
from dray.handle import JobHandle, agather
from dray.job import State
from dray.task import Task

THUMBNAILS: Final = 300
ORDERS: Final = 10
EMAILS: Final = 6
REMINDERS: Final = 5
DELAY: Final = 2
PRICES: Final = 20
VIDEOS: Final = 6
KILL_TRIES: Final = 3
"""On a busy machine all videos may be done before an executor could be killed: then there are more videos."""


async def play(view: View) -> Facts:
    """Play all scenes; the worker ends with the demo, however that ends."""
    worker = DemoWorker(tasks.app, Path.cwd() / "worker.log")
    broker = await tasks.app.connect()
    try:
        it = Scenario(broker, worker, view)
        for scene in (it.overtake, it.fail, it.cancel, it.gather, it.crash, it.finish):
            await scene()
        it.facts.records = (await broker.find(Query(), limit=PAGE_MAX)).records
        it.facts.audit = await broker.audit()
        return it.facts
    finally:
        await asyncio.shield(_clean_up(worker, broker))


async def _clean_up(worker: DemoWorker, broker: Broker) -> None:
    await worker.clean_up()
    await broker.close()
    tasks.app.close()


@dataclass
class Scenario(Monitor):
    """The scenes, and the facts that only the caller knows: accepted jobs, returned values."""

    facts: Facts = field(default_factory=Facts)

    def __post_init__(self) -> None:
        self.say = self.view.say
        self.facts.events = self.events

    async def overtake(self) -> None:
        """Jobs wait on disk before there is a worker; urgent jobs pass the jobs that wait."""
        self.say("demo", "the background work of a small shop, on a real worker; about ten seconds")
        self.say("broker", f"one SQLite file below {Path.cwd()}")
        began = time.monotonic()
        await self.put(tasks.thumbnail, range(1, THUMBNAILS + 1))
        self.facts.put_ms = round((time.monotonic() - began) * 1000)
        self.say("put", f"{THUMBNAILS} thumbnails in {self.facts.put_ms} ms; no worker yet, so they wait")
        self.say("worker", f"dray worker {OPTIONS} started, process {await self.worker.start()}")
        await self.until("all executors", lambda: len(self.worker.executors) == EXECUTORS)
        await self.until_seen(1, "thumbnail")
        pids = " and ".join(str(executor.pid) for executor in self.worker.executors)
        self.say("worker", f"at work: executor processes {pids}")
        await self.put(tasks.order, range(1, ORDERS + 1))
        waiting = THUMBNAILS - len(self.ids("thumbnail", "taken"))
        self.say("put", f"{ORDERS} orders of high priority, behind about {waiting} waiting thumbnails")
        await self.until_seen(ORDERS, "order")
        left = THUMBNAILS - len(self.ids("thumbnail"))
        self.say("done", f"all {ORDERS} orders, while {left} thumbnails are still to do")

    async def fail(self) -> None:
        """Jobs that fail, jobs for later, a job that is enqueued twice."""
        await self.put(tasks.email, [f"customer-{n}@example.org" for n in range(1, EMAILS + 1)])
        await self.put(tasks.fax, ["+44 20 7946 0001", "+44 20 7946 0002"])
        await self.put(tasks.payment, [1, 2])
        self.say("put", f"{EMAILS} emails to a moody server, 2 faxes to nobody, 2 payments by expired cards")
        await self.put(tasks.reminder, range(1, REMINDERS + 1), delay=DELAY)
        self.say("put", f"{REMINDERS} reminders, for {DELAY} seconds from now")
        await self.welcome(1)
        await self.welcome(2)

    async def welcome(self, number: int) -> None:
        """Enqueue with the same key every time: only the first call makes a job."""
        (job,) = await self.put(tasks.welcome, [42], first=number, key="welcome:42")
        taken = f"that key is taken: it is {job.id}, {await job.astatus()}"
        self.say("put", f"a welcome with key welcome:42; {taken if job.duplicate else f'it is {job.id}'}")

    async def cancel(self) -> None:
        """A newsletter is cancelled before it starts, a report while it runs; one report runs to its end."""
        (newsletter,) = await self.put(tasks.newsletter, [1], delay="1h")
        await newsletter.acancel("sent to the wrong list")
        await self.until_seen(1, "newsletter")
        _, job = await self.put(tasks.report, [12, 3000])
        await self.until("progress of a report", lambda: job.id in self.progress)
        progress = self.progress[job.id]
        self.say("progress", f"{job.id} is at {progress.done:g} of {progress.total:g}; that takes too long")
        began = time.monotonic()
        await job.acancel("nobody reads it")
        await self.until("a report to stop", lambda: job.id in self.ids("report"))
        self.facts.cancel_seconds = time.monotonic() - began
        await self.until_seen(2, "report")
        self.say("done", "report-1, watched to its end")

    async def gather(self) -> None:
        jobs = await self.put(tasks.price, range(1, PRICES + 1))
        gathering = asyncio.ensure_future(agather(jobs, timeout=40))
        try:
            await self.until("prices", gathering.done)
        finally:
            gathering.cancel()
        self.facts.results = results = gathering.result()
        shown = f"{results[0]}, {results[1]}, {results[2]} ... {results[-1]}"
        self.say("result", f"gather({PRICES} prices) gives {shown}")

    async def crash(self) -> None:
        """A job ends its whole process; then an executor that runs jobs gets SIGKILL."""
        await self.until_seen(THUMBNAILS, "thumbnail")
        self.say("done", f"all {THUMBNAILS} thumbnails")
        await self.put(tasks.catalogue, [64])
        self.say("put", "a catalogue, whose first run ends in os._exit, as a crash in a C library would")
        await self.until_seen(1, "catalogue")
        victim = await self.find_busy_executor()
        os.kill(victim.pid, signal.SIGKILL)
        self.say("kill", f"kill -9 {victim.pid}: that was executor {victim.number}")
        await self.until_seen(1, "video", "crashed")
        lost = self.ids("video", "crashed")
        await self.until("the videos that were lost", lambda: lost <= self.ids("video"))

    async def find_busy_executor(self) -> ExecutorInfo:
        """Enqueue videos, and find the executor that runs most of them."""
        await self.until("an executor to be replaced", lambda: self.worker.complete)
        for first in range(1, KILL_TRIES * VIDEOS, VIDEOS):
            jobs = await self.put(tasks.video, range(first, first + VIDEOS), first=first)
            self.say("put", f"{VIDEOS} videos, which take some seconds each")
            await self.until_seen(first + VIDEOS - 1, "video", "taken")
            infos = [await job.ainfo() for job in jobs]
            running = Counter(info.worker for info in infos if info.status is State.RUNNING)
            for executor in self.worker.executors:
                if running and executor.session == running.most_common(1)[0][0]:
                    return executor
        raise DemoFailed("no executor could be caught at work on a video; is the machine very busy?")

    async def finish(self) -> None:
        await self.until_seen(1, "welcome")
        await self.welcome(3)  # `once` keeps the key taken after success
        unfinished = [state for state in State if not state.finished]
        await self.until("all jobs to end", lambda: not any(self.counts[state] for state in unfinished))
        await self.until("all executors to be replaced", lambda: self.worker.complete)
        # Executors are numbered as they start.
        self.facts.replaced = max(executor.number for executor in self.worker.executors) - EXECUTORS
        self.say("worker", "nothing is left to do: SIGTERM")
        self.facts.exit_code = await self.worker.stop(signal.SIGTERM, STOP_TIMEOUT)
        if self.facts.exit_code is None:
            log = self.worker.log_tail()
            raise DemoFailed(f"the worker did not stop within {STOP_TIMEOUT:g} s of SIGTERM{log}")
        self.say("worker", f"ended with exit code {self.facts.exit_code}")

    async def put(
        self, task: Task[..., Any], arguments: Iterable[object], *, first: int = 1, **options: Any
    ) -> list[JobHandle[Any]]:
        """Enqueue one job per argument, with ids such as `email-3`, and count what was accepted."""
        calls = [
            task.using(id=f"{task.name}-{number}", **options).call(argument)
            for number, argument in enumerate(arguments, first)
        ]
        jobs = await tasks.app.aenqueue_many(calls)
        self.facts.calls += len(jobs)
        self.facts.accepted.update(job.id for job in jobs if not job.duplicate)
        return jobs
