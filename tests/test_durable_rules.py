"""The rest of the table of rules for durable jobs: at_most_once, undo, cancel, limits, retention."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from dray import (
    App,
    Context,
    InvalidInput,
    JobCancelled,
    JobFailed,
    MailboxFull,
    State,
    StepUncertain,
    TooLarge,
)
from dray.broker.durable import MAILBOX_MAX
from dray.durable.entries import Intent, pack_entry
from dray.testing.harness import Harness
from dray.worker.run.durable_run import DurableRun

EFFECTS: list[Any] = []


@pytest.fixture(autouse=True)
def clean() -> None:
    EFFECTS.clear()


@pytest.fixture
def app() -> App:
    return App("rules", broker="memory://", result_ttl="60d", done_ttl="60d")


def charge(value: int = 1) -> int:
    EFFECTS.append("charge")
    return value


def refund(value: int) -> None:
    EFFECTS.append("refund")


def bad_undo(value: int) -> None:
    EFFECTS.append("bad undo")
    raise OSError("bank closed")


def entry_of(t: Harness, id: str) -> Any:
    return t._store._store.jobs[id]


# at_most_once


def test_a_step_whose_end_is_unknown_is_not_run_again(app: App) -> None:
    @app.task
    async def order(ctx: Context) -> str:
        await ctx.sleep("1h")
        try:
            await ctx.step(charge, at_most_once=True)
        except StepUncertain as error:
            return f"uncertain: {error.step}"
        return "charged"

    with app.testing() as t:
        done, crashed = order.enqueue(), order.enqueue()
        t.drain()
        # As a run leaves it that died in the middle of the step.
        entry_of(t, crashed.id).log.append(pack_entry(Intent(id="charge", call=2, at=1, run=1)))
        t.advance("1h")
        assert done.get(timeout=0) == "charged"
        assert crashed.get(timeout=0) == "uncertain: charge"
        assert EFFECTS == ["charge"]
        crashed.retry()
        t.drain()
        assert crashed.get(timeout=0) == "charged"


def test_a_step_at_most_once_is_not_retried_unless_asked_for(app: App) -> None:
    def broken() -> None:
        EFFECTS.append("try")
        raise OSError

    @app.task
    async def order(ctx: Context, retries: int | None) -> None:
        await ctx.step(broken, at_most_once=True, retries=retries, backoff="fixed:10s")

    with app.testing() as t:
        order.enqueue(None)
        t.advance("1m")
        assert EFFECTS == ["try"]
        order.enqueue(2)
        t.advance("1m")
        assert EFFECTS == ["try"] * 4


# undo


def test_a_failed_undo_leaves_both_reasons_and_the_others_run(app: App) -> None:
    @app.task(retries=0)
    async def order(ctx: Context) -> None:
        await ctx.step(charge, undo=refund)
        await ctx.step(charge, undo=bad_undo, undo_retries=1)
        raise ValueError("no stock")

    with app.testing() as t:
        job = order.enqueue()
        t.drain()
        assert job.status() is State.RETRYING
        assert job.why().code == "step_retry"
        with pytest.raises(InvalidInput, match="undone"):
            check_deleted(app, job.id)
        t.advance("1h")
        assert job.status() is State.DEAD
        assert EFFECTS == ["charge", "charge", "bad undo", "bad undo", "refund"]
        reason = job.info().reason or ""
        assert "no stock" in reason
        assert "bank closed" in reason


def check_deleted(app: App, id: str) -> None:
    refused = app.jobs.delete([id]).refused
    if refused:
        raise InvalidInput("id", id, refused[id])


def test_a_forced_cancel_skips_the_undos(app: App) -> None:
    @app.task
    async def order(ctx: Context) -> None:
        await ctx.step(charge, undo=refund)
        await ctx.sleep("1d")

    with app.testing() as t:
        job = order.enqueue()
        t.drain()
        job.cancel(force=True)
        t.drain()
        assert job.status() is State.CANCELLED
        assert EFFECTS == ["charge"]


def test_steps_that_run_beside_one_that_fails_are_remembered_and_undone(app: App) -> None:
    async def slow() -> int:
        await asyncio.sleep(0.1)
        EFFECTS.append("slow")
        return 5

    async def fail() -> None:
        raise OSError("no")

    @app.task
    async def order(ctx: Context) -> None:
        await asyncio.gather(ctx.step(fail, retries=0), ctx.step(slow, undo=refund))

    with app.testing() as t:
        job = order.enqueue()
        t.drain()
        assert job.status() is State.DEAD
        assert EFFECTS == ["slow", "refund"]


# suspension


def test_a_run_suspends_only_when_every_operation_waits(app: App) -> None:
    async def slow() -> str:
        await asyncio.sleep(0.2)
        EFFECTS.append("slow")
        return "done"

    async def branch(ctx: Context) -> str:
        await asyncio.sleep(0)
        return await ctx.step(slow)

    @app.task
    async def order(ctx: Context) -> Any:
        return await asyncio.gather(ctx.sleep("1d"), branch(ctx))

    @app.task
    async def grouped(ctx: Context) -> Any:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.sleep("1d"))
            done = group.create_task(ctx.step(slow))
        return done.result()

    with app.testing() as t:
        jobs = [order.enqueue(), grouped.enqueue()]
        t.drain()
        assert EFFECTS == ["slow", "slow"]
        t.advance("1d")
        assert [job.get(timeout=0) for job in jobs] == [[None, "done"], "done"]
        assert EFFECTS == ["slow", "slow"]


def test_finally_and_with_run_at_each_suspension(app: App) -> None:
    @app.task
    async def order(ctx: Context) -> None:
        try:
            await ctx.sleep("1d")
        finally:
            EFFECTS.append("finally")

    with app.testing() as t:
        order.enqueue()
        t.drain()
        assert EFFECTS == ["finally"]
        t.advance("1d")
        assert EFFECTS == ["finally", "finally"]


def test_a_short_sleep_keeps_the_run(app: App) -> None:
    @app.task
    async def order(ctx: Context) -> int:
        await ctx.sleep(0.05)
        return ctx.run

    with app.testing() as t:
        job = order.enqueue()
        t.drain()
        assert job.get(timeout=0) == 1
        assert job.info().log_entries == 0


def test_the_timeout_counts_running_time_and_the_deadline_all(app: App) -> None:
    @app.task(timeout="5s")
    async def order(ctx: Context) -> str:
        await ctx.sleep("1h")
        return "done"

    with app.testing() as t:
        patient, hasty = order.enqueue(), order.using(deadline="30m").enqueue()
        t.drain()
        t.advance("1h")
        assert patient.get(timeout=0) == "done"
        with pytest.raises(JobFailed, match="deadline"):
            hasty.get(timeout=0)


def test_a_sleeping_job_keeps_its_key(app: App) -> None:
    @app.task
    async def order(ctx: Context) -> None:
        await ctx.sleep("1h")

    with app.testing() as t:
        job = order.using(key="k").enqueue()
        t.drain()
        assert order.using(key="k").enqueue().id == job.id


def test_errors_outside_of_steps_use_up_attempts_and_keep_values(app: App) -> None:
    @app.task(retries=1)
    async def order(ctx: Context) -> None:
        await ctx.step(charge)
        raise ValueError(f"attempt {ctx.attempt}")

    with app.testing() as t:
        job = order.enqueue()
        t.advance("1h")
        with pytest.raises(JobFailed, match="attempt 2"):
            job.get(timeout=0)
        assert EFFECTS == ["charge"]


# events and children


def test_a_mailbox_has_a_limit(app: App) -> None:
    @app.task
    async def order(ctx: Context) -> None:
        await ctx.event("go")

    with app.testing():
        job = order.enqueue()
        for _ in range(MAILBOX_MAX):
            job.send("go")
        with pytest.raises(MailboxFull, match="1,000 events"):
            job.send("go")
        job.send("other")
        with pytest.raises(TooLarge):
            job.send("other", "x" * 300_000)
        with pytest.raises(InvalidInput, match="event"):
            job.send("no good name")


def test_an_event_arrives_as_its_type(app: App) -> None:
    @app.task
    async def order(ctx: Context) -> str:
        day = await ctx.event("day", type=frozenset)
        return type(day).__name__

    with app.testing() as t:
        job = order.enqueue()
        job.send("day", [1, 2])
        t.drain()
        assert job.get(timeout=0) == "frozenset"


def test_a_child_that_dies_fails_the_parent_and_both_are_retried(app: App) -> None:
    @app.task(retries=0)
    def fragile() -> str:
        EFFECTS.append("fragile")
        if len(EFFECTS) == 1:
            raise OSError("broken")
        return "whole"

    @app.task
    async def order(ctx: Context) -> str:
        return await ctx.call(fragile.call())

    with app.testing() as t:
        job = order.enqueue()
        t.drain()
        with pytest.raises(JobFailed, match="broken"):
            job.get(timeout=0)
        assert job.info().attempt == 1
        job.retry()
        t.drain()
        assert job.get(timeout=0) == "whole"


def test_cancel_goes_down_to_children(app: App) -> None:
    @app.task
    async def nap(ctx: Context) -> None:
        await ctx.sleep("1d")

    @app.task
    async def order(ctx: Context) -> None:
        await ctx.call(nap.call())

    with app.testing() as t:
        job = order.enqueue()
        t.drain()
        (child,) = [info for info in t.enqueued() if info.task == "nap"]
        job.cancel()
        t.drain()
        with pytest.raises(JobCancelled):
            app.job(child.id).get(timeout=0)


def test_a_large_result_of_a_child_stays_with_the_child(app: App) -> None:
    @app.task(result_ttl="1s")
    def big() -> bytes:
        EFFECTS.append("big")
        return b"x" * 500_000

    @app.task
    async def order(ctx: Context) -> int:
        data = await ctx.call(big.call())
        await ctx.sleep("1d")
        return len(data)

    with app.testing() as t:
        job = order.enqueue()
        t.drain()
        t.advance("1d")
        assert job.get(timeout=0) == 500_000
        assert EFFECTS == ["big"]


# limits and helpers


def test_ten_thousand_steps_are_too_many_and_the_error_names_one(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dray.durable.journal.MEMOS_MAX", 40)

    async def nothing() -> None: ...

    @app.task
    async def order(ctx: Context) -> None:
        for _ in range(100):
            await ctx.step(nothing)

    with app.testing() as t:
        job = order.enqueue()
        t.drain()
        with pytest.raises(JobFailed, match=r"step 'nothing#\d+'"):
            job.get(timeout=0)
        assert job.info().attempt == 1


def test_the_log_is_silent_while_steps_are_replayed(app: App, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    @app.task
    async def order(ctx: Context) -> None:
        ctx.log.info("begins")
        await ctx.step(charge)
        ctx.log.info("charged")
        await ctx.sleep("1d")
        ctx.log.info("slept")

    with app.testing() as t:
        order.enqueue()
        t.drain()
        t.advance("1d")
        messages = [record.message for record in caplog.records if record.name == "dray.task.order"]
        assert messages == ["begins", "charged", "slept"]


def test_a_job_without_steps_pays_nothing(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("it has no steps")

    monkeypatch.setattr(DurableRun, "__init__", refuse)

    @app.task
    async def order(ctx: Context) -> int:
        ctx.log.info("hello")
        return ctx.attempt

    with app.testing() as t:
        job = order.enqueue()
        t.drain()
        assert job.get(timeout=0) == 1
        assert entry_of(t, job.id).log == []


def test_a_task_with_steps_can_be_called_directly(app: App) -> None:
    @app.task
    async def order(ctx: Context, id: int) -> int:
        await ctx.sleep(0)
        assert ctx.changed("x")
        return await ctx.step(charge, id) + (ctx.random() < 1)

    @app.task
    def plain(ctx: Context, id: int) -> int:
        return ctx.blocking.step(charge, id)

    assert asyncio.run(order(4)) == 5
    assert plain(4) == 4


def test_first_wants_operations_and_lets_no_other_in(app: App) -> None:
    async def other() -> None: ...

    @app.task
    async def order(ctx: Context) -> None:
        stranger = other()
        try:
            await ctx.first(stranger)
        finally:
            stranger.close()

    with app.testing() as t:
        job = order.enqueue()
        t.drain()
        t.advance("1h")
        with pytest.raises(JobFailed, match="operations of ctx"):
            job.get(timeout=0)


def test_a_running_step_is_interrupted_by_a_cancel_and_nothing_waits(app: App) -> None:
    async def endless() -> None:
        await asyncio.sleep(3600)

    @app.task(timeout="0.2s", retries=0)
    async def order(ctx: Context) -> None:
        await ctx.step(endless)

    with app.testing() as t:
        job = order.enqueue()
        t.drain()
        with pytest.raises(JobFailed, match="timeout"):
            job.get(timeout=0)
