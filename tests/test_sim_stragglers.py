"""Second runs in the simulation: among crashing workers and lost replies, within their budget."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from sim import Parts, Plan, Report, draw, simulate

from dray.broker.verbs import Broker
from dray.job import Sign
from dray.stats.tallies import read_second_runs, write_second_runs
from dray.worker.duties.speculation import Speculation

MOST = 40
"""Seeds that may be needed, on the unluckiest day."""


class EarnsAgain(Speculation):
    """Gets credit for the same runs again and again."""

    async def _look(self, broker: Broker) -> None:
        for task, (second, version) in (await read_second_runs(broker)).items():
            second.runs = 0
            await write_second_runs(broker, task, second, version)
        await super()._look(broker)


def plan_of(seed: int) -> Plan:
    """Little else than stragglers; the faults are those of the seed."""
    features = ("speculate", "stragglers")
    crowd = {"operators": 0, "leaders": 0, "tickers": 0, "readers": 0, "watchers": 1}
    return replace(draw(seed), features=features, jobs=45, workers=4, **crowd)


def play(seed: int, parts: Parts | None = None) -> Report:
    return simulate(seed, parts or Parts(), plan=plan_of(seed), keep_trace=True)


def test_stragglers_get_second_runs_on_crashing_workers_and_every_promise_holds() -> None:
    second = crashes = 0
    for seed in count():
        report = play(seed)
        assert report.ok, report.text()
        second += sum(f"{Sign.SPECULATED}" in line for line in report.trace)
        crashes += sum("killed" in line for line in report.trace)
        if second >= 3 and crashes >= 3:
            break
        assert seed < MOST


def test_a_duty_that_overdraws_its_budget_is_found() -> None:
    for seed in range(MOST):
        report = play(seed, Parts(speculation=EarnsAgain))
        if report.invariant == "budget":
            return
        assert report.ok, report.text()
    raise AssertionError(f"not found in {MOST} seeds")
