"""The supervisor against stand-ins for executors (stand_in.py): real processes, but of exact behaviour."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import stand_in
from crew import lines, looking_into

from dray.broker import Broker, connect
from dray.broker.actions import Cancel, Ids, Pause, Resume, Scope
from dray.broker.verbs import Beat, Filter
from dray.documents.worker_registry import WorkerInfo, read_workers
from dray.job import Job, Outcome, OutcomeKind, State
from dray.settings import Settings
from dray.worker.supervisor.executor_process import Launch, SpawnedExecutor
from dray.worker.supervisor.supervisor import Supervisor, executors_of, run_worker
from dray.worker.supervisor.template import ForkedExecutor
from dray.worker.supervisor.watchers import CodeChanges, nothing_left

PATIENCE = 30.0
Test = Callable[..., Coroutine[Any, Any, None]]


class Bench:
    """One test's broker, supervisor and what they left behind."""

    def __init__(self, folder: Path, broker: Broker, url: str) -> None:
        self.folder, self.broker, self.url = folder, broker, url
        self.said: list[str] = []

    def supervisor(
        self,
        behaviour: str = "work",
        *,
        burst: bool = False,
        reload: bool = False,
        processes: int = 1,
        **given: Any,
    ) -> Supervisor:
        settings = Settings(broker_url=self.url, namespace="dray", processes=processes, **given)
        plan = stand_in.plan(self.url, self.folder, behaviour, settings.lease)
        return Supervisor(
            "shop:app", settings, burst=burst, reload=reload, announce=self.said.append, plan=plan
        )

    @contextlib.asynccontextmanager
    async def working(self, behaviour: str = "work", **given: Any) -> AsyncIterator[Supervisor]:
        supervisor = self.supervisor(behaviour, **given)
        running = asyncio.create_task(supervisor.run())
        try:
            yield supervisor
        finally:
            supervisor.stop()
            assert await asyncio.wait_for(running, PATIENCE) == 0

    async def put(self, *jobs: tuple[str, str]) -> None:
        await self.broker.put([Job(id=id, task=task) for id, task in jobs])

    async def state(self, id: str) -> State:
        (record,) = await self.broker.get([id])
        return record.state if record else State.NOT_FOUND

    async def reaches(self, id: str, state: State) -> None:
        async def there() -> bool:
            return await self.state(id) is state

        await eventually(there, f"{id} {state}")

    async def workers(self) -> list[WorkerInfo]:
        return await read_workers(self.broker)

    def born(self) -> list[int]:
        """The pids of all executors so far."""
        return [int(line.split()[1]) for line in lines(self.folder / "born")]

    def runs(self, id: str) -> list[list[str]]:
        """Each start of a job: id, run, suspect, time."""
        return [line.split() for line in lines(self.folder / "runs") if line.split()[0] == id]

    async def begun(self, id: str, times: int = 1) -> None:
        await eventually(lambda: len(self.runs(id)) >= times, f"{id} to start {times} times")


async def eventually(condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> None:
    deadline = time.monotonic() + patience
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return
        assert time.monotonic() < deadline, f"waited for {what} in vain"
        await asyncio.sleep(0.02)


@pytest.fixture
def on_bench(tmp_path: Path) -> Callable[[Test], None]:
    """Run a coroutine function of a bench."""

    def run(test: Test) -> None:
        async def whole() -> None:
            url = f"sqlite:///{tmp_path}/jobs.db"
            broker = await connect(url)
            try:
                await test(Bench(tmp_path, broker, url))
                assert await broker.audit() == []
            finally:
                await broker.close()

        asyncio.run(whole())

    return run


OnBench = Callable[[Test], None]


def warnings_of(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)


# Death and replacement


def test_an_executor_that_is_killed_is_replaced_and_its_jobs_run_again_at_once(on_bench: OnBench) -> None:
    async def test(bench: Bench) -> None:
        async with bench.working(processes=2, lease=30_000):
            await bench.put(("a", "hold"))
            await bench.begun("a")
            await eventually(lambda: len(bench.born()) == 2, "two executors")
            (holder,) = [
                one.pid for info in await at_work(bench) for one in info.executors if one.running == 1
            ]
            os.kill(holder, signal.SIGKILL)
            await bench.begun("a", 2)
            assert bench.runs("a")[1][2] == "1"  # suspect: to be run alone
            (bench.folder / "let go").touch()
            await bench.reaches("a", State.SUCCEEDED)
            await eventually(lambda: len(bench.born()) == 3, "a third executor")

    on_bench(test)


async def at_work(bench: Bench, running: int = 1) -> list[WorkerInfo]:
    found: list[WorkerInfo] = []

    async def seen() -> bool:
        found[:] = await bench.workers()
        return sum(info.running for info in found) == running

    await eventually(seen, f"{running} running jobs on the roster")
    return found


def test_a_job_that_takes_its_executor_with_it_runs_again(on_bench: OnBench) -> None:
    async def test(bench: Bench) -> None:
        async with bench.working():
            await bench.put(("a", "leave"), ("b", "ok"))
            await bench.reaches("a", State.SUCCEEDED)
            await bench.reaches("b", State.SUCCEEDED)
        assert len(bench.born()) == 2
        assert len(bench.runs("a")) == 2

    on_bench(test)


def test_executors_that_die_at_start_are_tried_again_ever_more_slowly_and_never_given_up(
    on_bench: OnBench,
) -> None:
    async def test(bench: Bench) -> None:
        async with bench.working("die"):
            await eventually(lambda: len(bench.born()) >= 2, "a second try")
            began = time.monotonic()
            await eventually(lambda: len(bench.born()) >= 3, "a third try")
            assert time.monotonic() - began > 0.5
            (bench.folder / "behaviour").write_text("work")
            await bench.put(("a", "ok"))
            await bench.reaches("a", State.SUCCEEDED)
            files = len(list(Path("/proc/self/fd").iterdir()))
            for n in range(2):
                os.kill(bench.born()[-1], signal.SIGKILL)
                await bench.put((f"b{n}", "ok"))
                await bench.reaches(f"b{n}", State.SUCCEEDED)
            assert len(list(Path("/proc/self/fd").iterdir())) <= files

    on_bench(test)


def test_a_process_that_the_system_refuses_to_start_is_tried_again(
    on_bench: OnBench, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(bench: Bench) -> None:
        sound = stand_in.plan(bench.url, bench.folder)

        def plan(number: int, channel: int, pulse: int, stacks: int) -> SpawnedExecutor | ForkedExecutor:
            if number == 1:
                return SpawnedExecutor(Launch(["/no/such/program"]), ())
            return sound(number, channel, pulse, stacks)

        settings = Settings(broker_url=bench.url, namespace="dray", processes=1)
        supervisor = Supervisor("shop:app", settings, announce=bench.said.append, plan=plan)
        running = asyncio.create_task(supervisor.run())
        await bench.put(("a", "ok"))
        await bench.reaches("a", State.SUCCEEDED)
        supervisor.stop()
        assert await running == 0
        assert "could not be started" in warnings_of(caplog)

    on_bench(test)


def test_where_the_system_cannot_tell_of_a_death_a_thread_waits_for_it(
    on_bench: OnBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)

    async def test(bench: Bench) -> None:
        async with bench.working():
            await bench.put(("a", "leave"))
            await bench.reaches("a", State.SUCCEEDED)

    on_bench(test)


def test_a_broken_app_ends_the_worker_with_the_reason(
    on_bench: OnBench, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(bench: Bench) -> None:
        assert await bench.supervisor("broken", processes=2).run() == 1
        assert "no module named shop" in warnings_of(caplog)
        assert await bench.workers() == []

    on_bench(test)


def test_a_replacement_that_is_broken_does_not_end_the_executors_that_work(
    on_bench: OnBench, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(bench: Bench) -> None:
        async with bench.working(processes=2):
            await eventually(lambda: len(bench.born()) == 2, "two executors")
            await eventually(lambda: bench.said, "the greeting")
            (bench.folder / "behaviour").write_text("broken")
            await bench.put(("a", "leave"))
            await bench.reaches("a", State.SUCCEEDED)
            await eventually(lambda: "tried again: no module" in warnings_of(caplog), "a complaint")
            (bench.folder / "behaviour").write_text("work")
            started = len(bench.born())
            await eventually(lambda: len(bench.born()) > started, "another try")

    on_bench(test)


# Hanging


def test_a_loop_that_hangs_past_a_deadline_is_reported_with_its_task_and_killed(
    on_bench: OnBench, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(bench: Bench) -> None:
        async with bench.working():
            await bench.put(("a", "hang"))
            await bench.reaches("a", State.SUCCEEDED)
        said = warnings_of(caplog)
        assert "past its timeout" in said
        assert "task hang, job a, running for" in said
        assert "in task hang" in said
        assert "nap_of_an_hour" in said
        assert [run[2] for run in bench.runs("a")] == ["0", "1"]

    on_bench(test)


def test_a_stopped_executor_counts_as_stalled(on_bench: OnBench, caplog: pytest.LogCaptureFixture) -> None:
    async def test(bench: Bench) -> None:
        async with bench.working(stall_limit=1_500):
            await bench.put(("a", "hold"))
            await bench.begun("a")
            os.kill(bench.born()[0], signal.SIGSTOP)
            await bench.begun("a", 2)
            (bench.folder / "let go").touch()
            await bench.reaches("a", State.SUCCEEDED)
        assert "has not turned for" in warnings_of(caplog)
        assert "does not answer signals" in warnings_of(caplog)

    on_bench(test)


def test_an_import_that_hangs_is_reported_and_tried_again(
    on_bench: OnBench, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(bench: Bench) -> None:
        async with bench.working("silent", stall_limit=300):
            await eventually(lambda: bench.born(), "an executor")
            (bench.folder / "behaviour").write_text("work")
            await eventually(lambda: len(bench.born()) == 2, "another try")
        assert "in begin" in warnings_of(caplog)

    on_bench(test)


def test_runs_stuck_in_threads_are_settled_in_the_name_of_the_killed_executor(
    on_bench: OnBench, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(bench: Bench) -> None:
        async with bench.working():
            await bench.put(("a", "stuck"))
            await bench.reaches("a", State.DEAD)
            await bench.put(("b", "ok"))
            await bench.reaches("b", State.SUCCEEDED)
        (record,) = await bench.broker.get(["a"])
        assert record is not None
        assert record.reason == "timed out"
        assert len(bench.runs("a")) == 1
        assert "task stuck, job a" in warnings_of(caplog)

    on_bench(test)


# Replacement on request


def test_a_retiring_executor_finishes_while_its_replacement_works(on_bench: OnBench) -> None:
    async def test(bench: Bench) -> None:
        async with bench.working():
            await bench.put(("long", "hold"))
            await bench.begun("long")
            await bench.put(("a", "retire"))
            await eventually(lambda: len(bench.born()) == 2, "a replacement")
            await bench.put(("b", "ok"))
            await bench.reaches("b", State.SUCCEEDED)
            assert await bench.state("long") is State.RUNNING
            (bench.folder / "let go").touch()
            await bench.reaches("long", State.SUCCEEDED)
        assert len(bench.runs("long")) == 1

    on_bench(test)


def test_a_rolling_restart_replaces_executors_one_by_one_and_loses_nothing(on_bench: OnBench) -> None:
    async def test(bench: Bench) -> None:
        async with bench.working(processes=2):
            await bench.put(("long", "hold"))
            await bench.begun("long")
            await eventually(lambda: len(bench.born()) == 2, "two executors")
            os.kill(os.getpid(), signal.SIGHUP)
            await eventually(lambda: len(bench.born()) == 4, "two more")
            (bench.folder / "let go").touch()
            await bench.reaches("long", State.SUCCEEDED)

            async def only_the_new() -> bool:
                pids = {one.pid for info in await bench.workers() for one in info.executors}
                return pids == set(bench.born()[2:])

            await eventually(only_the_new, "the old ones to leave")
        assert len(bench.runs("long")) == 1

    on_bench(test)


def test_a_rolling_restart_to_broken_code_keeps_the_executors_that_work(on_bench: OnBench) -> None:
    async def test(bench: Bench) -> None:
        async with bench.working() as supervisor:
            await eventually(lambda: bench.said, "the greeting")
            (bench.folder / "behaviour").write_text("broken")
            supervisor.restart()
            await eventually(lambda: len(bench.born()) >= 3, "two tries")
            await bench.put(("a", "ok"))
            await bench.reaches("a", State.SUCCEEDED)

    on_bench(test)


# Stopping


def test_a_stop_lets_running_jobs_finish_and_leaves_nothing_behind(on_bench: OnBench) -> None:
    async def test(bench: Bench) -> None:
        async with bench.working(processes=2, shutdown_grace=20_000):
            await bench.put(("a", "hold"))
            await bench.begun("a")
            os.kill(os.getpid(), signal.SIGTERM)
            await eventually(lambda: "1 Stop" in lines(bench.folder / "heard"), "the word")
            await bench.put(("b", "ok"))
            (bench.folder / "let go").touch()
            await bench.reaches("a", State.SUCCEEDED)
        assert await bench.state("b") is State.READY
        assert await bench.workers() == []
        assert (await bench.broker.doc("hold", "duties")).doc is None
        assert len(bench.born()) == 2

    on_bench(test)


def test_after_the_grace_running_jobs_are_handed_back_at_once_and_unsuspected(on_bench: OnBench) -> None:
    async def test(bench: Bench) -> None:
        began = 0.0
        async with bench.working(shutdown_grace=300, lease=60_000):
            await bench.put(("a", "hold"))
            await bench.begun("a")
            began = time.monotonic()
        assert time.monotonic() - began < 10
        (record,) = await bench.broker.get(["a"])
        assert record is not None
        assert (record.state, record.suspect, record.failures) == (State.READY, False, 0)

    on_bench(test)


def test_a_second_signal_does_not_wait_for_the_grace(on_bench: OnBench) -> None:
    async def test(bench: Bench) -> None:
        began = 0.0
        async with bench.working(shutdown_grace=600_000, lease=60_000):
            await bench.put(("a", "hold"))
            await bench.begun("a")
            began = time.monotonic()
            os.kill(os.getpid(), signal.SIGTERM)
            await eventually(lambda: "1 Stop" in lines(bench.folder / "heard"), "the word")
        assert time.monotonic() - began < 10
        assert await bench.state("a") is State.READY
        assert "stopping; jobs that run have 10m to finish: 1" in bench.said

    on_bench(test)


def test_an_executor_that_does_not_end_in_time_is_killed_and_its_jobs_freed(
    on_bench: OnBench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dray.worker.supervisor.supervisor.MARGIN", 1.0)

    async def test(bench: Bench) -> None:
        async with bench.working("stubborn", shutdown_grace=100, lease=60_000):
            await bench.put(("a", "hold"))
            await bench.begun("a")
        assert await bench.state("a") is State.READY
        assert "did not end in time" in warnings_of(caplog)

    on_bench(test)


# Burst and reload


def test_a_burst_ends_when_nothing_is_left_and_waits_for_retries_but_not_for_what_is_scheduled(
    on_bench: OnBench,
) -> None:
    async def test(bench: Bench) -> None:
        now = time.time_ns() // 1_000_000
        await bench.put(("a", "ok"), ("b", "leave"))
        await bench.broker.put(
            [
                Job(id="later", task="ok", due=now + 3_600_000),
                Job(id="elsewhere", task="ok", queue="other"),
                Job(id="stranger", task="unknown", queue="default", priority=9),
            ]
        )
        await bench.broker.put([Job(id="paused", task="hold")])
        await bench.broker.edit(Scope("default", "hold"), Pause())
        await bench.broker.edit(Scope("default", "unknown"), Pause())  # a stand-in takes anything
        assert await asyncio.wait_for(bench.supervisor(burst=True, processes=2).run(), PATIENCE) == 0
        assert await bench.state("a") is State.SUCCEEDED
        assert await bench.state("b") is State.SUCCEEDED
        for id in ("elsewhere", "stranger", "paused"):
            assert await bench.state(id) is State.READY

    on_bench(test)


def test_what_is_left_is_what_this_worker_could_run(on_bench: OnBench) -> None:
    async def test(bench: Bench) -> None:
        broker, known = bench.broker, Filter(frozenset({"ok"}))
        assert await nothing_left(broker, ["default"].__contains__, known)
        await bench.put(("a", "strange"))
        assert await nothing_left(broker, ["default"].__contains__, known)
        await bench.put(("b", "ok"))
        assert not await nothing_left(broker, ["default"].__contains__, known)
        assert await nothing_left(broker, ["other"].__contains__, known)
        assert await nothing_left(broker, ["default"].__contains__, Filter(frozenset({"ok"}), frozenset({1})))
        await broker.edit(Scope("default"), Pause())
        assert await nothing_left(broker, ["default"].__contains__, known)
        await broker.edit(Scope("default"), Resume())
        await broker.renew([Beat("s", 60_000)])
        (taken,) = await broker.take("s", 1, ["default"], known, 1)
        assert not await nothing_left(broker, ["default"].__contains__, known)
        later = time.time_ns() // 1_000_000 + 60_000
        retry = Outcome(id="b", run=taken.run, kind=OutcomeKind.RETRY, at=later)
        await broker.settle("s", [retry])
        assert await bench.state("b") is State.RETRYING
        assert not await nothing_left(broker, ["default"].__contains__, known)
        await broker.edit(Ids(("b",)), Cancel())
        assert await nothing_left(broker, ["default"].__contains__, known)

    on_bench(test)


def test_a_watch_sees_changed_new_and_removed_python_files_and_skips_what_is_not_the_users(
    tmp_path: Path,
) -> None:
    for folder in (".git", "node_modules", ".venv", "env", "pkg"):
        (tmp_path / folder).mkdir()
    (tmp_path / "env" / "pyvenv.cfg").touch()
    old = tmp_path / "pkg" / "old.py"
    old.write_text("1")
    watch = CodeChanges(tmp_path)
    assert watch.changed() == []
    for folder in (".git", "node_modules", ".venv", "env"):
        (tmp_path / folder / "x.py").write_text("1")
    (tmp_path / "data.txt").write_text("1")
    assert watch.changed() == []
    old.write_text("12")
    (tmp_path / "new.py").write_text("1")
    assert watch.changed() == [tmp_path / "new.py", old]
    old.unlink()
    assert watch.changed() == [old]
    assert watch.changed() == []


def test_with_reload_changed_code_starts_anew_and_broken_code_is_waited_out(
    on_bench: OnBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="dray.worker")

    async def test(bench: Bench) -> None:
        code = bench.folder / "shop.py"
        code.write_text("1")
        monkeypatch.chdir(bench.folder)
        async with bench.working(reload=True, processes=2):
            await eventually(lambda: len(bench.born()) == 2 and bench.said, "two executors")
            await asyncio.sleep(0.3)  # the first look at the files
            (bench.folder / "behaviour").write_text("broken")
            code.write_text("12")
            await eventually(lambda: any("does not load" in said for said in bench.said), "the complaint")
            await eventually(lambda: len(bench.born()) == 4, "both to be tried")
            assert sum("does not load" in said for said in bench.said) == 1
            (bench.folder / "behaviour").write_text("work")
            code.write_text("123")
            await bench.put(("a", "ok"))
            await bench.reaches("a", State.SUCCEEDED)
        assert len(bench.born()) == 6
        assert "shop.py changed: executors start anew" in caplog.text

    on_bench(test)


# Sessions, roster, broker


def test_sessions_are_kept_alive_and_cancellations_passed_on(on_bench: OnBench) -> None:
    async def test(bench: Bench) -> None:
        async with bench.working(lease=900, heartbeat=200):
            await bench.put(("a", "hold"))
            await bench.begun("a")
            await asyncio.sleep(2)  # more than two leases
            assert len(bench.runs("a")) == 1
            await bench.broker.edit(Ids(("a",)), Cancel())
            await eventually(lambda: "1 SessionNews" in lines(bench.folder / "heard"), "the word")
            (bench.folder / "let go").touch()
            await bench.reaches("a", State.CANCELLED)

    on_bench(test)


def test_an_executor_whose_session_was_lost_goes_on_under_a_new_name(on_bench: OnBench) -> None:
    async def test(bench: Bench) -> None:
        async with bench.working(lease=2_000, heartbeat=200):
            await bench.put(("a", "hold"))
            await bench.begun("a")
            (info,) = await at_work(bench)
            session = info.executors[0].session
            assert session is not None
            await bench.broker.release(session)
            await eventually(lambda: "1 SessionLapsed" in lines(bench.folder / "heard"), "the word")
            await bench.begun("a", 2)
            (bench.folder / "let go").touch()
            await bench.reaches("a", State.SUCCEEDED)
        assert len(bench.born()) == 1

    on_bench(test)


def test_the_roster_tells_what_a_worker_does_while_it_lives(on_bench: OnBench) -> None:
    async def test(bench: Bench) -> None:
        settings: dict[str, Any] = {
            "queues": ("default", "email"),
            "priorities": frozenset({1, 2, 5}),
            "tasks": ("hold", "ok"),
        }
        async with bench.working(processes=1, concurrency=7, **settings) as supervisor:
            await bench.put(("a", "hold"))
            (info,) = await at_work(bench)
            assert info.id == supervisor.id
            assert info.pid == os.getpid()
            assert (info.queues, info.priorities) == (("default", "email"), (1, 2, 5))
            assert info.tasks == ("hold", "ok")
            assert (info.processes, info.concurrency, info.state) == (1, 7, "running")
            (executor,) = info.executors
            assert (executor.number, executor.pid, executor.running) == (1, bench.born()[0], 1)
            assert executor.beat_age < 10_000
            assert executor.tried_age is not None

            async def leads() -> bool:
                return (await bench.workers())[0].leader

            await eventually(leads, "the duties")
            (bench.folder / "let go").touch()

    on_bench(test)


def test_a_file_that_is_moved_away_and_back_is_waited_for(
    on_bench: OnBench, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(bench: Bench) -> None:
        path = bench.folder / "jobs.db"
        async with bench.working(lease=3_000, heartbeat=300, sweep_interval=100):
            await eventually(lambda: bench.said, "the greeting")
            away = bench.folder / "away"
            away.mkdir()
            for part in bench.folder.glob("jobs.db*"):
                if part.is_file():
                    part.rename(away / part.name)
            await eventually(lambda: "the broker is away" in warnings_of(caplog), "the complaint")
            await asyncio.sleep(1)
            for part in away.iterdir():
                part.rename(path.with_name(part.name))
            await eventually(lambda: "answers again" in warnings_of(caplog), "the broker")
            await bench.put(("a", "ok"))
            await bench.reaches("a", State.SUCCEEDED)
        assert warnings_of(caplog).count("the broker is away") == 1

    on_bench(test)


def test_a_broker_that_is_away_at_the_start_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        path = tmp_path / "jobs.db"
        bench = Bench(tmp_path, None, f"sqlite:///{path}?timeout=50ms")  # type: ignore[arg-type]
        with looking_into(path) as stranger:
            stranger.execute("BEGIN EXCLUSIVE")
            supervisor = bench.supervisor()
            running = asyncio.create_task(supervisor.run())
            await eventually(lambda: "the broker is away" in warnings_of(caplog), "the complaint")
            supervisor.stop()
            assert await running == 0

            supervisor = bench.supervisor()
            running = asyncio.create_task(supervisor.run())
            await asyncio.sleep(0.5)
            stranger.execute("ROLLBACK")
        await eventually(lambda: bench.said, "the greeting")
        supervisor.stop()
        assert await running == 0
        assert warnings_of(caplog).count("the broker is away") == 2

    asyncio.run(test())


def test_a_store_that_is_not_ours_ends_the_worker_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "jobs.db").write_text("a poem about the sea, and nothing else whatever\n" * 100)
    settings = Settings(broker_url=f"sqlite:///{tmp_path}/jobs.db", namespace="dray")
    assert run_worker("shop:app", settings) == 1
    assert "jobs.db" in warnings_of(caplog)
    assert run_worker("shop:app", Settings(broker_url="memory://", namespace="dray")) == 1
    assert "sqlite://" in warnings_of(caplog)


# Greeting


def test_the_greeting_says_what_runs_where_and_how_to_stop_it(on_bench: OnBench) -> None:
    async def test(bench: Bench) -> None:
        async with bench.working(processes=2, concurrency=8, queues=("default", "email")) as supervisor:
            await eventually(lambda: bench.said, "the greeting")
            (said,) = bench.said
            for part in (supervisor.id, bench.url, "default, email", "2 processes × 8", "hold", "Ctrl-C"):
                assert part in said
        assert bench.said[1:] == ["stopping"]

    on_bench(test)


def test_a_worker_for_schedules_only_starts_no_executors_and_does_the_duties(on_bench: OnBench) -> None:
    async def test(bench: Bench) -> None:
        async with bench.working(mode="scheduler-only", processes=2):
            await eventually(lambda: bench.said, "the greeting")

            async def leads() -> bool:
                return any(info.leader for info in await bench.workers())

            await eventually(leads, "the duties")
        assert bench.born() == []
        assert "no jobs" in bench.said[0]

    on_bench(test)


@pytest.mark.parametrize(
    ("mode", "count"), [("default", 3), ("thin", 1), ("specialized", 3), ("scheduler-only", 0)]
)
def test_modes_decide_how_many_executors_there_are(mode: Any, count: int) -> None:
    settings = Settings(broker_url="memory://", namespace="dray", processes=3, mode=mode)
    assert executors_of(settings) == count
