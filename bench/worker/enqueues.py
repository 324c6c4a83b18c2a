"""`task.enqueue` against the bare insert and commit it comes down to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.measure import Measurement, Sample, Stopwatch
from bench.sqlite.cases import put
from bench.sqlite.script import Play, Script, play_bare, play_dray, record
from bench.sqlite.store import Supply, copy
from bench.worker.drains import BARE, DRAY, PAYLOAD, fill
from bench.worker.plan import Plan
from dray import App
from dray.codec.payload import Codecs

PUT = "put"
"""The verb alone, without the API above it."""
PENDING = 1000


class Enqueues:
    """A store with some jobs in it, to which more are added one by one or in bulk."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan, self._folder = plan, folder
        folder.mkdir()
        self._base = folder / "base.db"
        fill(self._base, "noop", PENDING)

    def measurements(self) -> list[Measurement]:
        single, bulk = self._plan.singles, self._plan.singles * 10
        return [
            *self._of("enqueue, blocking", single, 1, self._blocking),
            *self._of("enqueue, awaited", single, 1, self._awaited),
            *self._of("enqueue, 100 at once awaited", bulk, 100, self._concurrent),
            *self._of("enqueue_many × 1000", bulk, 1000, self._many),
        ]

    def _of(
        self, name: str, count: int, batch: int, dray: Callable[[int, int, int], Sample]
    ) -> list[Measurement]:
        script = self._script(count, batch)
        work: dict[str, Callable[[int], Sample]] = {
            BARE: lambda _: play_bare(copy(self._base, self._folder / "bare.db"), script),
            PUT: lambda _: play_dray(copy(self._base, self._folder / "put.db"), script),
            DRAY: partial(dray, count, batch),
        }
        return [Measurement(name, {"jobs": count}, subject, run) for subject, run in work.items()]

    def _script(self, count: int, batch: int) -> Script:
        payload = Codecs().encode_call((PAYLOAD,), {})

        def work(play: Play, supply: Supply) -> int:
            return put(play, supply, count, batch, {"task": "noop", "priority": 5, "payload": payload})

        return record(copy(self._base, self._folder / "recorded.db"), Supply(1), [(True, work)])

    def _app(self) -> App:
        path = copy(self._base, self._folder / "dray.db")
        app = App("bench", namespace="dray", broker=f"sqlite:///{path}")

        @app.task
        async def noop(payload: str) -> None: ...

        return app

    def _blocking(self, count: int, batch: int, round: int) -> Sample:
        app, watch = self._app(), Stopwatch()
        noop = app.tasks["noop"]
        noop.enqueue(PAYLOAD)
        with watch.running():
            for _ in range(count):
                noop.enqueue(PAYLOAD)
        app.close()
        return Sample(watch.seconds, count, watch.cpu)

    def _awaited(self, count: int, batch: int, round: int) -> Sample:
        return self._on_loop(count, 1)

    def _concurrent(self, count: int, batch: int, round: int) -> Sample:
        return self._on_loop(count, batch)

    def _on_loop(self, count: int, at_once: int) -> Sample:
        app, watch = self._app(), Stopwatch()
        noop = app.tasks["noop"]

        async def main() -> None:
            await noop.aenqueue(PAYLOAD)
            with watch.running():
                for _ in range(count // at_once):
                    if at_once == 1:
                        await noop.aenqueue(PAYLOAD)
                    else:
                        await asyncio.gather(*[noop.aenqueue(PAYLOAD) for _ in range(at_once)])
            app.close()

        asyncio.run(main())
        return Sample(watch.seconds, count, watch.cpu)

    def _many(self, count: int, batch: int, round: int) -> Sample:
        app, watch = self._app(), Stopwatch()
        noop = app.tasks["noop"]
        noop.enqueue(PAYLOAD)
        with watch.running():
            for first in range(0, count, batch):
                app.enqueue_many(noop.call(PAYLOAD) for _ in range(min(batch, count - first)))
        app.close()
        return Sample(watch.seconds, count, watch.cpu)
