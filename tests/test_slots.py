"""The slots of an executor: the bound of what leaves its event loop, and real executors that adapt."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

from workshop import at_work, ended, run, until

from dray.app import App
from dray.broker.verbs import Broker
from dray.job import State
from dray.settings import AUTO_START, Settings
from dray.worker.executor.slots import OFF_LOOP, OFF_LOOP_MOST, Executed, Slots
from dray.worker.shared_memory import SharedHeartbeat, SleepSign


def make(concurrency: int | None = None, **more: Any) -> Slots:
    settings = Settings(broker_url="", namespace="t", concurrency=concurrency)
    return Slots(settings, **{"loop_tasks": True, "cpu_clock": lambda: 0.0, "sleep": None, **more})


def leave(slots: Slots, count: int) -> int:
    """So many runs want to leave the loop; how many may."""
    return sum(slots.leaves_loop() for _ in range(count))


def test_a_fixed_number_is_that_of_all_runs_together() -> None:
    slots = make(100)
    assert leave(slots, 100) == 100
    assert slots.free(100) == 0
    slots.off_loop = 60
    assert (slots.free(60), slots.crowded) == (40, False)


def test_no_more_runs_leave_the_loop_than_there_are_threads() -> None:
    slots = make()
    slots.limit = 200
    assert slots.free(0) == 200, "nothing is known yet of what will come"
    assert leave(slots, 200) == OFF_LOOP
    assert slots.crowded
    assert slots.free(OFF_LOOP) == 0
    slots.off_loop -= 5
    assert slots.free(OFF_LOOP - 5) == 5, "as many as there are threads, since all of them may need one"


def test_a_take_asks_for_more_the_fewer_runs_left_the_loop_lately() -> None:
    slots = make()
    leave(slots, 8)
    slots.adapt(Executed(time=1.0, started=32, used=8), 0.0, ready=True)
    slots.limit = 500
    assert slots.free(8) == 96, "24 threads are free, and every fourth job needs one"
    for second in range(2, 12):
        slots.adapt(Executed(time=second, started=32 * second, used=8), 0.0, ready=True)
    slots.limit = 500
    assert slots.free(8) == 492


def test_while_threads_are_busy_only_jobs_of_the_loop_are_asked_for_and_only_now_and_then() -> None:
    slots = make()
    slots.limit = 100
    leave(slots, 40)
    assert slots.free(OFF_LOOP) == 0
    slots.adapt(Executed(time=1.0, started=32, used=32), 0.0, ready=True)
    slots.limit = 100
    assert slots.past_threads
    assert slots.free(OFF_LOOP) == 68


def test_an_app_without_jobs_for_the_loop_has_no_more_slots_than_threads() -> None:
    slots = make(loop_tasks=False)
    for tick in range(100):
        leave(slots, 40)
        slots.adapt(Executed(tick * 0.25, 32, 0, OFF_LOOP), 0.0, ready=True)
        assert not slots.past_threads
    assert slots.limit == OFF_LOOP


def test_quick_functions_are_taken_ahead_of_their_threads() -> None:
    slots = make()
    for tick in range(1, 20):
        leave(slots, 32)
        slots.off_loop = 0
        for _ in range(100):
            leave(slots, 32)
            slots.off_loop = 0
        slots.adapt(Executed(tick * 0.25, 101 * 32 * tick, 101 * 32 * tick, 0), 0.0, ready=True)
    assert slots.off_loop_limit == OFF_LOOP_MOST
    slots.adapt(Executed(10.0, 101 * 32 * 20, 0, 0), 0.0, ready=False)
    assert slots.off_loop_limit == OFF_LOOP_MOST, "with little to do, a low rate says nothing"
    leave(slots, OFF_LOOP_MOST)
    slots.adapt(Executed(11.0, 101 * 32 * 20 + 100, 0, 0), 0.0, ready=True)
    assert slots.off_loop_limit == OFF_LOOP


def test_an_executor_that_sleeps_keeps_the_others_of_its_worker_from_growing() -> None:
    sign = SleepSign.make()
    slots = make(sleep=sign)
    slots.adapt(Executed(time=1.0, used=AUTO_START), 0.0, ready=False)
    shown = [sign.shown]
    slots.adapt(Executed(time=2.0, used=3), 0.0, ready=False)
    assert [*shown, sign.shown] == [False, True], "one whose slots are full does not sleep"
    other = make(sleep=SleepSign(sign.fd))
    for tick in range(8):
        other.filled = True
        other.adapt(Executed(tick * 0.25, tick * 250, tick * 250, AUTO_START), 0.0, ready=True)
        sign.show()
    assert other.limit == AUTO_START
    sign.close()


# real executors


async def put(app: App, broker: Broker, name: str, count: int) -> list[str]:
    jobs = [app.job_builder.build(app.tasks[name].call(n)) for n in range(count)]
    return [accepted.id for accepted in await broker.put(jobs)]


async def count(broker: Broker, state: State) -> int:
    return sum(info.counts.get(state, 0) for info in await broker.queues())


def test_an_executor_grows_while_that_makes_more_jobs_end(tmp_path: Path) -> None:
    app = App("t", broker=f"sqlite:///{tmp_path}/q.db")

    @app.task
    async def doze(n: int) -> None:
        await asyncio.sleep(0.1)

    async def main() -> None:
        broker = await app.connect()
        heartbeat = SharedHeartbeat.make()
        await put(app, broker, "doze", 4_000)
        async with at_work(app, heartbeat=heartbeat) as executor:
            await until(lambda: executor.slots.limit > 3 * AUTO_START)
            await until(lambda: heartbeat.read("running") > 2 * AUTO_START)
            assert heartbeat.read("slots") >= 3 * AUTO_START
        await broker.close()
        heartbeat.close()

    run(main())


def test_jobs_that_no_thread_can_start_are_left_to_others_and_do_not_hold_up_the_loop(tmp_path: Path) -> None:
    app = App("t", broker=f"sqlite:///{tmp_path}/q.db")
    go_on = threading.Event()
    lock, busy, most = threading.Lock(), 0, 0

    @app.task
    def block(n: int) -> None:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        go_on.wait(60)
        with lock:
            busy -= 1

    @app.task
    async def quick(n: int) -> int:
        return n

    async def main() -> None:
        broker = await app.connect()
        blocked = await put(app, broker, "block", 3 * OFF_LOOP)
        async with at_work(app, heartbeat=(heartbeat := SharedHeartbeat.make())) as executor:
            executor.slots._adaptive.limit = executor.slots.limit = 10 * OFF_LOOP  # as after many async jobs
            await until(lambda: busy == OFF_LOOP)
            while await count(broker, State.RUNNING) != OFF_LOOP:
                await asyncio.sleep(0.01)
            for id in await put(app, broker, "quick", 100):
                await ended(broker, id)
            assert await count(broker, State.READY) == 2 * OFF_LOOP
            go_on.set()
            for id in blocked:
                assert (await ended(broker, id)).state is State.SUCCEEDED
        assert most == OFF_LOOP
        await broker.close()
        heartbeat.close()

    run(main())


def test_jobs_in_threads_that_wait_for_jobs_in_threads_do_not_block_each_other(tmp_path: Path) -> None:
    app = App("t", broker=f"sqlite:///{tmp_path}/q.db")

    @app.task
    def leaf(n: int) -> int:
        return n

    @app.task
    def branch(n: int) -> int:
        return leaf.enqueue(n).get(timeout=50)

    async def main() -> None:
        broker = await app.connect()
        async with at_work(app, heartbeat=(heartbeat := SharedHeartbeat.make())):
            for id in await put(app, broker, "branch", 2 * OFF_LOOP):
                assert (await ended(broker, id)).state is State.SUCCEEDED
        await broker.close()
        heartbeat.close()

    run(main())
