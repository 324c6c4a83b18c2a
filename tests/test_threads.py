"""Persistent threads: batches, blocking jobs, and interrupts that hit nothing but what they are meant for."""

from __future__ import annotations

import asyncio
import contextvars
import os
import random
import threading
import time
from functools import partial
from typing import Any

import pytest
from workshop import Ends, judge_of, live_of, run, until

from dray.app import App
from dray.context import Context, current
from dray.job import Outcome, OutcomeKind
from dray.worker.run.run_state import RunState, StopReason
from dray.worker.run.threads import Threads


@pytest.fixture
def app() -> App:
    return App("t", broker="memory://")


async def results(app: App, lives: list[RunState], threads: Threads | None = None) -> list[Any]:
    pool, ends = threads or Threads(judge_of(app)), Ends()
    for live in lives:
        pool.start(live, ends)
    outcomes = [await ends.of(live) for live in lives]
    if threads is None:
        pool.close()
    return [value_of(app, outcome) for outcome in outcomes]


def value_of(app: App, outcome: Outcome) -> Any:
    assert outcome.result is not None, outcome
    return app.codecs.decode_value(outcome.result)


def test_a_plain_function_runs_in_a_thread_that_bears_its_tasks_name(app: App) -> None:
    @app.task
    def who() -> tuple[str, int]:
        return threading.current_thread().name, threading.get_ident()

    ((name, ident),) = run(results(app, [live_of(app, "who")]))
    assert name == "dray who"
    assert ident != threading.get_ident()


def test_many_short_jobs_need_few_threads_and_few_turns_of_the_loop(app: App) -> None:
    @app.task
    def who(n: int) -> tuple[int, int]:
        return n, threading.get_ident()

    async def main() -> tuple[list[Any], int]:
        threads = Threads(judge_of(app))
        turns = 0
        collect = threads._collect

        def counted() -> None:
            nonlocal turns
            turns += 1
            collect()

        threads._collect = counted  # type: ignore[method-assign]
        found = await results(app, [live_of(app, "who", n) for n in range(2000)], threads)
        threads.close()
        return found, turns

    found, turns = run(main())
    assert [n for n, _ in found] == list(range(2000))
    assert turns < 1000
    assert len({ident for _, ident in found}) < 100


def test_a_job_that_blocks_keeps_nobody_waiting(app: App) -> None:
    opened = threading.Event()

    @app.task
    def wait(n: int) -> bool:
        return opened.wait(20)

    @app.task
    def open_up() -> bool:
        opened.set()
        return True

    lives = [live_of(app, "wait", n) for n in range(40)] + [live_of(app, "open_up")]
    assert run(results(app, lives)) == [True] * 41


def test_threads_come_back_to_rest_and_are_used_again(app: App) -> None:
    barrier = threading.Barrier(8)

    @app.task
    def meet() -> int:
        barrier.wait(20)
        return threading.get_ident()

    async def main() -> None:
        threads = Threads(judge_of(app))
        first = await results(app, [live_of(app, "meet") for _ in range(8)], threads)
        await until(lambda: threads._idle == 8)
        again = await results(app, [live_of(app, "meet") for _ in range(8)], threads)
        assert set(first) == set(again)
        threads.close()
        await until(lambda: not any(t.ident in set(first) for t in threading.enumerate()))

    run(main())


def test_jobs_do_not_see_each_others_context(app: App) -> None:
    colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")

    @app.task
    def paint(name: str) -> tuple[str, str]:
        before = colour.get()
        colour.set(name)
        return before, current().task

    found = run(results(app, [live_of(app, "paint", str(n)) for n in range(50)]))
    assert found == [("none", "paint")] * 50


def test_what_was_set_before_is_seen(app: App) -> None:
    colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")

    @app.task
    def look() -> str:
        return colour.get()

    async def main() -> list[Any]:
        colour.set("set by the lifespan")
        return await results(app, [live_of(app, "look")])

    assert run(main()) == ["set by the lifespan"]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration])
def test_whatever_a_job_raises_the_thread_goes_on(app: App, error: type[BaseException]) -> None:
    @app.task
    def leave() -> None:
        raise error

    @app.task
    def stay() -> int:
        return 1

    async def main() -> None:
        threads, ends = Threads(judge_of(app)), Ends()
        live = live_of(app, "leave")
        threads.start(live, ends)
        assert (await ends.of(live)).kind is OutcomeKind.RETRY
        assert await results(app, [live_of(app, "stay")] * 1, threads) == [1]
        threads.close()

    run(main())


# interrupts


def late(live: RunState, why: StopReason = StopReason.TIMEOUT) -> None:
    live.stop_reason, live.cancelled, live.overdue = why, True, True


def test_a_loop_past_its_time_is_interrupted(app: App) -> None:
    started = threading.Event()

    @app.task
    def spin() -> None:
        started.set()
        while True:
            pass

    async def main() -> Outcome:
        threads, ends = Threads(judge_of(app)), Ends()
        live = live_of(app, "spin")
        threads.start(live, ends)
        await until(started.is_set)
        late(live)
        threads.stop(live)
        outcome = await ends.of(live)
        threads.close()
        return outcome

    outcome = run(main())
    assert outcome.kind is OutcomeKind.RETRY
    assert outcome.error is not None
    assert outcome.error.type == "Timeout"
    assert "in spin" in outcome.error.traceback


def test_a_cancelled_job_only_sees_that_it_should_stop_until_its_time_is_up(app: App) -> None:
    started = threading.Event()

    @app.task
    def polite(ctx: Context) -> None:
        started.set()
        while True:
            ctx.check()
            time.sleep(0.001)

    @app.task
    def deaf() -> int:
        started.set()
        time.sleep(0.3)
        return 1

    async def main() -> None:
        threads, ends = Threads(judge_of(app)), Ends()
        for name, kind in (("polite", OutcomeKind.CANCELLED), ("deaf", OutcomeKind.SUCCEEDED)):
            started.clear()
            live = live_of(app, name)
            threads.start(live, ends)
            await until(started.is_set)
            live.stop_reason, live.cancelled = StopReason.CANCELLED, True
            threads.stop(live)
            assert (await ends.of(live)).kind is kind
        threads.close()

    run(main())


def _more_than(things: list[str], count: int) -> bool:
    return len(things) > count


def test_a_job_that_swallows_interrupts_gets_them_again(app: App) -> None:
    swallowed: list[str] = []
    open_to_it = threading.Event()

    @app.task
    def stubborn() -> None:
        while True:
            try:
                open_to_it.set()
                while True:
                    time.sleep(0.001)
            except BaseException as error:
                swallowed.append(type(error).__name__)
                if len(swallowed) == 3:
                    raise

    async def main() -> Outcome:
        threads, ends = Threads(judge_of(app)), Ends()
        live = live_of(app, "stubborn")
        threads.start(live, ends)
        for times in range(3):
            await until(open_to_it.is_set)
            open_to_it.clear()
            late(live)
            threads.stop(live)
            await until(partial(_more_than, swallowed, times))
        outcome = await ends.of(live)
        threads.close()
        return outcome

    outcome = run(main())
    assert swallowed == ["Interrupted"] * 3
    assert outcome.error is not None
    assert outcome.error.type == "Timeout"


def test_an_interrupt_in_the_last_moment_never_reaches_the_next_job(app: App) -> None:
    """Jobs that end just when they are interrupted, over and over, with innocent jobs in the same threads."""
    hit: list[str] = []

    @app.task
    def brief(microseconds: int) -> str:
        end = time.perf_counter() + microseconds / 1e6
        while time.perf_counter() < end:
            pass
        return "done"

    @app.task
    def innocent() -> str:
        try:
            total = 0
            for n in range(200):
                total += n
        except BaseException as error:
            hit.append(type(error).__name__)
            raise
        return "innocent"

    async def main() -> None:
        threads, ends, dice = Threads(judge_of(app)), Ends(), random.Random(1)
        begun = time.monotonic()
        enough, patience = begun + 5, begun + 60
        interrupted = escaped = 0
        # How long a job lasts is set by who won before: interrupt and end meet on any machine, however slow.
        longest = 300.0
        while time.monotonic() < (enough if interrupted and escaped else patience):
            victims = [live_of(app, "brief", dice.randint(0, int(longest))) for _ in range(3)]
            bystanders = [live_of(app, "innocent") for _ in range(6)]
            for pair in zip(victims, bystanders[::2], bystanders[1::2], strict=True):
                for live in pair:
                    threads.start(live, ends)
            for victim in victims:
                time.sleep(dice.random() * 0.0004)
                late(victim)
                threads.stop(victim)
                threads.stop(victim)
            for live in victims:
                if (await ends.of(live)).kind is OutcomeKind.SUCCEEDED:
                    escaped += 1
                    longest = min(longest * 1.1, 100_000)
                else:
                    interrupted += 1
                    longest = max(longest / 1.1, 10)
            for live in bystanders:
                assert (await ends.of(live)).kind is OutcomeKind.SUCCEEDED
        assert interrupted, "no interrupt ever came in time: this test shows nothing"
        assert escaped, "every interrupt came in time: this test shows nothing"
        threads.close()

    run(main())
    assert hit == []


def test_an_interrupt_after_the_end_does_nothing(app: App) -> None:
    @app.task
    def quick() -> int:
        return 1

    async def main() -> None:
        threads, ends = Threads(judge_of(app)), Ends()
        live = live_of(app, "quick")
        threads.start(live, ends)
        work = live.work
        assert work is not None
        await until(lambda: work.finished)
        late(live)
        work.interrupt()
        assert (await ends.of(live)).kind is OutcomeKind.SUCCEEDED
        assert await results(app, [live_of(app, "quick")], threads) == [1]
        threads.close()

    run(main())


def test_a_job_in_foreign_code_ends_when_it_comes_back(app: App) -> None:
    @app.task
    def asleep() -> None:
        time.sleep(0.5)
        for _ in range(1000):
            pass

    async def main() -> None:
        threads, ends = Threads(judge_of(app)), Ends()
        live = live_of(app, "asleep")
        threads.start(live, ends)
        await until(lambda: live.work is not None and live.work.ident)
        late(live)
        threads.stop(live)
        threads.stop(live)
        outcome = await ends.of(live)
        assert outcome.error is not None
        assert outcome.error.type == "Timeout"
        threads.close()

    run(main())


def test_a_run_through_middleware_ends_with_its_thread_and_not_before(app: App) -> None:
    seen: list[str] = []
    colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour")

    @app.task
    def slow() -> str:
        time.sleep(0.2)
        seen.append(colour.get())
        return current().task

    async def main() -> None:
        threads = Threads(judge_of(app))
        colour.set("from the middleware")
        call = asyncio.create_task(threads.call(live_of(app, "slow"), (), {}))
        await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert seen == ["from the middleware"]
        assert await threads.call(live_of(app, "slow"), (), {}) == "slow"
        threads.close()

    run(main())


def test_a_job_that_forks_makes_no_second_executor(app: App) -> None:
    @app.task
    def fork() -> int:
        return os.fork()

    pids = run(results(app, [live_of(app, "fork")]))
    _, status = os.waitpid(pids[0], 0)
    assert os.waitstatus_to_exitcode(status) == 1
