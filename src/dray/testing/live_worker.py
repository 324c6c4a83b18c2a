"""A worker beside a test: the real executor in a thread, on the real clock."""

from __future__ import annotations

import asyncio
import threading
from typing import Final, Self

from dray.app import App
from dray.errors import DrayError
from dray.testing.in_process_worker import InProcessWorker
from dray.testing.loops import call_soon
from dray.testing.memory_store import Clock, HarnessStore
from dray.testing.ticker import HarnessScheduler

GRACE: Final = 2.0
"""Seconds that running jobs get to finish when the test is over; then they are stopped."""
STOP_TIMEOUT: Final = 10.0
"""Seconds more until a worker that has not stopped is an error."""
_ENDLESS: Final = 1 << 62


class LiveWorker:
    """Runs inside `with`. The end raises if a job cannot be stopped."""

    def __init__(self, app: App, store: HarnessStore, clock: Clock, *, isolate: bool) -> None:
        self._app, self._store, self._clock, self._isolate = app, store, clock, isolate
        self._workers: list[InProcessWorker] = []
        """The last one takes jobs; those before it only finish theirs."""
        self._thread = threading.Thread(target=self._serve, name="dray worker", daemon=True)
        self._started = threading.Event()
        self._grace = GRACE
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news: asyncio.Event | None = None
        self._stopping = False
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        if self._store.control.live:
            raise DrayError("a worker runs here already")
        self._store.control.live = True
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            self._end()
            raise self._error
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self, grace: float = GRACE) -> None:
        """Let running jobs finish for `grace` seconds, stop the rest, and end. May be called twice."""
        if not self._store.control.live:
            return
        self._grace = grace
        self._stopping = True
        self._changed()
        self._thread.join(grace + STOP_TIMEOUT)
        self._end()
        if self._thread.is_alive():
            raise DrayError(f"the worker of this test did not stop within {grace + STOP_TIMEOUT:g} s")
        if self._error is not None:
            raise self._error
        left = [live for worker in self._workers for live in worker.lives.values()]
        if left:
            names = ", ".join(f"{live.task.name} (job {live.taken.job.id})" for live in left)
            raise DrayError(f"the worker of this test could not stop: in a thread still runs {names}")

    def _end(self) -> None:
        self._store.stop_runs()
        self._store.control.live = False
        self._clock.stop()

    # in the thread

    def _serve(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self._error = error
        finally:
            self._started.set()

    async def _main(self) -> None:
        self._loop, self._news = asyncio.get_running_loop(), asyncio.Event()
        upkeep = asyncio.create_task(self._sweep())
        listeners = self._store.control.listeners
        try:
            await self._renew_worker()
            listeners.append(self._changed)
            self._clock.start()
            self._store.allow_runs(_ENDLESS)
            self._started.set()
            while not self._stopping:
                await self._news.wait()
                self._news.clear()
                if not self._workers[-1].current and not self._stopping:
                    await self._renew_worker()
        finally:
            upkeep.cancel()
            if self._changed in listeners:
                listeners.remove(self._changed)
            await asyncio.gather(*(worker.stop(round(self._grace * 1000)) for worker in self._workers))

    async def _renew_worker(self) -> None:
        """Start an executor that knows the app's present tasks; a test may add some at any time."""
        worker = InProcessWorker(self._app, self._store, self._clock, isolate=self._isolate, live=True)
        await worker.start()
        for old in self._workers:
            old.take_no_more()
        self._workers.append(worker)

    def _changed(self) -> None:
        """Called in any thread."""
        if self._loop is not None and self._news is not None:
            call_soon(self._loop, self._news.set)

    async def _sweep(self) -> None:
        """The duties of a supervisor: schedules and sweeps."""
        scheduler = HarnessScheduler(self._app, self._store, self._clock)
        while True:
            await asyncio.sleep(self._app.settings.sweep_interval / 1000)
            scheduler.reconcile()
            await scheduler.put_due()
            await self._store.sweep()
