"""The log and the mailbox of a durable job."""

from __future__ import annotations

import pytest

from dray.broker.actions import Cancel, Delete, Retry
from dray.broker.durable import MAILBOX_MAX, MEMO_BYTES_MAX, MEMOS_MAX, MESSAGE_MAX, MemoWrite
from dray.errors import InvalidInput, TooLarge
from dray.job import State, Verdict
from dray.policy import Retention
from dray.testing.conformance.bench import HOUR, LEASE, Bench, Theme, job


class TestLog(Theme):
    async def test_what_a_run_writes_the_next_one_reads(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        taken = await ann.take_one()
        assert (taken.memos, await bench.log("job")) == (0, [])
        assert await ann.memo(taken, 0, b"one", b"") == Verdict.ACCEPTED
        assert await ann.memo(taken, 2, b"\xff three") == Verdict.ACCEPTED
        await ann.retry(taken)
        again = await ann.take_one()
        assert again.memos == 3
        assert await bench.log("job") == [b"one", b"", b"\xff three"]
        assert (await bench.record("job")).memos == 3

    async def test_a_repeated_write_has_no_second_effect(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        taken = await ann.take_one()
        await ann.memo(taken, 0, b"one", b"two")
        assert await ann.memo(taken, 0, b"one", b"two") == Verdict.ALREADY
        assert await bench.log("job") == [b"one", b"two"]

    @pytest.mark.parametrize(("position", "entry"), [(0, b"one"), (0, b"other"), (1, b"other"), (3, b"x")])
    async def test_a_write_at_another_position_is_refused(
        self, bench: Bench, position: int, entry: bytes
    ) -> None:
        await bench.put(job())
        ann = await bench.worker()
        taken = await ann.take_one()
        await ann.memo(taken, 0, b"one", b"two")
        assert await ann.memo(taken, position, entry) == Verdict.REFUSED
        assert await ann.memo(taken, 9) == Verdict.REFUSED
        assert await bench.log("job") == [b"one", b"two"]

    @pytest.mark.parametrize("how", ["settled", "released", "lapsed", "other session"])
    async def test_only_the_run_that_is_held_writes(self, bench: Bench, how: str) -> None:
        await bench.put(job())
        ann, bob = await bench.worker("ann"), await bench.worker("bob", lease=HOUR)
        taken = await ann.take_one()
        writer = bob if how == "other session" else ann
        if how == "settled":
            await ann.retry(taken)
        elif how == "released":
            await ann.leave()
        elif how == "lapsed":
            bench.clock.advance(LEASE)
            await bench.sweep()
        assert await writer.memo(taken, 0, b"stale") == Verdict.REFUSED
        assert await bench.log("job") == []

    async def test_writes_of_several_jobs_are_answered_in_order(self, bench: Bench) -> None:
        await bench.put(job("a", queue="x"), job("b", queue="y"))
        ann = await bench.worker()
        [a, b] = await ann.take(2, ["x", "y"])
        writes = [
            MemoWrite(id="b", run=b.run, position=0, entries=(b"b",)),
            MemoWrite(id="gone", run=1, position=0, entries=(b"?",)),
            MemoWrite(id="a", run=a.run, position=1, entries=(b"a",)),
        ]
        verdicts = await ann.broker.memo("ann", writes, now=bench.clock.now)
        assert verdicts == [Verdict.ACCEPTED, Verdict.REFUSED, Verdict.REFUSED]
        assert (await bench.log("a"), await bench.log("b")) == ([], [b"b"])

    async def test_a_long_log_is_read_in_pages(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        taken = await ann.take_one()
        entries = [str(number).encode() for number in range(2500)]
        await ann.memo(taken, 0, *entries)
        read: list[bytes] = []
        while page := await bench.broker.recall("job", len(read), limit=1000):
            assert len(page) <= 1000
            read += page
        assert read == entries

    async def test_a_page_of_large_entries_is_short(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        taken = await ann.take_one()
        for number in range(3):
            await ann.memo(taken, number, bytes([number]) * (3 << 20))
        assert [len(await bench.broker.recall("job", at)) for at in range(4)] == [2, 2, 1, 0]

    async def test_a_log_that_would_be_too_long_is_refused_and_stays_as_it_is(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        taken = await ann.take_one()
        await ann.memo(taken, 0, *[b""] * (MEMOS_MAX - 1))
        with pytest.raises(TooLarge):
            await ann.memo(taken, MEMOS_MAX - 1, b"", b"")
        with pytest.raises(TooLarge):
            await ann.memo(taken, MEMOS_MAX - 1, bytes(MEMO_BYTES_MAX + 1))
        assert (await bench.record("job")).memos == MEMOS_MAX - 1
        assert await ann.memo(taken, MEMOS_MAX - 1, b"") == Verdict.ACCEPTED

    async def test_the_log_goes_with_the_record_and_not_before(self, bench: Bench) -> None:
        await bench.reopen("brief", Retention(done_ttl=HOUR))
        await bench.put(job())
        ann = await bench.worker()
        taken = await ann.take_one()
        await ann.memo(taken, 0, b"one")
        await ann.succeed(taken)
        bench.clock.advance(HOUR - 1)
        await bench.sweep()
        assert await bench.log("job") == [b"one"]
        bench.clock.advance(1)
        await bench.sweep()
        assert await bench.log("job") == []
        await bench.put(job())
        assert (await bench.log("job"), (await bench.record("job")).memos) == ([], 0)

    async def test_a_deleted_job_leaves_no_log_to_the_next_of_its_id(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        taken = await ann.take_one()
        await ann.memo(taken, 0, b"one")
        await bench.send("job")
        await ann.kill(taken)
        await bench.edit("job", Delete())
        await bench.put(job())
        assert (await bench.log("job"), await bench.mail("job")) == ([], [])
        assert (await bench.send("job")).verdict == "accepted"

    async def test_a_replayed_job_keeps_its_log_and_learns_since_when(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        taken = await ann.take_one()
        await ann.memo(taken, 0, b"one")
        await ann.kill(taken)
        await bench.edit("job", Retry())
        again = await ann.take_one()
        assert (again.run, again.memos, again.replayed) == (2, 1, 1)
        assert (await bench.record("job")).replayed == 1

    async def test_a_job_without_steps_has_no_log(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        await ann.succeed(await ann.take_one())
        record = await bench.record("job")
        assert (record.memos, record.replayed, record.suspended, record.undo) == (0, 0, None, None)

    async def test_reading_what_is_not_there_returns_nothing(self, bench: Bench) -> None:
        assert await bench.broker.recall("nobody") == []
        assert await bench.broker.mailbox("nobody", "go") == []
        await bench.put(job())
        assert await bench.broker.recall("job", 7) == []


class TestMailbox(Theme):
    async def test_messages_of_a_name_are_numbered_from_one_and_kept_in_order(self, bench: Bench) -> None:
        await bench.put(job())
        for number, message in enumerate(("x", "y", "z")):
            sent = await bench.send("job", "go", message, bytes([number]))
            assert (sent.verdict, sent.state) == ("accepted", State.READY)
        await bench.send("job", "other", "x", b"!")
        assert await bench.mail("job") == [(1, b"\0"), (2, b"\1"), (3, b"\2")]
        assert await bench.mail("job", after=2) == [(3, b"\2")]
        assert await bench.mail("job", "other") == [(1, b"!")]
        [first] = await bench.broker.mailbox("job", "go", limit=1)
        assert (first.number, first.id, first.body) == (1, "x", b"\0")

    async def test_the_same_message_again_has_no_effect(self, bench: Bench) -> None:
        await bench.put(job())
        await bench.send("job", message="x", body=b"1")
        assert (await bench.send("job", message="x", body=b"2")).verdict == "already"
        assert await bench.mail("job") == [(1, b"1")]

    async def test_a_message_that_was_dropped_is_not_accepted_again(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        taken = await ann.take_one()
        await bench.send("job", message="x")
        await bench.send("job", message="y", body=b"y")
        await ann.memo(taken, 0, b"got", consumed={"go": 1, "never": 5})
        assert await bench.mail("job") == [(2, b"y")]
        assert (await bench.send("job", message="x")).verdict == "already"
        assert (await bench.send("job", message="z", body=b"z")).verdict == "accepted"
        assert await bench.mail("job") == [(2, b"y"), (3, b"z")]

    async def test_a_number_beyond_the_last_drops_no_later_message(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        taken = await ann.take_one()
        await bench.send("job", message="x")
        await ann.memo(taken, 0, b"got", consumed={"go": 9})
        await bench.send("job", message="y", body=b"y")
        assert await bench.mail("job") == [(2, b"y")]

    async def test_a_mailbox_is_full_at_some_point_and_has_room_again(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        taken = await ann.take_one()
        for number in range(MAILBOX_MAX):
            await bench.send("job", message=str(number))
        assert (await bench.send("job", message="more")).verdict == "full"
        assert (await bench.send("job", message="7")).verdict == "already"
        assert (await bench.send("job", "other", "more")).verdict == "accepted"
        await ann.memo(taken, 0, b"got", consumed={"go": 1})
        assert (await bench.send("job", message="more")).verdict == "accepted"
        assert (await bench.broker.mailbox("job", "go", MAILBOX_MAX))[0].number == MAILBOX_MAX + 1

    async def test_nothing_can_be_sent_to_a_job_that_has_ended_or_is_unknown(self, bench: Bench) -> None:
        sent = await bench.send("job")
        assert (sent.verdict, sent.state) == ("not_found", State.NOT_FOUND)
        await bench.put(job())
        await bench.send("job", message="early")
        await bench.edit("job", Cancel())
        sent = await bench.send("job", message="late")
        assert (sent.verdict, sent.state) == ("finished", State.CANCELLED)
        assert (await bench.send("job", message="early")).verdict == "already"

    async def test_a_message_that_is_too_large_is_refused(self, bench: Bench) -> None:
        await bench.put(job())
        assert (await bench.send("job", body=bytes(MESSAGE_MAX))).verdict == "accepted"
        with pytest.raises(TooLarge):
            await bench.send("job", message="y", body=bytes(MESSAGE_MAX + 1))

    @pytest.mark.parametrize("field", ["id", "name", "message", "body"])
    async def test_nonsense_is_refused(self, bench: Bench, field: str) -> None:
        await bench.put(job())
        given = {"id": "job", "name": "go", "message": "x", "body": b""} | {field: 7}
        with pytest.raises(InvalidInput):
            await bench.broker.send(**given)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "wrong",
        [
            {"position": -1},
            {"run": 0},
            {"entries": ("text",)},
            {"entries": [b""]},
            {"children": ("",)},
            {"children": ("a", "a")},
            {"undo": 1},
            {"consumed": {"go": -1}},
            {"consumed": {"": 1}},
        ],
    )
    async def test_a_nonsensical_write_is_refused(self, bench: Bench, wrong: dict[str, object]) -> None:
        await bench.put(job())
        ann = await bench.worker()
        await ann.take_one()
        given: dict[str, object] = {"id": "job", "run": 1, "position": 0} | wrong
        with pytest.raises(InvalidInput):
            await ann.broker.memo("ann", [MemoWrite(**given)])  # type: ignore[arg-type]

    async def test_one_call_writes_once_to_a_job(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        taken = await ann.take_one()
        write = MemoWrite(id="job", run=taken.run, position=0, entries=(b"",))
        with pytest.raises(InvalidInput):
            await ann.broker.memo("ann", [write, write])
