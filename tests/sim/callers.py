"""Users of an app: producers enqueue, watchers wait for results."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from typing import Any, TypeVar

from dray.app import App
from dray.client.link import Link
from dray.errors import (
    BrokerAway,
    DuplicateJob,
    InvalidInput,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobTimeout,
    QueueFull,
    ResultGone,
)
from dray.handle import JobHandle, aas_completed, agather
from dray.job import Job, State
from dray.options import Using
from dray.task import Call
from sim.clients import Board, Wait
from sim.lives import Violation
from sim.loop import Process
from sim.orders import Author
from sim.script import read_script

T = TypeVar("T")
_ENDS = (JobFailed, JobCancelled, JobNotFound, ResultGone)


class Producer:
    """Enqueues the author's jobs; repeats each call until it is answered."""

    def __init__(self, board: Board, app: App, bounded: App, dice: random.Random, author: Author) -> None:
        self._board, self._app, self._bounded = board, app, bounded
        self._dice, self._author = dice, author

    async def run(self) -> None:
        board, dice = self._board, self._dice
        while board.left > 0:
            order = self._author.order(board.left)
            board.left -= len(order)
            board.ids += [job.id for job in order]
            await self._place(order)
            await asyncio.sleep(dice.uniform(0, board.plan.horizon / max(board.plan.jobs, 1)))

    async def _place(self, order: list[Job]) -> None:
        bounded = {job.queue == "bounded" for job in order}
        # What waits for other jobs, and what an app cannot say in one call, goes as an envelope.
        if len(bounded) > 1 or any(job.waits_for for job in order) or self._dice.random() < 0.15:
            await self._insist(partial(self._app.client.run, _put, order))
            return
        app = self._bounded if bounded.pop() else self._app
        calls = [call_of(app, job) for job in order]
        if self._dice.random() < 0.5:
            await self._insist(partial(app.aenqueue_many, calls))
        else:  # in one turn of the loop: they travel together, and come back each by itself
            await asyncio.gather(*(self._submit(app, call) for call in calls))

    async def _submit(self, app: App, call: Call[Any]) -> None:
        handle = await self._insist(partial(app.asubmit, call))
        if handle is None:
            return
        if not handle.duplicate and handle.id != call.options.get("id"):
            asked = call.options.get("id")
            raise Violation("ids", f"{asked} was enqueued, and {handle.id} was answered", handle.id)
        if handle.id not in self._board.ever:
            raise Violation("lost", f"{handle.id} was enqueued, but nobody knows it", handle.id)

    async def _insist(self, enqueue: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """The accepted job, or None if it was refused."""
        while True:
            try:
                return await enqueue()
            except BrokerAway:
                await asyncio.sleep(self._dice.uniform(0.01, 1))
            except (InvalidInput, DuplicateJob, QueueFull):
                return None


async def _put(link: Link, jobs: list[Job]) -> None:
    if len(jobs) == 1 and link.batches is not None:
        await link.batches.put(jobs[0], None)
    else:
        await link.broker.put(jobs)


def call_of(app: App, job: Job) -> Call[Any]:
    """The call that becomes this job."""
    lengths = {"ttl": job.ttl, "key_ttl": job.key_ttl, "once": job.once}
    options: dict[str, Any] = {
        name: timedelta(milliseconds=length) for name, length in lengths.items() if length is not None
    }
    if job.due is not None:
        options["at"] = datetime.fromtimestamp(job.due / 1000, UTC)
    for name in ("id", "queue", "priority", "retries", "key", "group", "on_duplicate"):
        options[name] = getattr(job, name)
    given: Using = {name: value for name, value in options.items() if value is not None}  # type: ignore[assignment]
    return app.using(**given).call(job.task, *read_script(job.payload).args)


class Watcher:
    """Waits for the end of some jobs, in one of the public ways; it must always hear of it, and soon."""

    def __init__(self, board: Board, process: Process, app: App, dice: random.Random) -> None:
        self._board, self._process, self._app, self._dice = board, process, app, dice
        self._numbers = count()

    async def run(self) -> None:
        board, dice = self._board, self._dice
        while not board.closing:
            await asyncio.sleep(dice.uniform(0.1, 3))
            if board.ids:
                await asyncio.gather(*(self._wait() for _ in range(dice.choice([1, 1, 2, 3]))))

    async def _wait(self) -> None:
        dice, loop = self._dice, asyncio.get_running_loop()
        pool = self._board.ids[-6:] if dice.random() < 0.7 else self._board.ids
        ids = list(dict.fromkeys(dice.choice(pool) for _ in range(dice.choice([1, 1, 1, 3]))))
        key = f"{self._process.name}-{next(self._numbers)}"
        wait = self._board.waits[key] = Wait(self._process, ids, loop.time())
        ways = [self._one_by_one, self._gather, self._as_completed]
        way, heard = ways[0] if len(ids) == 1 else dice.choice(ways), False
        while not heard:
            wait.since = loop.time()
            try:
                await way([self._app.job(id) for id in ids])
                heard = True
            except BrokerAway:
                await asyncio.sleep(dice.uniform(0, 0.5))
            except JobTimeout:
                heard = dice.random() < 0.2
        self._board.waits.pop(key, None)

    def _timeout(self) -> float | None:
        return self._dice.choice([None, None, None, 40.0])

    async def _one_by_one(self, jobs: Sequence[JobHandle[Any]]) -> None:
        for job in jobs:
            try:
                self._check(job, await job.aget(self._timeout()))
            except _ENDS as error:
                self._check(job, error)

    async def _gather(self, jobs: Sequence[JobHandle[Any]]) -> None:
        results = await agather(jobs, self._timeout(), return_exceptions=True)
        for job, result in zip(jobs, results, strict=True):
            self._check(job, result)

    async def _as_completed(self, jobs: Sequence[JobHandle[Any]]) -> None:
        seen = [job.id async for job in aas_completed(jobs, self._timeout())]
        if sorted(seen) != sorted({job.id for job in jobs}):
            raise Violation("watch", f"of {[job.id for job in jobs]} these are over: {seen}")

    def _check(self, job: JobHandle[Any], heard: object) -> None:
        """The result it got is the true one, unless an operator has changed the job since."""
        life = self._board.lives.get(job.id)
        if isinstance(heard, Exception) and not isinstance(heard, _ENDS):
            raise Violation("watch", f"{job.id} ended with {heard!r}", job.id)
        if life is None or life.replays or life.finished is None:
            return
        told = State.SUCCEEDED
        if isinstance(heard, Exception):
            told = {JobFailed: State.DEAD, JobCancelled: State.CANCELLED}.get(type(heard), life.state)
        elif heard != job.id:
            raise Violation("watch", f"the result of {job.id} is {heard!r}", job.id)
        if life.state is not told and life.finished < self._board.clock() - 1000:
            raise Violation("watch", f"{job.id} is {life.state}, and was told as {told}", job.id)
