"""`get(timeout=0)` reads once: what has ended is returned, on every broker, whoever else waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from by_hand import Hand, Say
from redis_server import need, running

from dray import App, JobFailed, JobTimeout, NoResult, gather

pytest_plugins = ["shop"]


@pytest.fixture(params=["memory", "sqlite", "valkey"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "memory":
        yield "memory://"
    elif request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/jobs.db"
    else:
        need("valkey")
        with running("valkey", tmp_path / "valkey") as server:
            yield f"redis://127.0.0.1:{server.port}/0"


@pytest.fixture
def say(request: pytest.FixtureRequest, app: App) -> Iterator[Say]:
    if request.param == "blocking":
        yield Say(None)
        return
    with asyncio.Runner() as runner:
        yield Say(runner)
        runner.run(_close(app))


async def _close(app: App) -> None:
    await (await app.client.loop_link()).broker.close()


@pytest.mark.parametrize("say", ["blocking", "awaited"], indirect=True)
def test_what_has_ended_is_returned_without_any_time_to_wait(app: App, say: Say, hand: Hand) -> None:
    jobs = [say(app.enqueue, "add", n) for n in range(20)]
    for job in jobs[:3]:
        with pytest.raises(JobTimeout, match="ready"):  # watched from here on: word of the end is sent
            say(job.get, timeout=0)
    for n, taken in enumerate(hand.take()):
        if n == 19:
            hand.die(taken)
        else:
            hand.succeed(taken, n)
    assert [say(job.get, timeout=0) for job in jobs[:19]] == list(range(19))
    assert [say(app.job(job.id).get, timeout=0) for job in jobs[:19]] == list(range(19))
    assert say(gather, jobs[:19], timeout=0) == list(range(19))
    with pytest.raises(JobFailed):
        say(jobs[19].get, timeout=0)


def test_it_is_returned_also_while_others_wait_for_the_same_jobs(app: App, hand: Hand) -> None:
    async def scene() -> None:
        jobs = [await app.aenqueue("add", n) for n in range(20)]
        waiting = [asyncio.create_task(job.aget(timeout=60)) for job in jobs]
        await asyncio.sleep(0.01)
        for n, taken in enumerate(hand.take()):
            hand.succeed(taken, n)
            if n % 2:
                waiting[n].cancel()
            assert await app.job(taken.job.id).aget(timeout=0) == n
        await asyncio.gather(*waiting, return_exceptions=True)
        await _close(app)

    with asyncio.Runner() as runner:
        runner.run(scene())


@pytest.mark.parametrize("say", ["blocking", "awaited"], indirect=True)
def test_a_job_that_kept_no_result_is_told_from_one_that_returned_none(
    app: App, say: Say, hand: Hand
) -> None:
    jobs = [say(app.enqueue, "add", n) for n in range(2)]
    for job in jobs:
        with pytest.raises(JobTimeout):
            say(job.get, timeout=0)
    off, none = hand.take()
    hand.settle(off, "succeeded")
    hand.succeed(none, None)
    with pytest.raises(NoResult, match="where it ran"):
        say(app.job(off.job.id).get, timeout=10)
    assert say(app.job(none.job.id).get, timeout=10) is None
