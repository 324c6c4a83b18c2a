"""Suspects in groups: who runs with whom in which child process, and who is blamed when one dies."""

from __future__ import annotations

import asyncio
import math
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_child_main import Nursery, gone, nursery
from workshop import live_of, run, until

from dray.broker.rules import group_after
from dray.job import GROUP_MAX, Outcome, OutcomeKind
from dray.worker.run import child_pool as module
from dray.worker.run.run_state import RunState, StopReason

TASKS = """
import asyncio, os, pathlib, time
from dray.app import App
from dray.context import Context

app = App("t", broker="memory://")
FOLDER = pathlib.Path("{folder}")
inside = set()

def note(name):
    with open(FOLDER / "starts", "a") as starts:
        starts.write(" ".join([name, str(os.getpid())]) + "\\n")

async def let_go():
    while not (FOLDER / "let go").exists():
        await asyncio.sleep(0.01)

@app.task
async def hold(name: str) -> int:
    note(name)
    await let_go()
    return os.getpid()

@app.task
def hold_in_thread(name: str) -> int:
    note(name)
    while not (FOLDER / "let go").exists():
        time.sleep(0.01)
    return os.getpid()

@app.task
async def quick(name: str) -> int:
    note(name)
    return os.getpid()

@app.task(isolate="process")
def own(name: str) -> int:
    note(name)
    return os.getpid()

@app.task
async def poison(name: str, seconds: float) -> None:
    note(name)
    await asyncio.sleep(seconds)
    os._exit(3)

@app.task
def poison_in_thread(name: str) -> None:
    note(name)
    os._exit(3)

@app.task
async def crowd(name: str) -> int:
    "Kills its process when another of its kind is there."
    note(name)
    inside.add(name)
    await asyncio.sleep(0.3)
    if len(inside) > 1:
        os._exit(3)
    inside.discard(name)
    return os.getpid()

@app.task
async def block(name: str) -> None:
    note(name)
    time.sleep(600)

@app.task
def sit(name: str) -> None:
    note(name)
    time.sleep(600)

@app.task
async def tell(ctx: Context, name: str, number: int) -> int:
    note(name)
    ctx.progress(number, 10)
    return number
"""


class Ward:
    """Runs suspects again until each has come to its end, as broker and executor would do between them."""

    def __init__(self, one: Nursery) -> None:
        self.one = one
        self.marks: dict[str, int] = {}
        self.crashes: Counter[str] = Counter()
        self.outcomes: dict[str, Outcome] = {}
        self.told: list[tuple[str, Outcome]] = []
        self.lives: dict[str, RunState] = {}
        self.over = False
        self.most = 0
        """The most child processes at a time."""

    def admit(self, name: str, task: str, *args: Any, suspect: int = GROUP_MAX, **fields: Any) -> RunState:
        self.marks[name] = suspect
        return self._start(name, task, (name, *args), fields)

    def _start(self, name: str, task: str, args: tuple[Any, ...], fields: dict[str, Any]) -> RunState:
        live = live_of(self.one.app, task, *args, host=self.one.host, **fields)
        live.taken = msgspec.structs.replace(live.taken, suspect=self.marks[name])
        self.lives[name] = live

        def ended(_: RunState, outcome: Outcome) -> None:
            self.told.append((name, outcome))
            again = outcome.kind in (OutcomeKind.CRASHED, OutcomeKind.GIVE_BACK)
            if outcome.kind is OutcomeKind.CRASHED:
                self.crashes[name] += outcome.together == 1
                self.marks[name] = group_after(self.marks[name], outcome.together)
            if again and self.crashes[name] < 3 and not self.over:
                asyncio.get_running_loop().call_soon(self._start, name, task, args, fields)
            else:
                self.outcomes[name] = outcome

        self.one.children.start(live, ended)
        self.most = max(self.most, len(self.one.children.children))
        return live

    async def started(self, *names: str) -> None:
        await until(lambda: self.starts().keys() >= set(names))

    def starts(self) -> Counter[str]:
        return Counter(name for name, _ in self.lines())

    def processes(self) -> set[str]:
        return {pid for _, pid in self.lines()}

    def lines(self) -> list[list[str]]:
        path = self.one.folder / "starts"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def let_go(self) -> None:
        (self.one.folder / "let go").touch()

    async def all_ended(self) -> None:
        await until(lambda: self.outcomes.keys() == self.marks.keys(), 120)

    def succeeded(self) -> set[str]:
        return {name for name, end in self.outcomes.items() if end.kind is OutcomeKind.SUCCEEDED}

    def stop(self, name: str, why: StopReason, overdue: bool = False) -> None:
        self.one.stop(self.lives[name], why, overdue=overdue)


@asynccontextmanager
async def ward_in(folder: Path) -> AsyncIterator[Ward]:
    async with nursery(folder, TASKS) as one:
        ward = Ward(one)
        try:
            yield ward
        finally:
            ward.over = True


def ward_test(test: Callable[[Ward], Any]) -> Callable[[Path], None]:
    """A test that is given a ward."""

    def wrapped(tmp_path: Path) -> None:
        async def main() -> None:
            async with ward_in(tmp_path) as ward:
                await test(ward)

        run(main())

    wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
    return wrapped


@ward_test
async def test_suspects_run_together_in_one_process_as_concurrently_as_before(ward: Ward) -> None:
    names = [f"job{n}" for n in range(60)]
    for n, name in enumerate(names):
        ward.admit(name, "hold" if n % 2 else "hold_in_thread")
    await ward.started(*names)
    ward.let_go()
    await ward.all_ended()
    assert ward.succeeded() == set(names)
    assert len(ward.processes()) == ward.most == 1


@ward_test
async def test_a_kill_from_outside_splits_the_group_once_and_blames_nobody(ward: Ward) -> None:
    names = [f"job{n}" for n in range(9)]
    for name in names:
        ward.admit(name, "hold")
    await ward.started(*names)
    os.kill(int(ward.lines()[0][1]), signal.SIGKILL)
    await until(lambda: set(ward.starts().values()) == {2})
    ward.let_go()
    await ward.all_ended()
    assert {outcome.together for _, outcome in ward.told if outcome.kind is OutcomeKind.CRASHED} == {9}
    assert ward.succeeded() == set(names)
    assert not +ward.crashes
    assert set(ward.marks.values()) == {5}
    assert len(ward.processes()) == 3


@pytest.mark.parametrize(("task", "args"), [("poison", (0.0,)), ("poison", (0.4,)), ("poison_in_thread", ())])
def test_a_poison_job_is_found_among_many_and_no_neighbour_is_blamed(
    tmp_path: Path, task: str, args: tuple[float, ...]
) -> None:
    async def main() -> None:
        async with ward_in(tmp_path) as ward:
            names = [f"job{n}" for n in range(32)]
            for n, name in enumerate(names):
                if n == 20:
                    ward.admit("bad", task, *args)
                ward.admit(name, "quick")
            await ward.all_ended()
            assert ward.succeeded() == set(names)
            assert ward.outcomes["bad"].kind is OutcomeKind.CRASHED
            assert +ward.crashes == {"bad": 3}
            assert len(ward.processes()) <= 2 * math.ceil(math.log2(33)) + 3
            assert ward.most <= module.HANDFUL

    run(main())


@ward_test
async def test_neighbours_that_work_on_keep_their_process_while_the_poison_job_is_found(ward: Ward) -> None:
    """Halves that live are not restarted: so long jobs do not start over with every crash."""
    names = [f"job{n}" for n in range(16)]
    for n, name in enumerate(names):
        if n == 3:
            ward.admit("bad", "poison", 0.2)
        ward.admit(name, "hold")
    await until(lambda: "bad" in ward.outcomes, 120)
    ward.let_go()
    await ward.all_ended()
    assert ward.succeeded() == set(names)
    starts = ward.starts()
    assert sum(starts[name] for name in names) < 4 * len(names)
    assert min(starts[name] for name in names) <= 2


@ward_test
async def test_two_poison_jobs_are_both_found(ward: Ward) -> None:
    names = [f"job{n}" for n in range(14)]
    for n, name in enumerate(names):
        if n in (2, 3):
            ward.admit(f"bad{n}", "poison", 0.0)
        ward.admit(name, "quick")
    await ward.all_ended()
    assert ward.succeeded() == set(names)
    assert +ward.crashes == {"bad2": 3, "bad3": 3}


@ward_test
async def test_jobs_that_kill_only_in_company_succeed_alone(ward: Ward) -> None:
    for name in ("left", "right"):
        ward.admit(name, "crowd")
    for n in range(6):
        ward.admit(f"job{n}", "quick")
    await ward.all_ended()
    assert len(ward.succeeded()) == 8
    assert not +ward.crashes


@ward_test
async def test_who_is_left_of_a_group_when_its_process_dies_is_not_blamed_for_that(ward: Ward) -> None:
    """Others ran there before, and may have left it broken: it counts from when it has one for itself."""
    late = ward.admit("late", "poison", 1.0)
    ward.admit("early", "quick")
    await until(lambda: late not in ward.lives.values() or "early" in ward.outcomes)
    await ward.all_ended()
    crashes = [outcome.together for name, outcome in ward.told if name == "late"]
    assert crashes == [2, 1, 1, 1]


@ward_test
async def test_jobs_with_a_process_of_their_own_share_it_with_no_suspect(ward: Ward) -> None:
    ward.admit("held", "hold")
    await ward.started("held")
    ward.admit("isolated", "own")
    ward.admit("asked", "hold", isolate="process")
    await ward.started("isolated", "asked")
    ward.let_go()
    await ward.all_ended()
    assert len(ward.processes()) == 3


@ward_test
async def test_many_that_must_run_alone_take_turns_in_a_handful_of_processes(ward: Ward) -> None:
    names = [f"job{n}" for n in range(10)]
    for name in names:
        ward.admit(name, "quick", suspect=1)
    await ward.all_ended()
    assert ward.succeeded() == set(names)
    assert len(ward.processes()) == len(names), "who must run alone shares its process with none before it"
    assert ward.most <= module.HANDFUL


def test_long_jobs_keep_others_waiting_only_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_WAIT", 0.2)

    async def main() -> None:
        async with ward_in(tmp_path) as ward:
            names = [f"job{n}" for n in range(module.HANDFUL + 2)]
            for name in names:
                ward.admit(name, "hold", suspect=1)
            await ward.started(*names)
            ward.let_go()
            await ward.all_ended()
            assert ward.succeeded() == set(names)

    run(main())


@ward_test
async def test_one_that_waits_for_a_process_can_be_cancelled_and_loses_no_time(ward: Ward) -> None:
    for n in range(module.HANDFUL):
        ward.admit(f"job{n}", "hold", suspect=1)
    live = ward.admit("waiting", "quick", suspect=1)
    assert math.isinf(live.stop_at)
    ward.stop("waiting", StopReason.CANCELLED)
    assert ward.outcomes["waiting"].kind is OutcomeKind.CANCELLED
    ward.let_go()
    await ward.all_ended()
    assert "waiting" not in ward.starts()


@ward_test
async def test_a_cancel_stops_one_and_leaves_its_neighbours_alone(ward: Ward) -> None:
    for n in range(4):
        ward.admit(f"job{n}", "hold")
    await ward.started(*ward.marks)
    ward.stop("job2", StopReason.CANCELLED)
    await until(lambda: "job2" in ward.outcomes)
    assert ward.outcomes["job2"].kind is OutcomeKind.CANCELLED
    ward.let_go()
    await ward.all_ended()
    assert ward.succeeded() == {"job0", "job1", "job3"}
    assert len(ward.processes()) == 1


@ward_test
async def test_a_thread_that_cannot_be_stopped_lets_its_neighbours_finish(ward: Ward) -> None:
    ward.admit("sitting", "sit")
    ward.admit("held", "hold")
    await ward.started("sitting", "held")
    ward.stop("sitting", StopReason.TIMEOUT, overdue=True)
    ward.admit("later", "quick")
    await until(lambda: "later" in ward.outcomes)
    assert "held" not in ward.outcomes
    assert "sitting" not in ward.outcomes, "it runs on: nobody may start it again"
    ward.let_go()
    await ward.all_ended()
    timeout = ward.outcomes["sitting"]
    assert timeout.error is not None
    assert timeout.error.type == "Timeout"
    assert ward.succeeded() == {"held", "later"}
    assert ward.starts() == {"sitting": 1, "held": 1, "later": 1}


@pytest.mark.parametrize("guilty_is_late", [True, False])
def test_who_blocks_the_event_loop_is_told_from_who_is_kept_waiting_by_it(
    tmp_path: Path, guilty_is_late: bool
) -> None:
    async def main() -> None:
        async with ward_in(tmp_path) as ward:
            for n in range(3):
                ward.admit(f"job{n}", "hold")
            await ward.started("job0", "job1", "job2")
            ward.admit("blocking", "block")
            await ward.started("blocking")
            blocking = ward.lives["blocking"]
            late = "blocking" if guilty_is_late else "job1"
            ward.stop(late, StopReason.TIMEOUT, overdue=True)
            if guilty_is_late:
                await until(lambda: "blocking" in ward.outcomes)
                error = ward.outcomes["blocking"].error
                assert error is not None
                assert error.type == "Timeout"
            else:
                await until(lambda: ward.lives["blocking"] is not blocking)
                assert ward.marks["blocking"] == 1
                assert not ward.crashes["blocking"], "it did not crash alone"
            await until(lambda: all(ward.starts()[f"job{n}"] == 2 for n in range(3)))
            assert {ward.marks[f"job{n}"] for n in range(3)} == {GROUP_MAX}, "they are blamed for nothing"
            ward.let_go()
            await until(lambda: len(ward.succeeded()) == 3)

    run(main())


@ward_test
async def test_stopping_all_of_a_group_kills_its_process_when_they_do_not_stop(ward: Ward) -> None:
    ward.admit("sitting", "sit")
    ward.admit("held", "hold")
    await ward.started("sitting", "held")
    pid = int(ward.lines()[0][1])
    ward.crashes.update(sitting=3, held=3)  # so that what is given back is not started again
    ward.stop("sitting", StopReason.LEAVING)
    ward.stop("held", StopReason.LEAVING)
    await ward.all_ended()
    assert {outcome.kind for outcome in ward.outcomes.values()} == {OutcomeKind.GIVE_BACK}
    await until(lambda: gone(pid))


@ward_test
async def test_what_runs_of_a_group_say_is_said_of_them(ward: Ward) -> None:
    for n in range(5):
        ward.admit(f"job{n}", "tell", n)
    await ward.all_ended()
    assert sorted(progress.done for progress in ward.one.host.progress) == [0.0, 1.0, 2.0, 3.0, 4.0]
    for n in range(5):
        result = ward.outcomes[f"job{n}"].result
        assert result is not None
        assert ward.one.app.codecs.decode_value(result) == n


@ward_test
async def test_a_group_whose_process_is_killed_while_it_starts_stays_as_large(
    ward: Ward,
) -> None:
    for n in range(5):
        ward.admit(f"job{n}", "quick")
    (child,) = ward.one.children.children
    await until(lambda: child.process.pid)
    os.kill(child.process.pid, signal.SIGKILL)
    await ward.all_ended()
    assert len(ward.succeeded()) == 5
    assert set(ward.marks.values()) == {GROUP_MAX}


@ward_test
async def test_what_is_killed_at_the_end_while_it_starts_is_not_started_again(ward: Ward) -> None:
    ward.over = True
    ward.admit("job", "hold")
    await until(lambda: ward.one.children.children[0].process.pid)
    ward.one.children.close()
    await until(lambda: not ward.one.children.children)
    assert ward.outcomes["job"].kind is OutcomeKind.GIVE_BACK


@ward_test
async def test_a_process_that_is_not_needed_any_more_when_it_starts_does_not_stay(ward: Ward) -> None:
    ward.admit("first", "quick")
    ward.stop("first", StopReason.CANCELLED)
    (unused,) = ward.one.children.children
    ward.admit("alone", "quick", suspect=1)
    assert unused.killed, "who must be alone needs a new one"
    await ward.all_ended()
    await until(lambda: unused.over)
    assert len(ward.processes()) == 1
