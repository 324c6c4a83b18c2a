"""Changing many jobs: by ids or by a query, step by step, and tried out first."""

from __future__ import annotations

import pytest

from dray.broker.actions import Cancel, Delete, Edited, Ids, JobAction, Query, Reprioritise, Reschedule, Retry
from dray.job import State
from dray.testing.conformance.bench import HOUR, Bench, Theme, job, jobs


async def every_step(
    bench: Bench, selection: Ids | Query, action: JobAction, *, limit: int, dry_run: bool = False
) -> list[Edited]:
    steps: list[Edited] = []
    while not steps or steps[-1].cursor is not None:
        assert len(steps) < 1000, "the cursor never ends"
        cursor = steps[-1].cursor if steps else None
        steps.append(
            await bench.broker.edit(
                selection, action, cursor=cursor, limit=limit, dry_run=dry_run, now=bench.clock.now
            )
        )
    return steps


def changed(steps: list[Edited]) -> list[str]:
    return [id for step in steps for id in step.changed]


class TestBulkEdits(Theme):
    async def test_every_named_job_is_changed_or_refused(self, bench: Bench) -> None:
        await bench.put(job("a"), job("b"))
        edited = await bench.edit(Ids(("b", "nobody", "a")), Cancel())
        assert edited.changed == ("b", "a")
        assert [id for id, _ in edited.refused] == ["nobody"]
        assert edited.cursor is None

    async def test_a_query_changes_what_matches_and_passes_over_the_rest(self, bench: Bench) -> None:
        await bench.put(job("a", tags=("x",)), job("b"), job("c", tags=("x", "y")))
        edited = await bench.edit(Query(tag="x"), Cancel())
        assert (sorted(edited.changed), edited.refused) == (["a", "c"], ())
        assert await bench.states("a", "b", "c") == [State.CANCELLED, State.READY, State.CANCELLED]

    @pytest.mark.parametrize("by", ["ids", "query"])
    async def test_a_long_edit_goes_on_with_its_cursor(self, bench: Bench, by: str) -> None:
        ids = [one.id for one in jobs(25)]
        await bench.put(*jobs(25))
        selection = Ids(tuple(ids)) if by == "ids" else Query(queue="default")
        steps = await every_step(bench, selection, Reprioritise(1), limit=10)
        assert max(len(step.changed) for step in steps) <= 10
        assert sorted(changed(steps)) == ids
        assert len(await bench.find(Query(priorities=frozenset({1})))) == 25

    @pytest.mark.parametrize(
        ("action", "state"),
        [(Cancel(), State.READY), (Delete(), State.READY), (Cancel(), None), (Delete(), None)],
    )
    async def test_an_edit_that_moves_jobs_meets_each_of_them_once(
        self, bench: Bench, action: JobAction, state: State | None
    ) -> None:
        await bench.put(*jobs(25))
        steps = await every_step(bench, Query(state=state), action, limit=4)
        assert sorted(changed(steps)) == [one.id for one in jobs(25)]

    async def test_an_edit_that_makes_jobs_ready_meets_each_of_them_once(self, bench: Bench) -> None:
        await bench.put(*jobs(25, due=bench.clock.after(HOUR)))
        steps = await every_step(bench, Query(), Reschedule(bench.clock.time), limit=4)
        assert sorted(changed(steps)) == [one.id for one in jobs(25)]
        assert await (await bench.worker()).take_ids(99) == [one.id for one in jobs(25)]

    async def test_jobs_of_several_queues_and_states_are_all_met(self, bench: Bench) -> None:
        later = bench.clock.after(HOUR)
        await bench.put(*jobs(7, "a", queue="a"), *jobs(7, "b", queue="b", due=later))
        steps = await every_step(bench, Query(), Delete(), limit=3)
        assert len(changed(steps)) == 14
        assert await bench.find(Query()) == []

    async def test_a_replay_of_all_dead_jobs_makes_each_ready_once(self, bench: Bench) -> None:
        await bench.put(*jobs(25))
        ann = await bench.worker()
        for taken in await ann.take(25):
            await ann.kill(taken)
        steps = await every_step(bench, Query(state=State.DEAD), Retry(), limit=10)
        assert len(changed(steps)) == 25
        assert len(await ann.take_ids(100)) == 25

    @pytest.mark.parametrize("action", [Cancel(), Delete(), Reprioritise(0), Reschedule(1 << 50)])
    @pytest.mark.parametrize("by", ["ids", "query"])
    async def test_a_dry_run_tells_what_would_change_and_changes_nothing(
        self, bench: Bench, by: str, action: JobAction
    ) -> None:
        await bench.put(job("a"), job("b", tags=("x",)), job("c", tags=("x",)))
        selection = Ids(("b", "c", "nobody")) if by == "ids" else Query(tag="x")
        before = await bench.everything()
        tried = await bench.edit(selection, action, dry_run=True)
        assert await bench.everything() == before
        assert tried.changed == ("b", "c")
        assert await bench.edit(selection, action) == tried

    async def test_a_dry_run_goes_on_with_its_cursor_too(self, bench: Bench) -> None:
        await bench.put(*jobs(25))
        steps = await every_step(bench, Query(), Cancel(), limit=10, dry_run=True)
        assert len(changed(steps)) == 25
        assert len(await bench.find(Query(state=State.READY))) == 25

    async def test_a_step_repeated_after_a_lost_reply_has_no_second_effect(self, bench: Bench) -> None:
        await bench.put(*jobs(5))
        first = await bench.edit(Query(state=State.READY), Cancel())
        again = await bench.edit(Query(state=State.READY), Cancel())
        assert (len(first.changed), again.changed) == (5, ())

    async def test_a_rare_match_among_many_is_found_over_several_steps(self, bench: Bench) -> None:
        await bench.put(*jobs(300), job("rare", tags=("x",)))
        steps = await every_step(bench, Query(tag="x"), Cancel(), limit=5)
        assert changed(steps) == ["rare"]
