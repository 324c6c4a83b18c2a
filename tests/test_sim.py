"""The simulation finds what is broken, finds nothing in what is not, and repeats itself exactly."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import broken_parts
import pytest
import sim
from broken import BUGS
from sim.plan import Plan, draw, from_text, smaller, to_text

from dray.job import Outcome, OutcomeKind
from dray.worker.executor.executor import Executor
from dray.worker.run.run_state import RunState

SEEDS_MAX = 100
"""How many seeds a planted bug may take to be found."""
FOUND_AT = {
    "SettlesAnyRun": 15,
    "IgnoresOnce": 29,
    "ForgetsTurns": 9,
    "RetriesCancelled": 62,
    "WatchesTooLate": 84,
    "SettlesAfterLapse": 13,
    "DropsUnansweredOutcomes": 6,
    "ForgetsLostRuns": 5,
    "LendsSlotsForGood": 26,
    "WatchesInTwoSteps": 68,
    "LosesWordWithTheWait": 6,
    "TakesSilenceForYes": 5,
    "StartsHandedRunsTwice": 62,
}
"""Where those that take longer to find were found last: the search begins there, and goes on from there."""


def test_sleepers_wake_in_order_and_no_real_time_passes() -> None:
    async def main() -> list[tuple[int, float]]:
        woken: list[tuple[int, float]] = []

        async def sleep(seconds: int) -> None:
            await asyncio.sleep(seconds)
            woken.append((seconds, asyncio.get_running_loop().time()))

        await asyncio.gather(*(sleep(seconds) for seconds in (3000, 1000, 2000)))
        return woken

    assert sim.run(main()) == [(1000, 1000.0), (2000, 2000.0), (3000, 3000.0)]


def test_what_is_ready_runs_in_an_order_that_the_seed_decides() -> None:
    async def main() -> list[int]:
        order: list[int] = []

        async def step(number: int) -> None:
            await asyncio.sleep(0)
            order.append(number)

        await asyncio.gather(*(step(number) for number in range(10)))
        return order

    orders = [sim.run(main(), seed) for seed in range(5)]
    assert orders == [sim.run(main(), seed) for seed in range(5)]
    assert len({tuple(order) for order in orders}) > 1


def test_a_timeout_cancels_what_it_bounds() -> None:
    async def main() -> tuple[float, bool]:
        stopped = asyncio.Event()

        async def work() -> None:
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                stopped.set()
                raise

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(work(), 5)
        return asyncio.get_running_loop().time(), stopped.is_set()

    assert sim.run(main()) == (5.0, True)


def test_waiting_for_what_never_comes_is_reported_as_a_deadlock() -> None:
    async def main() -> None:
        await asyncio.create_task(asyncio.Event().wait(), name="the one that waits")

    with pytest.raises(sim.Deadlock, match="the one that waits"):
        sim.run(main())


def test_a_program_that_spins_is_reported_too() -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(sim.Deadlock, match="no time passes"):
        sim.run(main())


def test_threads_are_refused() -> None:
    async def main() -> None:
        await asyncio.to_thread(print)

    with pytest.raises(NotImplementedError, match="threads are not simulated"):
        sim.run(main())


def test_a_killed_process_never_resumes_and_cleans_nothing_up() -> None:
    loop = sim.VirtualLoop()
    seen: list[str] = []

    async def work() -> None:
        try:
            seen.append("started")
            await asyncio.sleep(10)
            seen.append("resumed")
        finally:
            seen.append("cleaned up") if process.alive else None

    async def main() -> None:
        process.start(work())
        await asyncio.sleep(5)
        process.kill()
        await asyncio.sleep(10)

    process = sim.Process("p", loop)
    loop.run_until_complete(main())
    loop.bury()
    assert seen == ["started"]


def test_a_frozen_process_goes_on_later_where_it_was() -> None:
    loop = sim.VirtualLoop()
    seen: list[float] = []

    async def work() -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            seen.append(loop.time())

    async def main() -> None:
        process.start(work())
        await asyncio.sleep(1.5)
        process.freeze(10)
        await asyncio.sleep(20)

    process = sim.Process("p", loop)
    loop.run_until_complete(main())
    loop.bury()
    assert seen == [1.0, 11.5, 12.5]


def test_a_plan_can_be_written_down_and_read_back() -> None:
    plan = draw(5)
    for changed in (plan, *smaller(plan)):
        assert from_text(5, to_text(changed)) == changed
    with pytest.raises(ValueError, match="horizon"):
        from_text(5, "colour=3")


DIGEST = """
from sim import simulate
for seed in (3, 4, 5):
    report = simulate(seed, keep_trace=True)
    print(report.digest, report.steps, report.seconds, report.invariant)
"""


def test_a_seed_is_the_same_run_in_every_process() -> None:
    def digests(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", DIGEST],
            cwd=Path(__file__).parent,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    first = digests("1")
    assert len(set(first.splitlines())) == 3
    assert first == digests("2")


PLANTED: dict[str, tuple[sim.Parts, frozenset[str]]] = {
    broker.__name__: (sim.Parts(broker=broker), invariants) for broker, invariants in BUGS.items()
} | broken_parts.BUGS


@pytest.mark.parametrize("bug", PLANTED)
@pytest.mark.timeout(1200)
def test_a_planted_bug_is_found(bug: str) -> None:
    parts, invariants = PLANTED[bug]
    first = FOUND_AT.get(bug, 0)
    for seed in range(first, first + SEEDS_MAX):
        report = sim.simulate(seed, parts)
        if report.invariant in invariants:
            print(f"{bug}: seed {seed} ({seed - first + 1} tried), {report.invariant}: {report.message}")
            return
        assert report.ok, report.text()
    pytest.fail(f"{bug} was not found in {SEEDS_MAX} seeds")


@pytest.mark.parametrize("bug", ["SettlesAnyRun", "TakesAnewAfterLoss"])
def test_a_failing_seed_replays_and_shrinks(bug: str) -> None:
    broken, _ = PLANTED[bug]
    first = FOUND_AT.get(bug, 0)
    found = sim.explore(seeds=range(first, first + SEEDS_MAX), parts=broken)
    assert found.failure is not None
    assert found.shrunk is not None
    assert found.shrunk.invariant == found.failure.invariant
    assert _size(found.shrunk.plan) <= _size(found.failure.plan)
    again = sim.simulate(found.failure.seed, broken)
    assert again == found.failure
    assert f"--seed {found.failure.seed}" in found.failure.text()


def _size(plan: Plan) -> int:
    return plan.jobs + plan.workers + plan.producers + plan.operators + plan.watchers + len(plan.features)


def test_jobs_come_to_everything_that_a_run_can_come_to() -> None:
    """The stage would not notice executors that settle nothing but successes: count what really came."""
    kinds: dict[OutcomeKind, int] = {}
    places: dict[str, int] = {}

    class Counting(Executor):
        def _ended(self, live: RunState, outcome: Outcome) -> None:
            kinds[outcome.kind] = kinds.get(outcome.kind, 0) + 1
            place = type(live.runner._runner).__name__  # type: ignore[attr-defined]
            places[place] = places.get(place, 0) + 1
            super()._ended(live, outcome)

    # Suspension has a simulation of its own: test_sim_durable.
    everything = set(OutcomeKind) - {OutcomeKind.SUSPENDED}, {"OnLoop", "Threads", "ChildPool"}
    for seed in range(100, 100 + SEEDS_MAX):
        report = sim.simulate(seed, sim.Parts(executor=Counting))
        assert report.ok, report.text()
        if (set(kinds), set(places)) == everything:
            break
    assert (set(kinds), set(places)) == everything


@pytest.mark.timeout(3600)
def test_every_seed_keeps_every_promise() -> None:
    seconds = float(os.environ.get("DRAY_SIM_SECONDS", "40"))
    found = sim.explore(seconds=seconds, processes=os.cpu_count() or 1)
    print(f"{found.seeds} seeds in {found.seconds:.1f} s")
    assert found.failure is None, (found.shrunk or found.failure).text()
