"""Jobs that belong together: owners, nodes of flows, first successes, revival."""

from __future__ import annotations

from typing import Any

import pytest

from dray.broker.actions import Cancel, Delete, Retry, Scope, SetLimits
from dray.errors import InvalidInput
from dray.job import Job, State
from dray.policy import Retention
from dray.testing.conformance.bench import HOUR, MINUTE, Bench, Theme, Worker, job


def node(id: str, queue: str = "default", **fields: Any) -> Job:
    return job(id, queue=queue, owner="flow", node=id, **fields)


async def end(ann: Worker, id: str, how: str = "succeeded", queue: str = "default") -> None:
    """Let the next job of a queue, which is `id`, end."""
    taken = await ann.take_one([queue])
    assert taken.job.id == id
    await (ann.succeed(taken, b"result") if how == "succeeded" else ann.kill(taken))


class TestOwners(Theme):
    async def test_a_finished_job_is_kept_until_its_owner_has_ended(self, bench: Bench) -> None:
        await bench.reopen("brief", Retention(result_ttl=MINUTE, done_ttl=HOUR))
        await bench.put(job("child", owner="parent", queue="other"), job("parent"))
        ann = await bench.worker()
        await end(ann, "child", queue="other")
        await ann.suspend(await ann.take_one(), events={"go": 0})
        for _ in range(5):
            bench.clock.advance(HOUR)
            await bench.sweep()
            record = await bench.record("child")
            assert (record.state, record.result) == (State.SUCCEEDED, b"result")
        await bench.edit("parent", Cancel())
        bench.clock.advance(24 * HOUR)
        await bench.sweep()
        assert await bench.state("child") == State.NOT_FOUND

    async def test_a_job_whose_owner_is_gone_goes_in_its_own_time(self, bench: Bench) -> None:
        await bench.reopen("brief", Retention(done_ttl=HOUR))
        await bench.put(job("child", owner="nobody"))
        ann = await bench.worker()
        await end(ann, "child")
        bench.clock.advance(HOUR - 1)
        await bench.sweep()
        assert await bench.state("child") == State.SUCCEEDED
        bench.clock.advance(1)
        await bench.sweep()
        assert await bench.state("child") == State.NOT_FOUND

    async def test_kept_jobs_do_not_keep_others_from_being_pruned(self, bench: Bench) -> None:
        await bench.reopen("brief", Retention(done_ttl=HOUR))
        await bench.put(job("parent", queue="home"), *[job(f"c{n}", owner="parent") for n in range(5)])
        await bench.put(job("free"))
        ann = await bench.worker()
        for id in ("c0", "c1", "c2", "c3", "c4", "free"):
            await end(ann, id)
        bench.clock.advance(HOUR)
        for _ in range(4):
            await bench.sweep(limit=2)
        assert await bench.states("c0", "c4", "free") == [State.SUCCEEDED, State.SUCCEEDED, State.NOT_FOUND]

    async def test_an_owned_job_can_be_deleted(self, bench: Bench) -> None:
        await bench.put(job("child", owner="parent"), job("parent", queue="home"))
        ann = await bench.worker()
        await end(ann, "child")
        assert (await bench.edit("child", Delete())).changed == ("child",)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"owner": ""},
            {"owner": "job"},
            {"node": "a"},
            {"owner": "f", "node": 7},
            {"owner": "f", "node": "a", "on_duplicate": "replace"},
        ],
    )
    async def test_nonsense_is_refused(self, bench: Bench, wrong: dict[str, object]) -> None:
        with pytest.raises(InvalidInput):
            await bench.put(job(**wrong))  # type: ignore[arg-type]


class TestNodes(Theme):
    async def test_the_tally_counts_the_nodes_of_a_flow_by_state(self, bench: Bench) -> None:
        await bench.put(node("a"), node("b", "other"), node("c", waits_for=("a",)))
        await bench.put(job("x", owner="flow"), job("y", owner="else", node="y"))
        assert await bench.broker.tally("flow", ["default", "other"]) == {State.READY: 2, State.WAITING: 1}
        assert await bench.broker.tally("flow", ["other"]) == {State.READY: 1}
        ann = await bench.worker()
        await end(ann, "a")
        assert await bench.broker.tally("flow", ["default"]) == {State.READY: 1, State.SUCCEEDED: 1}
        await bench.edit("c", Delete())
        assert await bench.broker.tally("flow", ["default"]) == {State.SUCCEEDED: 1}
        assert await bench.broker.tally("nobody", ["default"]) == {}

    async def test_the_tally_follows_every_move(self, bench: Bench) -> None:
        await bench.put(node("a"))
        ann = await bench.worker()
        states = []
        for step in ("take", "retry", "take", "suspend", "send", "take", "kill", "replay"):
            if step == "take":
                [taken] = await ann.take()
            elif step == "retry":
                await ann.retry(taken)
            elif step == "suspend":
                await ann.suspend(taken, events={"go": 0})
            elif step == "send":
                await bench.send("a")
            elif step == "kill":
                await ann.kill(taken)
            else:
                await bench.edit("a", Retry())
            states += [*await bench.broker.tally("flow", ["default"])]
        assert states == ["running", "ready", "running", "waiting", "ready", "running", "dead", "ready"]

    async def test_a_pruned_node_leaves_the_tally(self, bench: Bench) -> None:
        await bench.reopen("brief", Retention(done_ttl=HOUR))
        await bench.put(node("a"))
        ann = await bench.worker()
        await end(ann, "a")
        bench.clock.advance(HOUR)
        await bench.sweep()
        assert await bench.broker.tally("flow", ["default"]) == {}

    async def test_nodes_are_exempt_from_the_bounds_of_a_queue(self, bench: Bench) -> None:
        await bench.edit(Scope("default"), SetLimits(max_ready=1, enqueue_rate="1/h"))
        assert (await bench.put_one(job("first"))).verdict == "created"
        for id in ("a", "b"):
            assert (await bench.put_one(node(id, max_ready=1))).verdict == "created"
        assert (await bench.put_one(job("second"))).verdict == "limited"

    async def test_a_node_is_not_dropped_or_replaced(self, bench: Bench) -> None:
        await bench.put(node("a", key="k"))
        bound = job("new", max_ready=1, overflow="drop-oldest")
        assert (await bench.put_one(bound)).verdict == "full"
        reply = await bench.put_one(job("other", key="k", on_duplicate="replace"))
        assert (reply.verdict, reply.id) == ("duplicate", "a")
        assert await bench.state("a") == State.READY


class TestFirstSuccess(Theme):
    async def test_the_first_success_releases(self, bench: Bench) -> None:
        await bench.put(job("a"), job("b"), job("c", waits_for=("a", "b"), orphan="first"))
        ann = await bench.worker()
        await end(ann, "a")
        record = await bench.record("c")
        assert (record.state, record.waiting) == (State.READY, ())
        await end(ann, "b")
        assert await ann.take_ids() == ["c"]

    async def test_a_bad_end_only_leaves_one_less_to_wait_for(self, bench: Bench) -> None:
        await bench.put(job("a"), job("b"), job("c", waits_for=("a", "b"), orphan="first"))
        ann = await bench.worker()
        await end(ann, "a", "dead")
        assert (await bench.record("c")).waiting == ("b",)
        await bench.edit("b", Cancel())
        assert await bench.state("c") == State.READY

    async def test_a_success_before_the_put_is_enough(self, bench: Bench) -> None:
        await bench.put(job("a"), job("b"))
        ann = await bench.worker()
        await end(ann, "a")
        accepted = await bench.put_one(job("c", waits_for=("b", "a"), orphan="first"))
        assert accepted.state == State.READY

    async def test_bad_ends_before_the_put_release_at_the_last(self, bench: Bench) -> None:
        await bench.put(job("a"), job("b"))
        ann = await bench.worker()
        await end(ann, "a", "dead")
        await end(ann, "b", "dead")
        await bench.put(job("c", waits_for=("a", "b"), orphan="first"))
        assert await bench.state("c") == State.READY


class TestRevival(Theme):
    async def test_replaying_a_job_revives_what_was_cancelled_because_of_it(self, bench: Bench) -> None:
        await bench.put(
            node("a"), node("b"), node("c", "other", waits_for=("a", "b")), node("d", waits_for=("c",))
        )
        ann = await bench.worker()
        await end(ann, "a", "dead")
        assert [(await bench.record(id)).orphaned_by for id in ("c", "d")] == ["a", "c"]
        assert await bench.states("b", "c", "d") == [State.READY, State.CANCELLED, State.CANCELLED]
        await bench.edit("a", Retry())
        assert (await bench.record("c")).waiting == ("a", "b")
        record = await bench.record("d")
        assert (record.state, record.waiting, record.reason) == (State.WAITING, ("c",), None)
        assert (record.orphaned_by, record.finished) == (None, None)
        assert ("revived", "d") in await bench.happened()
        for id, queue in (("b", "default"), ("a", "default"), ("c", "other"), ("d", "default")):
            await end(ann, id, queue=queue)

    async def test_what_was_cancelled_for_another_reason_stays_so(self, bench: Bench) -> None:
        await bench.put(node("a"), node("b"), node("c", waits_for=("a", "b")), node("d", waits_for=("a",)))
        ann = await bench.worker()
        await bench.edit("d", Cancel("by hand"))
        await end(ann, "a", "dead")
        await end(ann, "b", "dead")
        await bench.edit("b", Retry())
        assert await bench.states("c", "d") == [State.CANCELLED, State.CANCELLED]

    async def test_one_that_is_still_dead_cancels_again(self, bench: Bench) -> None:
        await bench.put(node("a"), node("b"), node("c", waits_for=("a", "b")))
        ann = await bench.worker()
        await end(ann, "a", "dead")
        await end(ann, "b", "dead")
        await bench.edit("a", Retry())
        record = await bench.record("c")
        assert (record.state, record.orphaned_by) == (State.CANCELLED, "b")
        await bench.edit("b", Retry())
        assert (await bench.record("c")).waiting == ("a", "b")

    async def test_a_dependency_that_succeeded_meanwhile_is_not_waited_for(self, bench: Bench) -> None:
        await bench.put(node("a"), node("b"), node("c", waits_for=("a", "b")))
        ann = await bench.worker()
        await end(ann, "a", "dead")
        await end(ann, "b")
        await bench.edit("a", Retry())
        assert (await bench.record("c")).waiting == ("a",)
        await end(ann, "a")
        assert await bench.state("c") == State.READY

    async def test_a_dependency_that_is_gone_cancels_again(self, bench: Bench) -> None:
        await bench.put(node("a"), node("b"), node("c", waits_for=("a", "b")))
        ann = await bench.worker()
        await end(ann, "a", "dead")
        await bench.edit("b", Delete())
        await bench.edit("a", Retry())
        record = await bench.record("c")
        assert (record.state, record.orphaned_by) == (State.CANCELLED, "b")

    async def test_a_revived_job_takes_its_key_back(self, bench: Bench) -> None:
        await bench.put(node("a"), node("c", waits_for=("a",), key="k"))
        ann = await bench.worker()
        await end(ann, "a", "dead")
        await bench.edit("a", Retry())
        assert (await bench.put_one(job("x", key="k"))).id == "c"

    async def test_a_job_whose_key_is_taken_stays_cancelled(self, bench: Bench) -> None:
        await bench.put(node("a"), node("c", waits_for=("a",), key="k"))
        ann = await bench.worker()
        await end(ann, "a", "dead")
        await bench.put(job("x", key="k"))
        await bench.edit("a", Retry())
        assert await bench.state("c") == State.CANCELLED

    @pytest.mark.parametrize("how", ["succeeded", "dead"])
    async def test_a_job_that_follows_goes_back_to_waiting(self, bench: Bench, how: str) -> None:
        await bench.put(
            node("a"), node("b"), job("flow", queue="home", waits_for=("a", "b"), orphan="follow")
        )
        ann = await bench.worker()
        await end(ann, "a", "dead")
        await end(ann, "b")
        await end(ann, "flow", how, "home")
        await bench.edit("a", Retry())
        record = await bench.record("flow")
        assert (record.state, record.waiting) == (State.WAITING, ("a",))
        assert (record.result, record.reason, record.replayed) == (None, None, 1)
        await end(ann, "a")
        assert (await ann.take_one(["home"])).run == 2

    async def test_a_job_that_follows_and_has_not_ended_stays_as_it_is(self, bench: Bench) -> None:
        await bench.put(node("a"), job("flow", queue="home", waits_for=("a",), orphan="follow"))
        ann = await bench.worker()
        await end(ann, "a", "dead")
        await bench.edit("a", Retry())
        assert await bench.state("flow") == State.READY

    async def test_a_job_that_follows_one_it_had_waited_for_is_revived_too(self, bench: Bench) -> None:
        await bench.put(node("item", "other"), node("map", orphan="follow"))
        ann = await bench.worker()
        taken = await ann.take_one()
        await ann.suspend(taken, jobs=("item",), all_jobs=True)
        await end(ann, "item", "dead", "other")
        await end(ann, "map", "dead")
        await bench.edit("item", Retry())
        assert (await bench.record("map")).waiting == ("item",)
        await end(ann, "item", "succeeded", "other")
        await end(ann, "map")

    async def test_a_job_that_is_no_node_revives_nothing(self, bench: Bench) -> None:
        await bench.put(job("a"), job("c", waits_for=("a",)))
        ann = await bench.worker()
        await end(ann, "a", "dead")
        assert (await bench.record("c")).orphaned_by == "a"
        await bench.edit("a", Retry())
        assert await bench.state("c") == State.CANCELLED

    async def test_a_second_replay_revives_again(self, bench: Bench) -> None:
        await bench.put(node("a"), node("c", waits_for=("a",)))
        ann = await bench.worker()
        for _ in range(3):
            await end(ann, "a", "dead")
            assert await bench.state("c") == State.CANCELLED
            await bench.edit("a", Retry())
            assert await bench.state("c") == State.WAITING
        await end(ann, "a")
        await end(ann, "c")

    async def test_nothing_is_left_when_node_and_dependant_are_gone(self, bench: Bench) -> None:
        await bench.put(node("a"), node("c", waits_for=("a",)))
        ann = await bench.worker()
        await end(ann, "a", "dead")
        await bench.edit("c", Delete())
        await bench.edit("a", Retry())
        await end(ann, "a")
        await bench.edit("a", Delete())
        await bench.put(node("a"), node("c", waits_for=("a",)))
        assert await bench.state("c") == State.WAITING
