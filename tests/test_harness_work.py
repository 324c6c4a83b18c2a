"""`advance()` costs the same for each step, however many steps came before: work is counted, not timed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from dray import App
from dray.broker.memory import MemoryBroker
from dray.broker.verbs import Beat, Interest
from dray.job import Job


class Work:
    """Counts what event loops do: each step of a task and each callback."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps = 0
        run = asyncio.Handle._run

        def counted(handle: asyncio.Handle) -> None:
            self.steps += 1
            run(handle)

        monkeypatch.setattr(asyncio.Handle, "_run", counted)

    def during(self, work: Callable[[], object]) -> int:
        before = self.steps
        work()
        return self.steps - before


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    return Work(monkeypatch)


def delayed_jobs(app: App, count: int, work: Work) -> int:
    with app.testing() as t:
        app.enqueue_many([app.tasks["nothing"].using(delay=place + 1).call() for place in range(count)])
        steps = work.during(lambda: t.advance(count))
        assert t.enqueued() == []
    return steps


def ticks(app: App, count: int, work: Work) -> int:
    with app.testing() as t:
        ended: list[object] = []
        steps = work.during(lambda: ended.extend(t.advance(10 * count)))
        assert len(ended) == count
    return steps


@pytest.mark.parametrize("scenario", [delayed_jobs, ticks])
@pytest.mark.parametrize("form", ["plain", "async"])
def test_four_times_the_steps_are_about_four_times_the_work(
    scenario: Callable[[App, int, Work], int], form: str, work: Work
) -> None:
    app = App("shop", broker="memory://")
    if form == "plain":

        @app.task(name="nothing")
        def nothing() -> None: ...
    else:

        @app.task(name="nothing")
        async def anothing() -> None: ...

    if scenario is ticks:
        app.every("10s")(app.tasks["nothing"])
    few, many = scenario(app, 50, work), scenario(app, 200, work)
    assert many < 6 * few, "squared it would be sixteen times as much"
    assert many / 200 < 40, "steps of the event loop for each job"


@pytest.mark.parametrize("turns", range(6))
def test_a_wait_that_is_cancelled_just_as_it_is_woken_ends(turns: int) -> None:
    async def main() -> None:
        broker = MemoryBroker()
        await broker.renew([Beat("s", 60_000)])
        waiting = asyncio.create_task(broker.wait(Interest(session="s"), 60))
        await asyncio.sleep(0.01)
        await broker.put([Job(id="a", task="t", payload=b"")])  # wakes all waits, and is no news to this one
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting], timeout=5)
        assert waiting.cancelled()

    asyncio.run(main())
