"""What `put` accepts, and what it answers."""

from __future__ import annotations

import pytest

from dray.broker.actions import Query
from dray.broker.verbs import PUT_STEP, DocWrite
from dray.errors import InvalidInput, UnknownDependency
from dray.job import Job, State
from dray.testing.conformance.bench import MINUTE, SECOND, Bench, Theme, job, jobs


class TestAccepting(Theme):
    async def test_a_job_put_without_conditions_is_ready(self, bench: Bench) -> None:
        accepted = await bench.put_one(job("a"))
        assert (accepted.id, accepted.state, accepted.verdict) == ("a", State.READY, "created")
        assert accepted.replaced is None
        assert await bench.state("a") == State.READY

    async def test_an_id_that_was_never_put_is_not_found(self, bench: Bench) -> None:
        assert await bench.broker.get(["nobody"], now=bench.clock.now) == [None]

    async def test_a_job_comes_back_as_it_was_put(self, bench: Bench) -> None:
        full = Job(
            id="an id, printable: é ☃",
            task="mail.send",
            queue="mail-1",
            payload=bytes(range(256)),
            priority=2,
            created=1_600_000_000_000,
            due=bench.clock.after(MINUTE),
            ttl=MINUTE,
            key="welcome:42",
            key_ttl=2 * MINUTE,
            once=3 * MINUTE,
            on_duplicate="replace",
            group="tenant 7",
            rate="100/m+20",
            rate_key="smtp",
            max_running=4,
            running_key="mailbox",
            max_ready=1000,
            overflow="drop-oldest",
            orphan="run",
            parent="somebody",
            tags=("x", "y z"),
            description="two\nlines",
            retries=7,
            backoff="linear:10s",
            timeout=5 * SECOND,
            max_crashes=2,
            result_ttl=0,
            isolate="process",
            speculate=True,
            headers={"traceparent": "00-1-2-3", "leer": ""},
        )
        await bench.put(full)
        assert (await bench.record(full.id)).job == full
        bench.clock.advance(MINUTE)
        assert (await (await bench.worker()).take_one(["mail-1"])).job == full

    async def test_the_broker_says_when_it_was_created_unless_the_producer_does(self, bench: Bench) -> None:
        await bench.put(job("a"), job("b", created=12_345))
        assert (await bench.record("a")).created == bench.clock.time
        assert (await bench.record("b")).created == 12_345

    async def test_a_job_due_later_is_scheduled(self, bench: Bench) -> None:
        accepted = await bench.put_one(job(due=bench.clock.after(1)))
        assert accepted.state == State.SCHEDULED
        assert (await bench.record("job")).due == bench.clock.after(1)

    @pytest.mark.parametrize("due", [0, -SECOND])
    async def test_a_job_due_now_or_earlier_is_ready_at_once(self, bench: Bench, due: int) -> None:
        accepted = await bench.put_one(job(due=bench.clock.after(due)))
        assert accepted.state == State.READY
        assert (await bench.record("job")).due is None

    async def test_a_job_that_waits_for_an_unfinished_one_is_waiting(self, bench: Bench) -> None:
        first, second = await bench.put(job("a"), job("b", waits_for=("a",)))
        assert (first.state, second.state) == (State.READY, State.WAITING)
        assert (await bench.record("b")).waiting == ("a",)

    async def test_there_is_one_reply_per_job_in_their_order(self, bench: Bench) -> None:
        await bench.put(job("old", queue="q"))
        replies = await bench.put(
            job("new"), job("old"), job("bounded", queue="q", max_ready=1), job("later", due=1 << 50)
        )
        assert [(reply.id, reply.verdict) for reply in replies] == [
            ("new", "created"),
            ("old", "duplicate"),
            ("bounded", "full"),
            ("later", "created"),
        ]

    async def test_an_empty_put_accepts_nothing(self, bench: Bench) -> None:
        assert await bench.put() == []
        assert await bench.find(Query()) == []

    async def test_a_put_repeated_after_a_lost_reply_has_no_second_effect(self, bench: Bench) -> None:
        batch = [job("a"), job("b", due=bench.clock.after(MINUTE)), job("c", waits_for=("a",), key="k")]
        first = await bench.put(*batch)
        again = await bench.put(*batch)
        assert [(reply.id, reply.state) for reply in again] == [(reply.id, reply.state) for reply in first]
        assert {reply.verdict for reply in again} == {"duplicate"}
        assert await (await bench.worker()).take_ids(10) == ["a"]

    async def test_a_put_repeated_after_the_job_has_run_does_not_run_it_again(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        await ann.succeed(await ann.take_one())
        again = await bench.put_one(job())
        assert (again.verdict, again.state) == ("duplicate", State.SUCCEEDED)
        assert await ann.take() == []

    async def test_a_long_list_is_accepted_whole_and_in_order(self, bench: Bench) -> None:
        many = jobs(2 * PUT_STEP + 5)
        replies = await bench.put(*many)
        assert [reply.id for reply in replies] == [one.id for one in many]
        assert {reply.verdict for reply in replies} == {"created"}
        assert await (await bench.worker()).take_ids(3000) == [one.id for one in many]

    async def test_jobs_of_one_list_may_wait_for_each_other_in_any_order(self, bench: Bench) -> None:
        await bench.put(job("b", waits_for=("a",)), *jobs(PUT_STEP, queue="filler"), job("a"))
        assert await bench.states("a", "b") == [State.READY, State.WAITING]

    async def test_several_producers_put_into_one_store(self, bench: Bench) -> None:
        other = await bench.open()
        await bench.put(job("a"))
        await other.put([job("b")], now=bench.clock.now)
        await bench.put(job("c"))
        assert await (await bench.worker()).take_ids(10) == ["a", "b", "c"]

    @pytest.mark.parametrize("durability", [None, "normal", "full"])
    async def test_every_durability_accepts_the_job(self, bench: Bench, durability: None) -> None:
        await bench.broker.put([job()], durability=durability, now=bench.clock.now)
        assert await bench.state("job") == State.READY

    async def test_one_wrong_job_refuses_the_whole_list(self, bench: Bench) -> None:
        with pytest.raises(InvalidInput, match="priority"):
            await bench.put(job("a"), job("b", priority=10))
        assert await bench.find(Query()) == []

    async def test_a_made_up_dependency_that_is_unknown_refuses_the_whole_list(self, bench: Bench) -> None:
        with pytest.raises(UnknownDependency, match="nobody"):
            await bench.put(job("a"), job("b", waits_for=("nobody",)))
        assert await bench.find(Query()) == []

    async def test_an_unknown_dependency_refuses_also_a_list_of_several_steps(self, bench: Bench) -> None:
        with pytest.raises(UnknownDependency, match="nobody"):
            await bench.put(*jobs(PUT_STEP), job("late", waits_for=("nobody",)))
        assert await bench.find(Query()) == []

    async def test_a_refused_put_leaves_its_document_alone(self, bench: Bench) -> None:
        note = DocWrite(kind="note", name="n", value=b"1", expect_version=0)
        with pytest.raises(InvalidInput, match="waits_for"):
            await bench.put(job("a", waits_for=("nobody",)), when=note)
        assert (await bench.broker.doc("note", "n", now=bench.clock.now)).doc is None
