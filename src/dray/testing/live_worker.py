"""A worker that runs by itself beside a test: the real executor in a thread, on the real clock."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType
from typing import Final, Self

from dray.app import App
from dray.errors import DrayError
from dray.testing.crew import Crew
from dray.testing.store import Clock, Store
from dray.testing.ticking import Ticking

GRACE: Final = 2.0
"""Seconds that running jobs get to finish when the test is over; then they are told to stop."""
PATIENCE: Final = 10.0
"""Seconds more until a worker that has not stopped is an error."""
_ENDLESS: Final = 1 << 62


class LiveWorker:
    """Runs from `with` to its end. Stopping it raises if a job cannot be stopped."""

    def __init__(self, app: App, store: Store, clock: Clock, *, isolate: bool) -> None:
        self._app, self._store, self._clock, self._isolate = app, store, clock, isolate
        self._crews: list[Crew] = []
        """The last one works; those before it only finish what they have."""
        self._thread = threading.Thread(target=self._serve, name="dray worker", daemon=True)
        self._started = threading.Event()
        self._grace = GRACE
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news: asyncio.Event | None = None
        self._stopping = False
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        if self._store.gate.live:
            raise DrayError("a worker runs here already")
        self._store.gate.live = True
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            self._end()
            raise self._error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self, grace: float = GRACE) -> None:
        """Let running jobs finish for `grace` seconds, tell the rest to stop, and end. Twice does no harm."""
        if not self._store.gate.live:
            return
        self._grace = grace
        self._stopping = True
        self._changed()
        self._thread.join(grace + PATIENCE)
        self._end()
        if self._thread.is_alive():
            raise DrayError(f"the worker of this test did not stop within {grace + PATIENCE:g} s")
        if self._error is not None:
            raise self._error
        left = [live for crew in self._crews for live in crew.lives.values()]
        if left:
            names = ", ".join(f"{live.task.name} (job {live.taken.job.id})" for live in left)
            raise DrayError(f"the worker of this test could not stop: in a thread still runs {names}")

    def _end(self) -> None:
        self._store.close_gate()
        self._store.gate.live = False
        self._clock.hold()

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
        listeners = self._store.gate.listeners
        try:
            await self._renew_crew()
            listeners.append(self._changed)
            self._clock.let_go()
            self._store.open_gate(_ENDLESS)
            self._started.set()
            while not self._stopping:
                await self._news.wait()
                self._news.clear()
                if not self._crews[-1].current and not self._stopping:
                    await self._renew_crew()
        finally:
            upkeep.cancel()
            if self._changed in listeners:
                listeners.remove(self._changed)
            await asyncio.gather(*(crew.stop(round(self._grace * 1000)) for crew in self._crews))

    async def _renew_crew(self) -> None:
        """An executor knows the tasks there were when it began; a test may well add some."""
        crew = Crew(self._app, self._store, self._clock, isolate=self._isolate, live=True)
        await crew.start()
        for old in self._crews:
            old.take_no_more()
        self._crews.append(crew)

    def _changed(self) -> None:
        """In any thread."""
        if self._loop is not None and self._news is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._news.set)

    async def _sweep(self) -> None:
        """What a supervisor does beside its executors."""
        ticking = Ticking(self._app, self._store, self._clock)
        while True:
            await asyncio.sleep(self._app.settings.sweep_interval / 1000)
            ticking.reconcile()
            await ticking.put_due()
            await self._store.sweep()
