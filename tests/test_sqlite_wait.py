"""Sleepers of the embedded broker: who is woken, and that nobody's place is lost."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from dray.broker import Broker, connect
from dray.broker.verbs import Beat, Filter, Interest
from dray.job import Job, Outcome, OutcomeKind

ROUNDS = 40
POLL = "1m"
"""So long that a ring which gets lost shows."""


async def work(broker: Broker, rounds: int) -> None:
    """Take and settle one job after another, asleep in between."""
    await broker.renew([Beat("s", 600_000)])
    request = 0
    while rounds:
        request += 1
        taken = await broker.take("s", request, ["default"], Filter(), 10)
        outcomes = [Outcome(id=one.job.id, run=one.run, kind=OutcomeKind.SUCCEEDED) for one in taken]
        if outcomes:
            await broker.settle("s", outcomes)
            rounds -= len(outcomes)
        else:
            await broker.wait(Interest(queues=("default",), session="s"), 120)


async def ask(broker: Broker, rounds: int) -> list[float]:
    """Put one job after another and wait for its end; how long each took."""
    took = []
    for n in range(rounds):
        began = time.monotonic()
        await broker.put([Job(id=f"j{n}", task="t")])
        (record,) = await broker.get([f"j{n}"], watch="w")
        if record is not None and not record.state.finished:
            wake = await broker.wait(Interest(watcher="w"), 120)
            assert f"j{n}" in wake.finished
        took.append(time.monotonic() - began)
    return took


def test_a_sleeper_that_gets_up_leaves_the_places_of_others_alone(tmp_path: Path) -> None:
    async def main() -> list[float]:
        url = f"sqlite:///{tmp_path}/jobs.db?poll={POLL}"
        worker, client = await connect(url), await connect(url)
        try:
            _, took = await asyncio.gather(work(worker, ROUNDS), ask(client, ROUNDS))
            return took
        finally:
            await worker.close()
            await client.close()

    took = asyncio.run(asyncio.wait_for(main(), 280))
    assert max(took) < 30, took
