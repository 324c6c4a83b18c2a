"""Two namespaces in one store never see each other."""

from __future__ import annotations

from dray.broker.actions import Cancel, Pause, Query, Scope
from dray.broker.verbs import Beat, Filter, Interest, Wake
from dray.job import State
from dray.testing.conformance.bench import LEASE, Bench, Theme, job


class TestNamespaces(Theme):
    async def test_a_broker_knows_its_namespace(self, bench: Bench) -> None:
        assert (await bench.open("shop")).namespace == "shop"

    async def test_the_same_id_and_key_are_free_in_each(self, bench: Bench) -> None:
        other = await bench.open("other")
        for broker in (bench.broker, other):
            [reply] = await broker.put([job("a", key="k")], now=bench.clock.now)
            assert reply.verdict == "created"

    async def test_jobs_queues_documents_and_events_of_another_are_not_seen(self, bench: Bench) -> None:
        other = await bench.open("other")
        await other.put([job("a")], now=bench.clock.now)
        await other.doc("note", "n", b"1", now=bench.clock.now)
        assert await bench.state("a") == State.NOT_FOUND
        assert await bench.find(Query()) == []
        assert await bench.broker.queues(now=bench.clock.now) == []
        assert await bench.broker.docs("note", now=bench.clock.now) == []
        assert (await bench.broker.events({})).entries == []

    async def test_sessions_of_one_name_are_apart(self, bench: Bench) -> None:
        other = await bench.open("other")
        ann = await bench.worker("ann")
        [heard] = await other.renew([Beat("ann", LEASE)], now=bench.clock.now)
        assert heard.opened
        await bench.put(job())
        assert await other.take("ann", 1, ["default"], Filter(), 5, now=bench.clock.now) == []
        assert await ann.take_ids() == ["job"]
        assert await other.release("ann", now=bench.clock.now) == 0
        assert await bench.state("job") == State.RUNNING

    async def test_pauses_edits_and_sweeps_stay_inside(self, bench: Bench) -> None:
        other = await bench.open("other")
        await bench.put(job("a"), job("old", ttl=1, priority=9))
        await other.edit(Scope("default"), Pause(), now=bench.clock.now)
        await other.edit(Query(), Cancel(), now=bench.clock.now)
        bench.clock.advance(1)
        await other.sweep(now=bench.clock.now)
        assert await bench.states("a", "old") == [State.READY, State.READY]
        assert await (await bench.worker()).take_ids() == ["a"]

    async def test_names_that_share_a_beginning_are_apart(self, bench: Bench) -> None:
        first, second = await bench.open("a"), await bench.open("a.b")
        await first.put([job("x", queue="b.q")], now=bench.clock.now)
        await second.put([job("y", queue="q")], now=bench.clock.now)
        assert [queue.name for queue in await first.queues(now=bench.clock.now)] == ["b.q"]
        assert [queue.name for queue in await second.queues(now=bench.clock.now)] == ["q"]

    async def test_nobody_is_woken_by_another_namespace(self, bench: Bench) -> None:
        other = await bench.open("other")
        await other.put([job()], now=bench.clock.now)
        assert await bench.broker.wait(Interest(queues=("default",)), 0) == Wake()
