"""The whole run: stores, cases by depth, processes, waking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from bench import machine
from bench.measure import Measurement, Row, interleave
from bench.progress import Progress
from bench.sqlite.cases import STORES, Case, groups_of
from bench.sqlite.plan import Plan
from bench.sqlite.processes import measure_processes
from bench.sqlite.stage import Continued, Fresh
from bench.sqlite.store import SYNCHRONOUS, Supply, fill, pragmas, remove
from bench.sqlite.tables import Results
from bench.sqlite.waking import measure_waking

Group = Sequence[Case]


class Mismatch(AssertionError):
    """The bare loop did not do what dray did: its time means nothing."""


def run(plan: Plan, folder: Path, progress: Callable[[int], Progress] = Progress) -> Results:
    """Measure everything in `plan`, with files in `folder`."""
    groups = groups_of(plan)
    shown = progress(len(groups) + 2)
    results = Results(_facts(plan, folder))
    if not results.facts["quiet"]:
        shown.warn(
            f"the machine is not quiet (load {results.facts['load']}): only ratios will mean something"
        )
    bed = _Bed(plan, folder, shown.warn)
    for group in groups:
        shown.step(_title(group))
        results.rows += bed.measure(group, shown.tell)
    bed.close()
    shown.step(f"1 and {plan.processes} processes on one file")
    results.crowds = measure_processes(folder / "processes", plan, shown.tell)
    shown.step("waking")
    results.waking = measure_waking(folder / "waking.db", plan)
    shown.end()
    return results


class _Bed:
    """The stores and the stages on them."""

    def __init__(self, plan: Plan, folder: Path, tell: Callable[[str], None]) -> None:
        self._plan, self._folder, self._tell = plan, folder, tell
        self._stores: dict[tuple[str, int], tuple[Path, Supply]] = {}
        self._continued: dict[int, Continued] = {}

    def measure(self, group: Group, tell: Callable[[str], None]) -> list[Row]:
        fresh: list[tuple[Fresh, Case]] = []
        measurements: list[Measurement] = []
        for number, case in enumerate(group):
            if case.depth > self._plan.copied:
                measurements += self._long(case.depth).measurements(case)
                continue
            place = self._folder / f"stage-{number}"
            stage = Fresh(case, *self._store(case.store, case.depth), place)
            fresh.append((stage, case))
            measurements += stage.measurements()
        rows = interleave(measurements, self._plan.rounds, tell)
        for stage, case in fresh:
            _check(stage.close(), _title([case]))
        return rows

    def close(self) -> None:
        for depth, stage in self._continued.items():
            _check(stage.close(), f"all cases with {depth:,} pending")
        for path, _ in self._stores.values():
            remove(path)

    def _store(self, kind: str, depth: int) -> tuple[Path, Supply]:
        if (kind, depth) not in self._stores:
            self._tell(f"making a store of {depth:,} jobs ({kind})")
            path, supply = self._folder / f"{kind}-{depth}.db", Supply()
            fill(path, supply, depth, STORES[kind])
            self._stores[kind, depth] = path, supply
        return self._stores[kind, depth]

    def _long(self, depth: int) -> Continued:
        if depth not in self._continued:
            path, supply = self._store("plain", depth)
            self._continued[depth] = Continued(path, supply, self._folder / f"stage-of-{depth}")
            remove(path)
            del self._stores["plain", depth]
        return self._continued[depth]


def _check(differ: list[str], after: str) -> None:
    if differ:
        raise Mismatch(f"after {after} the two files differ in {', '.join(differ)}")


def _title(group: Group) -> str:
    first = group[0]
    depths = ", ".join(dict.fromkeys(f"{case.depth:,}" for case in group))
    limits = "with limits, " if len(group) > 1 and "limit" in first.parameters else ""
    return f"{first.name} × {first.parameters['batch']}, {limits}{depths} pending"


def _facts(plan: Plan, folder: Path) -> dict[str, object]:
    path = folder / "facts.db"
    fill(path, Supply(), 1)
    settings = pragmas(path)
    remove(path)
    return {
        **machine.describe(),
        "plan": plan.name,
        "rounds": plan.rounds,
        "synchronous": SYNCHRONOUS,
        "pragmas": settings,
    }
