"""The feed: what happened, in order."""

from __future__ import annotations

from dray.broker.actions import (
    Cancel,
    Delete,
    Pause,
    Reprioritise,
    Reschedule,
    Resume,
    Retry,
    Scope,
    SetLimits,
    Speculate,
)
from dray.broker.verbs import Entry, Event, ProgressReport
from dray.job import Progress
from dray.testing.conformance.bench import HOUR, MINUTE, SECOND, Bench, Theme, job, jobs


class TestFeed(Theme):
    async def test_one_step_makes_one_entry_per_queue(self, bench: Bench) -> None:
        await bench.put(job("a"), job("b", queue="other"), job("c"))
        await bench.put(job("d"))
        at = bench.clock.time
        assert (await bench.broker.events({})).entries == [
            Entry("default", 1, at, (Event("put", "a"), Event("put", "c"))),
            Entry("default", 2, at, (Event("put", "d"),)),
            Entry("other", 1, at, (Event("put", "b"),)),
        ]

    async def test_the_life_of_a_job_is_told_in_order_with_its_runs(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker(lease=HOUR)
        taken = await ann.take_one()
        await ann.beat(ProgressReport("job", 1, Progress(1)))
        await ann.retry(taken, at=bench.clock.after(SECOND))
        bench.clock.advance(SECOND)
        await ann.give_back(await ann.take_one())
        await ann.take_one()
        await ann.leave()
        bob = await bench.worker("bob")
        await bob.succeed(await bob.take_one())
        feed = await bench.broker.events({})
        told = [(event.kind, event.run) for entry in feed.entries for event in entry.events]
        assert {event.id for entry in feed.entries for event in entry.events} == {"job"}
        assert told == [
            ("put", 0),
            ("taken", 1),
            ("progress", 1),
            ("retried", 1),
            ("promoted", 0),
            ("taken", 2),
            ("given_back", 2),
            ("taken", 3),
            ("crashed", 3),
            ("taken", 4),
            ("succeeded", 4),
        ]

    async def test_changes_by_hand_are_told_too(self, bench: Bench) -> None:
        await bench.put(job("a", speculate=True))
        await bench.edit("a", Reprioritise(1))
        await bench.edit("a", Reschedule(bench.clock.after(SECOND)))
        await bench.edit("a", Retry())
        ann = await bench.worker()
        taken = await ann.take_one()
        await bench.edit("a", Speculate())
        await bench.edit("a", Cancel())
        await ann.succeed(taken)
        await bench.edit("a", Delete())
        kinds = [kind for kind, _ in await bench.happened()]
        assert kinds == [
            "put",
            "reprioritised",
            "rescheduled",
            "replayed",
            "taken",
            "speculated",
            "cancel_asked",
            "cancelled",
            "deleted",
        ]

    async def test_deaths_releases_and_cancellations_name_their_job(self, bench: Bench) -> None:
        await bench.put(
            job("a"),
            job("b", waits_for=("a",)),
            job("old", "other", ttl=MINUTE),
            job("x", waits_for=("old",)),
        )
        ann = await bench.worker(lease=HOUR)
        await ann.succeed(await ann.take_one())
        bench.clock.advance(MINUTE)
        await bench.sweep()
        await bench.sweep()
        happened = await bench.happened()
        assert happened.index(("succeeded", "a")) < happened.index(("released", "b"))
        assert happened.index(("died", "old")) < happened.index(("cancelled", "x"))

    async def test_what_happens_to_a_queue_has_no_job(self, bench: Bench) -> None:
        await bench.edit(Scope("default"), Pause())
        await bench.edit(Scope("default", "work"), Resume())
        await bench.edit(Scope("default"), SetLimits(max_running=1))
        assert await bench.happened() == [("paused", ""), ("resumed", ""), ("limited", "")]

    async def test_the_end_of_one_of_two_runs_is_told(self, bench: Bench) -> None:
        await bench.put(job(speculate=True))
        ann, bob = await bench.worker("ann"), await bench.worker("bob")
        await ann.take_one()
        await bench.edit("job", Speculate())
        await bob.retry(await bob.take_one())
        assert (await bench.happened())[-1] == ("run_ended", "job")

    async def test_what_changed_nothing_is_not_told(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        taken = await ann.take_one()
        await ann.succeed(taken)
        before = await bench.happened()
        await bench.put(job())
        await ann.succeed(taken)
        await ann.take()
        await ann.beat()
        await bench.edit("job", Cancel())
        await bench.edit("nobody", Delete())
        await bench.sweep()
        await bench.broker.get(["job"], watch="w", now=bench.clock.now)
        assert await bench.happened() == before

    async def test_a_reader_goes_on_from_its_cursor(self, bench: Bench) -> None:
        await bench.put(job("a"))
        first = await bench.broker.events({})
        assert first.cursor == {"default": 1}
        assert (await bench.broker.events(first.cursor)).entries == []
        await bench.put(job("b"), job("c", queue="other"))
        second = await bench.broker.events(first.cursor)
        assert [(entry.queue, entry.number) for entry in second.entries] == [("default", 2), ("other", 1)]
        assert second.cursor == {"default": 2, "other": 1}
        assert (first.gaps, second.gaps) == ((), ())

    async def test_a_page_repeated_is_the_same_page(self, bench: Bench) -> None:
        await bench.put(*jobs(3))
        assert await bench.broker.events({}) == await bench.broker.events({})

    async def test_none_starts_with_the_next_entry_to_come(self, bench: Bench) -> None:
        await bench.put(job("old"))
        start = await bench.broker.events(None)
        assert start.entries == []
        await bench.put(job("new"), job("newer", queue="new-queue"))
        feed = await bench.broker.events(start.cursor)
        assert [event.id for entry in feed.entries for event in entry.events] == ["new", "newer"]

    async def test_pages_together_hold_every_entry_once_and_without_holes(self, bench: Bench) -> None:
        for n in range(10):
            await bench.put(job(f"a{n}", queue="a"), job(f"b{n}", queue="b"))
        numbers: dict[str, list[int]] = {"a": [], "b": []}
        cursor: dict[str, int] = {}
        while (feed := await bench.broker.events(cursor, limit=3)).entries:
            assert len(feed.entries) <= 3
            cursor = feed.cursor
            for entry in feed.entries:
                numbers[entry.queue].append(entry.number)
        assert numbers == {"a": list(range(1, 11)), "b": list(range(1, 11))}

    async def test_the_feed_is_bounded_and_who_fell_behind_gets_a_gap(self, bench: Bench) -> None:
        await bench.put(job("a"))
        start = (await bench.broker.events({})).cursor
        for _ in range(40):
            for _ in range(250):
                await bench.edit(Scope("default"), Resume())
                await bench.edit(Scope("default"), Resume())
            feed = await bench.broker.events(start, limit=1)
            if feed.gaps:
                break
        assert feed.gaps == ("default",)
        assert feed.entries[0].number > start["default"] + 1
        assert (await bench.broker.events(feed.cursor, limit=1)).gaps == ()

    async def test_what_happened_to_an_empty_queue_is_dropped_and_its_readers_get_a_gap(
        self, bench: Bench
    ) -> None:
        await bench.put(job("a"), job("b", queue="busy"))
        await bench.edit("a", Delete())
        read = (await bench.broker.events({})).cursor
        behind = {"default": read["default"] - 1, "busy": read["busy"]}
        bench.clock.advance(9 * MINUTE)
        await bench.sweep()
        assert {entry.queue for entry in (await bench.broker.events({})).entries} == {"default", "busy"}
        bench.clock.advance(2 * MINUTE)
        await bench.sweep()
        assert {entry.queue for entry in (await bench.broker.events({})).entries} == {"busy"}
        assert set((await bench.broker.events(None)).cursor) == {"busy"}
        for cursor in (read, behind):
            feed = await bench.broker.events(cursor)
            assert (feed.entries, feed.gaps, feed.cursor) == ([], (), cursor)
        await bench.put(job("c"))
        for cursor in (read, behind):
            feed = await bench.broker.events(cursor)
            assert [event.id for entry in feed.entries for event in entry.events] == ["c"]
            assert feed.gaps == ("default",)
            assert (await bench.broker.events(feed.cursor)).gaps == ()

    async def test_a_queue_that_was_forgotten_comes_back_with_all_its_promises(self, bench: Bench) -> None:
        ann = await bench.worker(lease=MINUTE)
        await bench.put(job("a", key="k"))
        late = await ann.take_one()
        bench.clock.advance(2 * MINUTE)
        await bench.sweep()  # its lease is over
        await bench.edit("a", Delete())
        old = (await bench.broker.events({})).cursor
        for _ in range(3):
            bench.clock.advance(3 * HOUR)
            await bench.sweep()
        assert await bench.broker.queues(now=bench.clock.now) == []
        await bench.put(job("a", key="k"))
        feed = await bench.broker.events(old)
        assert (feed.gaps, [entry.number > old["default"] for entry in feed.entries]) == (
            ("default",),
            [True],
        )
        bob = await bench.worker("bob")
        again = await bob.take_one()
        assert (await ann.succeed(late)).verdict == "refused"
        assert (await bob.succeed(again)).verdict == "accepted"
        assert [info.name for info in await bench.broker.queues(now=bench.clock.now)] == ["default"]

    async def test_settings_of_an_empty_queue_stay(self, bench: Bench) -> None:
        await bench.edit(Scope("default"), Pause(by="ann"))
        await bench.edit(Scope("default"), SetLimits(max_running=3))
        for _ in range(3):
            bench.clock.advance(24 * HOUR)
            await bench.sweep()
        [info] = await bench.broker.queues(now=bench.clock.now)
        assert info.paused is not None
        assert (info.paused.by, info.limits.max_running) == ("ann", 3)
        await bench.put(job())
        assert await (await bench.worker()).take() == []

    async def test_a_cursor_ahead_of_the_feed_is_a_gap_too(self, bench: Bench) -> None:
        """The store was lost and began anew: readers of the old one must read anew as well."""
        await bench.put(job("a"))
        feed = await bench.broker.events({"default": 1_000})
        assert feed.gaps == ("default",)
        assert [entry.number for entry in feed.entries] == [1]
