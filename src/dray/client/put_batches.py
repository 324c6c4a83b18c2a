"""Batches puts made in one turn of an event loop; a lone put goes out directly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from dray.broker.verbs import PUT_STEP, Accepted
from dray.job import Job
from dray.options import Durability

PutChecked = Callable[..., Coroutine[Any, Any, list[Accepted]]]
"""`put_checked(jobs, durability=…)` of a broker: the jobs are valid."""
_Pending = tuple[Job, asyncio.Future[Accepted]]


class PutBatches:
    """The puts of one event loop that have not been sent yet, by durability."""

    def __init__(self, put: PutChecked) -> None:
        self._put = put
        self._pending: dict[Durability | None, list[_Pending]] = {}
        self._sending: set[asyncio.Task[None]] = set()

    async def put(self, job: Job, durability: Durability | None) -> Accepted:
        """The first put of a turn waits for the next turn, and sends all that were added meanwhile."""
        if job.waits_for:
            return (await self._put((job,), durability=durability))[0]
        batch = self._pending.get(durability)
        if batch is None:
            return await self._put_first(job, durability)
        future: asyncio.Future[Accepted] = asyncio.get_running_loop().create_future()
        batch.append((job, future))
        return await future

    async def _put_first(self, job: Job, durability: Durability | None) -> Accepted:
        others = self._pending[durability] = []
        try:
            await asyncio.sleep(0)
        except BaseException:  # this caller was cancelled, the others were not
            self._dispatch(durability)
            raise
        if not others:
            del self._pending[durability]
            return (await self._put((job,), durability=durability))[0]
        future: asyncio.Future[Accepted] = asyncio.get_running_loop().create_future()
        others.insert(0, (job, future))
        self._dispatch(durability)
        return await future

    def _dispatch(self, durability: Durability | None) -> None:
        # The job of a caller that was cancelled before the batch went out is not sent.
        waiting = [pending for pending in self._pending.pop(durability) if not pending[1].cancelled()]
        for first in range(0, len(waiting), PUT_STEP):
            batch = waiting[first : first + PUT_STEP]
            task = asyncio.get_running_loop().create_task(self._send(batch, durability))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send(self, batch: list[_Pending], durability: Durability | None) -> None:
        try:
            replies = await self._put([job for job, _ in batch], durability=durability)
        except BaseException as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error) if isinstance(error, Exception) else future.cancel()
            if not isinstance(error, Exception):
                raise
            return
        for (_, future), reply in zip(batch, replies, strict=True):
            if not future.done():
                future.set_result(reply)
