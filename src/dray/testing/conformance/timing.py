"""Delays, and jobs that expire before they are started."""

from __future__ import annotations

from typing import Final

from dray.broker.actions import Cancel, Query, Reschedule
from dray.broker.verbs import EXPIRE_STEP, PROMOTE_STEP
from dray.job import State
from dray.testing.conformance.bench import HOUR, MINUTE, SECOND, Bench, Theme, job, jobs

LAST_DAY: Final = 253_402_300_799_999
"""The last millisecond of the year 9999."""


class TestDelays(Theme):
    async def test_a_delayed_job_is_not_handed_out_before_its_time(self, bench: Bench) -> None:
        await bench.put(job(due=bench.clock.after(SECOND)))
        ann = await bench.worker()
        bench.clock.advance(SECOND - 1)
        assert await ann.take() == []
        bench.clock.advance(1)
        assert await ann.take_ids() == ["job"]

    async def test_a_sweep_makes_due_jobs_ready_while_no_worker_looks(self, bench: Bench) -> None:
        await bench.put(job(due=bench.clock.after(SECOND)))
        assert (await bench.sweep()).promoted == 0
        bench.clock.advance(SECOND)
        assert (await bench.sweep()).promoted == 1
        record = await bench.record("job")
        assert (record.state, record.due) == (State.READY, None)
        assert (await bench.sweep()).promoted == 0

    async def test_a_delayed_job_of_high_priority_overtakes_once_it_is_due(self, bench: Bench) -> None:
        await bench.put(job("now"), job("soon", priority=0, due=bench.clock.after(1)))
        bench.clock.advance(1)
        assert await (await bench.worker()).take_ids(2) == ["soon", "now"]

    async def test_a_retry_and_a_schedule_due_together_are_both_handed_out(self, bench: Bench) -> None:
        await bench.put(job("a"), job("b", due=bench.clock.after(SECOND)))
        ann = await bench.worker()
        await ann.retry(await ann.take_one(), at=bench.clock.after(SECOND))
        assert await bench.states("a", "b") == [State.RETRYING, State.SCHEDULED]
        bench.clock.advance(SECOND)
        assert sorted(await ann.take_ids(5)) == ["a", "b"]

    async def test_a_job_of_the_last_day_of_the_calendar_waits(self, bench: Bench) -> None:
        await bench.put(job("last", due=LAST_DAY), job("years", due=bench.clock.after(30 * 365 * 24 * HOUR)))
        bench.clock.advance(HOUR)
        assert (await bench.sweep()).promoted == 0
        assert await (await bench.worker()).take() == []
        record = await bench.record("last")
        assert (record.state, record.due) == (State.SCHEDULED, LAST_DAY)
        info = await bench.queue()
        assert info is not None
        assert info.next_due == (await bench.record("years")).due

    async def test_far_future_jobs_keep_their_order_to_the_millisecond(self, bench: Bench) -> None:
        await bench.put(job("b", due=LAST_DAY), job("a", due=LAST_DAY - 1))
        bench.clock.advance(LAST_DAY - bench.clock.time - 1)
        ann = await bench.worker(lease=HOUR)
        assert await ann.take_ids(5) == ["a"]
        bench.clock.advance(1)
        assert await ann.take_ids(5) == ["b"]

    async def test_a_job_due_in_the_past_is_ready_at_once(self, bench: Bench) -> None:
        accepted = await bench.put(job("old", due=0), job("late", due=bench.clock.after(-1)))
        assert [reply.state for reply in accepted] == [State.READY, State.READY]
        assert await (await bench.worker()).take_ids(5) == ["old", "late"]

    async def test_a_burst_of_due_jobs_is_made_ready_in_steps_and_holds_up_nothing(
        self, bench: Bench
    ) -> None:
        await bench.put(*jobs(PROMOTE_STEP + 1, due=bench.clock.after(SECOND)))
        bench.clock.advance(SECOND)
        ann = await bench.worker()
        await ann.take(1)
        info = await bench.queue()
        assert info is not None
        assert (info.counts[State.READY], info.counts[State.SCHEDULED]) == (PROMOTE_STEP - 1, 1)
        await bench.put(job("urgent", priority=0))
        assert await ann.take_ids() == ["urgent"]
        assert await bench.find(Query(state=State.SCHEDULED)) == []

    async def test_a_delayed_job_can_be_cancelled_and_rescheduled(self, bench: Bench) -> None:
        await bench.put(*(job(id, due=bench.clock.after(HOUR)) for id in ("off", "sooner", "later", "past")))
        await bench.edit("off", Cancel())
        await bench.edit("sooner", Reschedule(bench.clock.after(SECOND)))
        await bench.edit("later", Reschedule(LAST_DAY))
        await bench.edit("past", Reschedule(bench.clock.after(-HOUR)))
        ann = await bench.worker(lease=2 * HOUR)
        assert await ann.take_ids(5) == ["past"]
        bench.clock.advance(SECOND)
        assert await ann.take_ids(5) == ["sooner"]
        bench.clock.advance(HOUR)
        assert await ann.take_ids(5) == []
        assert await bench.states("off", "later") == [State.CANCELLED, State.SCHEDULED]


class TestExpiry(Theme):
    async def test_a_job_not_started_within_its_ttl_is_dead_as_expired(self, bench: Bench) -> None:
        await bench.put(job(ttl=MINUTE))
        assert (await bench.record("job")).expires == bench.clock.after(MINUTE)
        ann = await bench.worker(lease=HOUR)
        bench.clock.advance(MINUTE)
        assert await ann.take() == []
        record = await bench.record("job")
        assert (record.state, record.run, record.finished) == (State.DEAD, 0, bench.clock.time)
        assert str(record.reason).startswith("expired")

    async def test_a_sweep_buries_expired_jobs_while_no_worker_looks(self, bench: Bench) -> None:
        await bench.put(job(ttl=MINUTE), job("other", ttl=HOUR))
        bench.clock.advance(MINUTE - 1)
        assert (await bench.sweep()).expired == 0
        bench.clock.advance(1)
        assert (await bench.sweep()).expired == 1
        assert await bench.states("job", "other") == [State.DEAD, State.READY]

    async def test_a_job_started_in_time_does_not_expire(self, bench: Bench) -> None:
        await bench.put(job(ttl=MINUTE))
        ann = await bench.worker(lease=HOUR)
        bench.clock.advance(MINUTE - 1)
        taken = await ann.take_one()
        bench.clock.advance(MINUTE)
        assert (await bench.sweep()).expired == 0
        assert (await ann.succeed(taken)).state == State.SUCCEEDED

    async def test_a_ttl_says_nothing_about_later_attempts(self, bench: Bench) -> None:
        await bench.put(job(ttl=MINUTE))
        ann = await bench.worker(lease=HOUR)
        await ann.retry(await ann.take_one(), at=bench.clock.after(2 * MINUTE))
        bench.clock.advance(3 * MINUTE)
        await bench.sweep()
        assert (await ann.take_one()).attempt == 2

    async def test_a_ttl_counts_from_when_the_job_falls_due(self, bench: Bench) -> None:
        await bench.put(job(due=bench.clock.after(HOUR), ttl=MINUTE))
        bench.clock.advance(HOUR + MINUTE - 1)
        await bench.sweep()
        assert await bench.state("job") == State.READY
        bench.clock.advance(1)
        await bench.sweep()
        assert await bench.state("job") == State.DEAD

    async def test_a_ttl_counts_from_when_the_last_dependency_is_done(self, bench: Bench) -> None:
        await bench.put(job("a"), job("b", waits_for=("a",), ttl=MINUTE))
        ann = await bench.worker(lease=2 * HOUR)
        taken = await ann.take_one()
        bench.clock.advance(HOUR)
        await bench.sweep()
        await ann.succeed(taken)
        assert (await bench.record("b")).expires == bench.clock.after(MINUTE)

    async def test_a_due_time_that_passed_while_waiting_does_not_shorten_the_ttl(self, bench: Bench) -> None:
        await bench.put(job("a"), job("b", waits_for=("a",), due=bench.clock.after(SECOND), ttl=MINUTE))
        ann = await bench.worker(lease=2 * HOUR)
        taken = await ann.take_one()
        bench.clock.advance(HOUR)
        await ann.succeed(taken)
        assert await ann.take_ids() == ["b"]

    async def test_a_due_time_before_the_put_does_not_shorten_the_ttl(self, bench: Bench) -> None:
        await bench.put(job(due=bench.clock.after(-HOUR), ttl=MINUTE))
        assert await (await bench.worker()).take_ids() == ["job"]

    async def test_putting_it_again_does_not_prolong_its_ttl(self, bench: Bench) -> None:
        await bench.put(job(ttl=MINUTE))
        expires = (await bench.record("job")).expires
        bench.clock.advance(SECOND)
        await bench.put(job(ttl=MINUTE))
        assert (await bench.record("job")).expires == expires

    async def test_an_expired_job_frees_its_key(self, bench: Bench) -> None:
        await bench.put(job("a", key="k", ttl=SECOND))
        bench.clock.advance(SECOND)
        await bench.sweep()
        assert (await bench.put_one(job("b", key="k"))).verdict == "created"

    async def test_expired_jobs_cost_no_rate(self, bench: Bench) -> None:
        await bench.put(job("a", ttl=SECOND, rate="1/m"), job("b", rate="1/m"))
        bench.clock.advance(SECOND)
        assert await (await bench.worker()).take_ids(5) == ["b"]

    async def test_a_heap_of_expired_jobs_does_not_hide_what_can_run(self, bench: Bench) -> None:
        await bench.put(*jobs(2 * EXPIRE_STEP + 1, "old", ttl=SECOND), job("fresh"))
        bench.clock.advance(SECOND)
        ann = await bench.worker()
        ids = [id for _ in range(4) for id in await ann.take_ids(5)]
        assert ids == ["fresh"]
