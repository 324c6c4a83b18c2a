"""What happens on the tour, scene by scene. Each scene enqueues something and waits for what must follow."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from dray.broker.verbs import Broker
from dray.call import Call
from dray.demo.crew import CONCURRENCY, EXECUTORS, Crew
from dray.demo.follower import Follower
from dray.demo.place import Place
from dray.demo.summary import Summary, Witnessed, count_everything
from dray.demo.tasks import (
    app,
    catalogue,
    email,
    fax,
    newsletter,
    order,
    payment,
    price,
    reminder,
    report,
    thumbnail,
    video,
    welcome,
)
from dray.demo.trouble import Trouble
from dray.demo.view import View
from dray.handle import JobHandle, agather
from dray.job import State
from dray.roster import ExecutorInfo

THUMBNAILS: Final = 300
ORDERS: Final = 10
EMAILS: Final = 6
REMINDERS: Final = 5
DELAY: Final = 2
PRICES: Final = 20
VIDEOS: Final = 6
ACCIDENT_TRIES: Final = 3
"""On a busy machine all videos may be done before an executor could be hit: then there are more videos."""


async def tell(place: Place, view: View) -> Summary:
    """The whole tour; however it ends, its worker ends with it."""
    crew = Crew(app, place)
    broker = await app.connect()
    try:
        tour = Tour(crew, Follower(broker, crew, view), view)
        await tour.go(place)
        return await count_everything(broker, tour.follower.happened, tour.witnessed)
    finally:
        await asyncio.shield(_leave(crew, broker))


async def _leave(crew: Crew, broker: Broker) -> None:
    await crew.dismiss()
    await broker.close()
    app.close()


class Tour:
    """The scenes, and what only a caller can witness: what was accepted, what was returned."""

    def __init__(self, crew: Crew, follower: Follower, view: View) -> None:
        self.crew, self.follower, self.say = crew, follower, view.say
        self.witnessed = Witnessed()

    async def go(self, place: Place) -> None:
        await self.fill(place)
        await self.start()
        await self.overtake()
        await self.enqueue_the_rest()
        await self.cancel_waiting()
        await self.report_progress()
        await self.gather_results()
        await self.crash_from_inside()
        await self.crash_from_outside()
        await self.repeat_what_is_done()
        await self.finish()

    # scenes

    async def fill(self, place: Place) -> None:
        """Work waits on disk before there is anybody to do it."""
        self.say("demo", "the background work of a small shop, on a real worker; about ten seconds")
        self.say("broker", f"one SQLite file below {place.folder}")
        began = time.monotonic()
        await self.put([thumbnail.using(id=f"thumbnail-{n}").call(n) for n in range(1, THUMBNAILS + 1)])
        self.witnessed.put_ms = round((time.monotonic() - began) * 1000)
        self.say("put", f"{THUMBNAILS} thumbnails in {self.witnessed.put_ms} ms; no worker yet, so they wait")

    async def start(self) -> None:
        pid = self.crew.start()
        self.say("worker", f"dray worker -p {EXECUTORS} -c {CONCURRENCY} started, process {pid}")
        await self.follower.until(
            "the worker's first results",
            lambda: (
                len(self.crew.executors) == EXECUTORS and bool(self.follower.ids("succeeded", "thumbnail"))
            ),
        )
        pids = " and ".join(str(executor.pid) for executor in self.crew.executors)
        self.say("worker", f"at work: executor processes {pids}")

    async def overtake(self) -> None:
        """Urgent jobs pass everything that waits."""
        await self.put([order.using(id=f"order-{n}").call(n) for n in range(1, ORDERS + 1)])
        waiting = THUMBNAILS - len(set(self.follower.ids("taken", "thumbnail")))
        self.say("put", f"{ORDERS} orders of high priority, behind about {waiting} waiting thumbnails")
        await self.follower.until("the orders", lambda: len(self.follower.ended("order")) == ORDERS)
        left = THUMBNAILS - len(self.follower.ended("thumbnail"))
        self.say("done", f"all {ORDERS} orders, while {left} thumbnails are still to do")

    async def enqueue_the_rest(self) -> None:
        """Things that fail, things for later, things asked for twice."""
        await self.put(
            [
                *(
                    email.using(id=f"email-{n}").call(f"customer-{n}@example.org")
                    for n in range(1, EMAILS + 1)
                ),
                *(fax.using(id=f"fax-{n}").call(f"+44 20 7946 000{n}") for n in (1, 2)),
                *(payment.using(id=f"payment-{n}").call(n) for n in (1, 2)),
            ]
        )
        self.say("put", f"{EMAILS} emails to a moody server, 2 faxes to nobody, 2 payments by expired cards")
        await self.put(
            [reminder.using(id=f"reminder-{n}", delay=DELAY).call(n) for n in range(1, REMINDERS + 1)]
        )
        self.say("put", f"{REMINDERS} reminders, for {DELAY} seconds from now")
        await self.welcome("welcome-1")
        await self.welcome("welcome-2")

    async def welcome(self, id: str) -> None:
        """The same key every time: only the first makes a job."""
        job = await welcome.using(id=id, key="welcome:42").aenqueue(42)
        self.note([job])
        told = (
            f"that key is taken: it is {job.id}, {await job.astatus()}"
            if job.duplicate
            else f"it is {job.id}"
        )
        self.say("put", f"a welcome with key welcome:42; {told}")

    async def cancel_waiting(self) -> None:
        job = await newsletter.using(id="newsletter-1", delay="1h").aenqueue(1)
        self.note([job])
        await job.acancel("sent to the wrong list")
        await self.follower.until(
            "a newsletter to be cancelled", lambda: bool(self.follower.ended("newsletter"))
        )

    async def report_progress(self) -> None:
        """One report is watched to its end, one is stopped on its way."""
        short, long = report.using(id="report-1"), report.using(id="report-2")
        self.note([await short.aenqueue("May", 12)])
        job = await long.aenqueue("June", 3000)
        self.note([job])
        await self.follower.until("progress of a report", lambda: self.follower.how_far(job.id) > 0)
        progress = self.follower.progress[job.id]
        self.say("progress", f"{job.id} is at {progress.done:g} of {progress.total:g}; that takes too long")
        began = time.monotonic()
        await job.acancel("nobody reads it")
        await self.follower.until("a report to stop", lambda: job.id in self.follower.ended("report"))
        self.witnessed.cancel_seconds = time.monotonic() - began
        await self.follower.until("the other report", lambda: len(self.follower.ended("report")) == 2)
        self.say("done", "report-1, watched to its end")

    async def gather_results(self) -> None:
        jobs = await self.put([price.using(id=f"price-{n}").call(n) for n in range(1, PRICES + 1)])
        results = await self.follower.meanwhile("prices", agather(jobs, timeout=40))
        self.witnessed.results = results
        self.say(
            "result",
            f"gather({PRICES} prices) gives {results[0]}, {results[1]}, {results[2]} ... {results[-1]}",
        )

    async def crash_from_inside(self) -> None:
        """A job that takes its whole process along."""
        await self.follower.until(
            "the thumbnails", lambda: len(self.follower.ended("thumbnail")) == THUMBNAILS
        )
        self.say("done", f"all {THUMBNAILS} thumbnails")
        self.note([await catalogue.using(id="catalogue-1").aenqueue(64)])
        self.say("put", "a catalogue, whose first run ends in os._exit, as a crash in a C library would")
        await self.follower.until("the catalogue", lambda: bool(self.follower.ended("catalogue")))

    async def crash_from_outside(self) -> None:
        """kill -9, while it runs something."""
        for attempt in range(ACCIDENT_TRIES):
            first = attempt * VIDEOS + 1
            jobs = await self.put(
                [video.using(id=f"video-{n}").call(n) for n in range(first, first + VIDEOS)]
            )
            self.say("put", f"{VIDEOS} videos, which take some seconds each")
            if await self.kill_who_runs(jobs):
                break
        else:
            raise Trouble("no executor could be caught at work on a video; is the machine very busy?")
        lost = self.follower.ids("crashed", "video")
        await self.follower.until(
            "the videos that were lost", lambda: {*lost} <= self.follower.ended("video")
        )

    async def kill_who_runs(self, jobs: Sequence[JobHandle[Any]]) -> bool:
        """Kill the executor that runs most of the jobs; False if all were over before one could be hit."""
        before = len(self.follower.ids("crashed", "video"))
        victim: ExecutorInfo | None = None

        async def look_for_victim() -> None:
            nonlocal victim
            while victim is None:
                infos = [await job.ainfo() for job in jobs]
                if all(info.status.finished for info in infos):
                    return
                busiest = Counter(info.worker for info in infos if info.status is State.RUNNING)
                for session, _ in busiest.most_common(1):
                    victim = self.crew.executor_of(session)
                await asyncio.sleep(0.05)

        await self.follower.meanwhile("videos to run", look_for_victim())
        if victim is None:
            return False
        os.kill(victim.pid, signal.SIGKILL)
        self.say("kill", f"kill -9 {victim.pid}: that was executor {victim.number}")
        await self.follower.until(
            "the supervisor to notice", lambda: len(self.follower.ids("crashed", "video")) > before
        )
        return True

    async def repeat_what_is_done(self) -> None:
        """`once` keeps a key taken after success."""
        await self.follower.until("the welcome", lambda: bool(self.follower.ended("welcome")))
        await self.welcome("welcome-3")

    async def finish(self) -> None:
        await self.follower.until("all jobs to end", lambda: not self.follower.unfinished)
        await self.follower.until("all executors to be replaced", lambda: self.crew.complete)
        self.witnessed.replaced = self.crew.replaced
        self.say("worker", "nothing is left to do: SIGTERM")
        self.witnessed.exit_code = await self.crew.stop()
        self.say("worker", f"ended with exit code {self.witnessed.exit_code}")

    # enqueueing

    async def put(self, calls: Sequence[Call[Any]]) -> list[JobHandle[Any]]:
        jobs = await app.aenqueue_many(calls)
        self.note(jobs)
        return jobs

    def note(self, jobs: Sequence[JobHandle[Any]]) -> None:
        """What was accepted, by the caller's own count."""
        self.witnessed.calls += len(jobs)
        self.witnessed.accepted.update(job.id for job in jobs if not job.duplicate)
