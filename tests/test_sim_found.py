"""What the simulation found in executor and client, each as small as it gets."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from sim import run
from workshop import on_loop_only

from dray.app import App
from dray.broker.memory import MemoryBroker
from dray.broker.verbs import Beat, Broker, Filter
from dray.context import Context
from dray.errors import BrokerAway
from dray.job import Outcome, OutcomeKind
from dray.worker.executor.executor import Executor


def store() -> MemoryBroker:
    loop = asyncio.get_running_loop()
    return MemoryBroker("sim", clock=lambda: 1_000_000 + int(loop.time() * 1000))


def make_app(broker: Broker) -> App:
    async def open(blocking: bool) -> Any:
        return broker

    app = App("sim", broker="memory://")
    app.client.open = open
    return app


class Wrapped:
    """A broker in which one thing goes wrong."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)


def test_a_waiter_whose_wait_broke_off_with_the_word_in_it_hears_soon_all_the_same() -> None:
    class Losing(Wrapped):
        lost = False

        async def wait(self, *args: Any) -> Any:
            wake = await self._broker.wait(*args)
            if not self.lost:
                self.lost = True
                raise BrokerAway("no reply")
            return wake

    async def main() -> float:
        broker = store()
        app = make_app(Losing(broker))
        job = await app.aenqueue("work")
        waiting = asyncio.create_task(job.aget())
        await asyncio.sleep(1)
        await broker.renew([Beat("s", 60_000)])
        (taken,) = await broker.take("s", 1, ["default"], Filter(), 1)
        result = app.codecs.encode_value(None)
        outcome = Outcome(id=job.id, run=taken.run, kind=OutcomeKind.SUCCEEDED, result=result)
        await broker.settle("s", [outcome])
        await waiting
        return asyncio.get_running_loop().time()

    assert run(main()) < 3.0, "not only when it looks for itself, after half a minute"


def execute(task: Callable[..., Any], broker: Any, seconds: float, **named: Any) -> Any:
    async def main() -> None:
        inner = store()
        wrapped = broker(inner)
        app = make_app(wrapped)
        app.task(task)
        executor = Executor(
            app,
            wrapped,
            settings=app.settings,
            session_name="w",
            runners=on_loop_only,
            clock=lambda: 1_000_000 + int(asyncio.get_running_loop().time() * 1000),
            random=random.Random(1).random,
            **named,
        )
        running = asyncio.create_task(executor.run())
        await app.aenqueue(task.__name__)
        await asyncio.sleep(seconds)
        executor.stop(1000)
        await running

    run(main())


def test_what_a_run_says_last_goes_out_before_its_end_and_nothing_after_it() -> None:
    told: list[str] = []

    class Slow(Wrapped):
        async def renew(self, beats: Any, **named: Any) -> Any:
            told.extend(f"progress {report.progress.done:g}" for beat in beats for report in beat.progress)
            await asyncio.sleep(0.5)
            return await self._broker.renew(beats, **named)

        async def settle(self, *args: Any, **named: Any) -> Any:
            told.append("settled")
            return await self._broker.settle(*args, **named)

    async def work(ctx: Context) -> None:
        ctx.progress(1)
        await asyncio.sleep(0.2)  # the first word is on its way for longer
        ctx.progress(2)

    execute(work, Slow, 10)
    assert told == ["progress 1", "progress 2", "settled"]


def test_a_run_of_a_lost_session_reports_nothing_under_the_new_one() -> None:
    told: list[str] = []

    class Forgetful(Wrapped):
        async def renew(self, beats: Any, **named: Any) -> Any:
            told.extend(
                f"{beat.session} {report.progress.note}" for beat in beats for report in beat.progress
            )
            if told and beats[0].session == "w.1":
                await self._broker.release("w.1")
            return await self._broker.renew(beats, **named)

    async def work(ctx: Context) -> None:
        ctx.progress(0, note=f"run {ctx.run} begins")
        try:
            await asyncio.sleep(3600)
        finally:
            ctx.progress(1, note=f"run {ctx.run} ends")

    execute(work, Forgetful, 30)
    assert told == ["w.1 run 1 begins", "w.2 run 2 begins", "w.2 run 2 ends"]
