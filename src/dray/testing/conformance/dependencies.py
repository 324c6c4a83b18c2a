"""Jobs that wait for other jobs: release, orphans, and word that crosses queues."""

from __future__ import annotations

import pytest

from dray.broker.actions import Cancel, Delete, Query, Retry
from dray.broker.verbs import FORWARD_STEP
from dray.errors import InvalidInput
from dray.job import Orphan, State
from dray.testing.conformance.bench import HOUR, SECOND, Bench, Theme, Worker, job

GENERATED = "later:0123456789abcdef0123456789abcdef"


async def end(bench: Bench, worker: Worker, id: str, how: str) -> None:
    """Let the next job, which is `id`, end in a certain way."""
    if how == "cancelled":
        await bench.edit(id, Cancel())
    elif how == "deleted":
        await bench.edit(id, Delete())
    else:
        taken = await worker.take_one()
        assert taken.job.id == id
        await (worker.succeed(taken) if how == "succeeded" else worker.kill(taken))


class TestWaitingForJobs(Theme):
    async def test_a_job_is_ready_when_the_last_of_its_dependencies_is_done(self, bench: Bench) -> None:
        await bench.put(job("a"), job("b"), job("c", waits_for=("a", "b")))
        ann = await bench.worker()
        [a, b] = await ann.take(5)
        await ann.succeed(b)
        record = await bench.record("c")
        assert (record.state, record.waiting) == (State.WAITING, ("a",))
        await ann.succeed(a)
        assert await bench.state("c") == State.READY
        assert await ann.take_ids(5) == ["c"]

    async def test_a_dependency_that_has_succeeded_already_is_not_waited_for(self, bench: Bench) -> None:
        await bench.put(job("a"))
        ann = await bench.worker()
        await ann.succeed(await ann.take_one())
        assert (await bench.put_one(job("b", waits_for=("a",)))).state == State.READY

    async def test_a_retry_of_the_dependency_releases_nobody(self, bench: Bench) -> None:
        await bench.put(job("a"), job("b", waits_for=("a",)))
        ann = await bench.worker()
        await ann.retry(await ann.take_one())
        await ann.give_back(await ann.take_one())
        assert await bench.state("b") == State.WAITING

    async def test_a_dependency_may_be_in_another_queue(self, bench: Bench) -> None:
        await bench.put(job("a", queue="x"), job("b", queue="y", waits_for=("a",)))
        ann = await bench.worker()
        await ann.succeed(await ann.take_one(["x"]))
        assert await ann.take_ids(5, ["y"]) == ["b"]

    async def test_a_generated_id_may_be_waited_for_before_it_is_put(self, bench: Bench) -> None:
        assert (await bench.put_one(job("b", waits_for=(GENERATED,)))).state == State.WAITING
        await bench.put(job(GENERATED, queue="later"))
        ann = await bench.worker()
        await ann.succeed(await ann.take_one(["later"]))
        assert await ann.take_ids() == ["b"]

    async def test_a_released_job_still_waits_for_its_due_time(self, bench: Bench) -> None:
        await bench.put(job("a"), job("b", waits_for=("a",), due=bench.clock.after(SECOND)))
        ann = await bench.worker()
        await ann.succeed(await ann.take_one())
        assert await bench.state("b") == State.SCHEDULED
        bench.clock.advance(SECOND)
        assert await ann.take_ids() == ["b"]

    async def test_a_due_time_does_not_start_a_job_whose_dependency_is_not_done(self, bench: Bench) -> None:
        await bench.put(job("a"), job("b", waits_for=("a",), due=bench.clock.after(SECOND)))
        bench.clock.advance(HOUR)
        await bench.sweep()
        assert await bench.state("b") == State.WAITING

    async def test_a_job_may_wait_for_many(self, bench: Bench) -> None:
        first = [job(f"other:{n:032x}", queue="other") for n in range(150)]
        await bench.put(*first, job("last", waits_for=tuple(one.id for one in first)))
        ann = await bench.worker()
        taken = await ann.take(150, ["other"])
        for one in taken[:-1]:
            await ann.succeed(one)
        assert (await bench.record("last")).waiting == (taken[-1].job.id,)
        await ann.succeed(taken[-1])
        assert await ann.take_ids() == ["last"]

    async def test_a_diamond_comes_together_once(self, bench: Bench) -> None:
        await bench.put(
            job("top"),
            job("left", waits_for=("top",)),
            job("right", waits_for=("top",)),
            job("bottom", waits_for=("left", "right")),
        )
        ann = await bench.worker()
        order = []
        while taken := await ann.take(1):
            order.append(taken[0].job.id)
            await ann.succeed(taken[0])
            await ann.succeed(taken[0])
        assert order == ["top", "left", "right", "bottom"]

    async def test_a_chain_of_300_runs_through(self, bench: Bench) -> None:
        await bench.put(job("0"), *(job(str(n), waits_for=(str(n - 1),)) for n in range(1, 300)))
        ann = await bench.worker()
        for n in range(300):
            taken = await ann.take(5)
            assert [one.job.id for one in taken] == [str(n)]
            await ann.succeed(taken[0])
        assert len(await bench.find(Query(state=State.SUCCEEDED))) == 300

    async def test_a_chain_of_300_is_cancelled_to_its_end_when_its_head_dies(self, bench: Bench) -> None:
        await bench.put(job("0"), *(job(str(n), waits_for=(str(n - 1),)) for n in range(1, 300)))
        ann = await bench.worker()
        await ann.kill(await ann.take_one())
        while (await bench.sweep()).more:
            pass
        assert len(await bench.find(Query(state=State.CANCELLED))) == 299

    async def test_one_job_releases_any_number_of_others_once_each(self, bench: Bench) -> None:
        count = FORWARD_STEP + 200
        await bench.put(job("a"), *(job(f"b{n}", waits_for=("a",)) for n in range(count)))
        ann = await bench.worker()
        await ann.succeed(await ann.take_one())
        await bench.sweep()
        ids = await ann.take_ids(count * 2)
        assert len(ids) == len(set(ids)) == count

    async def test_a_job_that_waits_for_one_that_was_not_accepted_does_not_wait_for_ever(
        self, bench: Bench
    ) -> None:
        await bench.put(job("first", key="k"), job("ready", queue="small"))
        replies = await bench.broker.put(
            [
                job("by key", waits_for=("twin",)),
                job("twin", key="k"),
                job("too many", queue="small", max_ready=1),
                job("by bound", waits_for=("too many",), orphan="run"),
            ],
            now=bench.clock.now,
        )
        assert [reply.verdict for reply in replies] == ["created", "duplicate", "full", "created"]
        assert await bench.state("by key") == State.CANCELLED
        assert await bench.state("by bound") == State.READY

    async def test_a_circle_is_refused(self, bench: Bench) -> None:
        with pytest.raises(InvalidInput, match="waits_for"):
            await bench.put(job("a", waits_for=("b",)), job("b", waits_for=("a",)))
        assert await bench.find(Query()) == []

    async def test_the_completion_repeated_releases_nobody_twice(self, bench: Bench) -> None:
        await bench.put(job("a"), job("b", waits_for=("a",)))
        ann = await bench.worker()
        a = await ann.take_one()
        await ann.succeed(a)
        await ann.succeed(await ann.take_one())
        await ann.succeed(a)
        await bench.sweep()
        assert await ann.take(5) == []
        assert await bench.state("b") == State.SUCCEEDED


ENDS = ["dead", "cancelled", "deleted"]


class TestOrphans(Theme):
    @pytest.mark.parametrize("how", ENDS)
    async def test_orphan_cancel_cancels_and_names_the_dependency(self, bench: Bench, how: str) -> None:
        await bench.put(job("dep"), job("b", waits_for=("dep",)), job("c", waits_for=("b",)))
        await end(bench, await bench.worker(), "dep", how)
        record = await bench.record("b")
        assert (record.state, record.run, record.waiting) == (State.CANCELLED, 0, ())
        assert "dep" in str(record.reason)
        assert await bench.state("c") == State.CANCELLED

    @pytest.mark.parametrize("how", ENDS)
    async def test_orphan_run_runs_all_the_same(self, bench: Bench, how: str) -> None:
        await bench.put(job("a"), job("b", waits_for=("a",), orphan="run"))
        ann = await bench.worker()
        await end(bench, ann, "a", how)
        assert await ann.take_ids() == ["b"]

    async def test_orphan_run_waits_for_the_other_dependencies(self, bench: Bench) -> None:
        await bench.put(job("a"), job("b"), job("c", waits_for=("a", "b"), orphan="run"))
        ann = await bench.worker()
        await end(bench, ann, "a", "dead")
        assert await bench.state("c") == State.WAITING
        await end(bench, ann, "b", "succeeded")
        assert await ann.take_ids() == ["c"]

    @pytest.mark.parametrize("how", ["dead", "cancelled"])
    async def test_orphan_wait_waits_until_the_dependency_succeeds_after_all(
        self, bench: Bench, how: str
    ) -> None:
        await bench.put(job("a"), job("b", waits_for=("a",), orphan="wait"))
        ann = await bench.worker()
        await end(bench, ann, "a", how)
        await bench.sweep()
        assert await bench.state("b") == State.WAITING
        await bench.edit("a", Retry())
        await end(bench, ann, "a", "succeeded")
        assert await ann.take_ids() == ["b"]

    async def test_orphan_wait_waits_for_a_deleted_job_to_be_put_again(self, bench: Bench) -> None:
        await bench.put(job("a"), job("b", waits_for=("a",), orphan="wait"))
        ann = await bench.worker()
        await end(bench, ann, "a", "deleted")
        assert await bench.state("b") == State.WAITING
        await bench.put(job("a"))
        await end(bench, ann, "a", "succeeded")
        assert await ann.take_ids() == ["b"]

    @pytest.mark.parametrize(
        ("orphan", "state"),
        [("cancel", State.CANCELLED), ("run", State.READY), ("wait", State.WAITING)],
    )
    async def test_a_dependency_that_is_dead_already_makes_an_orphan_at_once(
        self, bench: Bench, orphan: Orphan, state: State
    ) -> None:
        await bench.put(job("a"))
        await end(bench, await bench.worker(), "a", "dead")
        await bench.put(job("b", waits_for=("a",), orphan=orphan))
        assert await bench.state("b") == state

    async def test_a_waiting_job_can_be_cancelled_and_is_not_released_later(self, bench: Bench) -> None:
        await bench.put(job("a"), job("b", waits_for=("a",)))
        ann = await bench.worker()
        await bench.edit("b", Cancel())
        await end(bench, ann, "a", "succeeded")
        assert await ann.take(5) == []
        assert await bench.state("b") == State.CANCELLED

    async def test_a_waiting_job_that_was_deleted_and_put_again_waits_again(self, bench: Bench) -> None:
        await bench.put(job("a"), job("b", waits_for=("a",)))
        await bench.edit("b", Delete())
        await bench.put(job("b", waits_for=("a",)))
        ann = await bench.worker()
        await end(bench, ann, "a", "succeeded")
        assert await ann.take_ids(5) == ["b"]

    async def test_a_parent_is_carried_along_and_waits_for_nothing(self, bench: Bench) -> None:
        await bench.put(job("child", parent="gone"), job("other"))
        assert await bench.find(Query(parent="gone")) == ["child"]
        assert await (await bench.worker()).take_ids(5) == ["child", "other"]
