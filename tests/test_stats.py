"""What is kept of how tasks fare: counts that add up, documents that outlive workers, estimates."""

from __future__ import annotations

from pathlib import Path

import pytest
from workshop import run

from dray.broker import connect
from dray.stats.sketch import Sketch
from dray.stats.tallies import (
    KIND,
    ArchivedTallies,
    SecondRuns,
    Tally,
    WorkerTallies,
    delete_tallies,
    read_second_runs,
    read_tallies,
    write_archive,
    write_second_runs,
    write_tallies,
)
from dray.stats.task_stats import TaskStats, estimate, read_stats, task_stats


def tally(*took: float, **fields: int) -> Tally:
    sketch = Sketch()
    sketch.add(took)
    return Tally(runs=len(took), took=sketch, **fields)  # type: ignore[arg-type]


def stats(**averages: float) -> dict[str, TaskStats]:
    return {name: task_stats(name, tally(*[average] * 10)) for name, average in averages.items()}


def test_workers_are_added_up_and_told_apart(tmp_path: Path) -> None:
    async def main() -> None:
        broker = await connect(f"sqlite:///{tmp_path}/q.db", "shop")
        await write_tallies(
            broker, "ann", WorkerTallies(seen=1, tasks={"mail": tally(0.1, 0.1, failed=1)}), 0
        )
        await write_tallies(broker, "bob", WorkerTallies(seen=1, tasks={"mail": tally(0.5, memory=7)}), 0)
        await write_archive(broker, ArchivedTallies(tasks={"old": tally(3.0)}), 0)
        await write_second_runs(broker, "mail", SecondRuns(launched=3, won=2, wasted=1), 0)
        await broker.doc(KIND, "newer", b"\xc1 of another version")
        told = await read_stats(broker)
        await broker.close()
        assert list(told.tasks) == ["mail", "old"]
        mail = told.tasks["mail"]
        assert (mail.runs, mail.failed, mail.samples, mail.memory) == (3, 1, 3, 7)
        assert (mail.launched, mail.won, mail.wasted) == (3, 2, 1)
        assert mail.duration.average == pytest.approx(0.7 / 3)
        assert told.workers["ann"]["mail"].duration.average == pytest.approx(0.1)
        assert told.workers.keys() == {"ann", "bob"}
        assert told.against_crew("ann") == pytest.approx(0.1 / (0.7 / 3))
        assert told.against_crew("bob") == pytest.approx(0.5 / (0.7 / 3))
        assert told.against_crew("eve") is None

    run(main())


def test_a_worker_that_was_taken_over_is_not_counted_twice(tmp_path: Path) -> None:
    async def main() -> None:
        broker = await connect(f"sqlite:///{tmp_path}/q.db", "shop")
        await write_tallies(broker, "ann", WorkerTallies(seen=1, tasks={"mail": tally(0.1)}), 0)
        assert await write_archive(
            broker, ArchivedTallies(tasks={"mail": tally(0.1)}, taken_over=("ann",)), 0
        )
        assert not await write_archive(broker, ArchivedTallies(), 0), "somebody else was faster"
        assert (await read_stats(broker)).tasks["mail"].runs == 1
        await delete_tallies(broker, "ann")
        assert (await read_stats(broker)).tasks["mail"].runs == 1
        assert (await read_tallies(broker))[0] == {}
        assert await write_second_runs(broker, "mail", SecondRuns(), 7) == 0
        assert await read_second_runs(broker) == {}
        await broker.close()

    run(main())


def test_a_start_is_estimated_from_what_is_ahead() -> None:
    known = stats(quick=0.1, slow=10.0)
    assert estimate({}, 4, known) == 0.0
    assert estimate({"slow": 3}, 4, known) == 0.0
    assert estimate({"slow": 4}, 4, known) == pytest.approx(2.5)
    assert estimate({"quick": 100, "slow": 0}, 1, known) == pytest.approx(10.0)
    assert estimate({"quick": 10, "slow": 10}, 10, known) == pytest.approx(5.05 * 11 / 10)


def test_nobody_can_tell_a_start_without_slots_or_without_experience() -> None:
    known = stats(quick=0.1)
    assert estimate({"quick": 1}, 0, known) is None
    assert estimate({"quick": 1, "never": 1}, 1, known) is None
    assert estimate({"never": 0}, 1, known) == 0.0
