"""Small versioned documents, and jobs that are put together with one."""

from __future__ import annotations

import pytest

from dray.broker.actions import Query
from dray.broker.verbs import PUT_STEP, Doc, DocReply, DocWrite
from dray.errors import InvalidInput
from dray.testing.conformance.bench import MINUTE, Bench, Theme, job, jobs


async def read(bench: Bench, name: str = "n") -> Doc | None:
    reply = await bench.broker.doc("note", name, now=bench.clock.now)
    assert reply.written is False
    return reply.doc


async def write(
    bench: Bench, value: bytes | None, *, name: str = "n", expect: int | None = None, ttl: int | None = None
) -> DocReply:
    return await bench.broker.doc("note", name, value, expect_version=expect, ttl=ttl, now=bench.clock.now)


class TestDocuments(Theme):
    async def test_a_document_that_was_never_written_is_none(self, bench: Bench) -> None:
        assert await read(bench) is None

    async def test_what_was_written_is_read_by_everybody(self, bench: Bench) -> None:
        reply = await write(bench, b"\x00 value")
        assert (reply.written, reply.doc) == (True, await read(bench))
        other = await bench.open()
        doc = (await other.doc("note", "n", now=bench.clock.now)).doc
        assert doc is not None
        assert (doc.kind, doc.name, doc.value, doc.expires) == ("note", "n", b"\x00 value", None)

    async def test_kinds_and_names_are_apart_and_listed_by_name(self, bench: Bench) -> None:
        for name in ("b", "a", "ü name: with anything printable"):
            await write(bench, name.encode(), name=name)
        await bench.broker.doc("other", "a", b"other", now=bench.clock.now)
        docs = await bench.broker.docs("note", now=bench.clock.now)
        assert [doc.name for doc in docs] == ["a", "b", "ü name: with anything printable"]
        assert [doc.value for doc in docs] == [doc.name.encode() for doc in docs]
        assert await bench.broker.docs("none", now=bench.clock.now) == []

    async def test_a_write_without_expectation_always_wins(self, bench: Bench) -> None:
        assert (await write(bench, b"1")).written
        assert (await write(bench, b"2")).written

    async def test_a_write_that_expects_another_version_is_not_made(self, bench: Bench) -> None:
        first = (await write(bench, b"1", expect=0)).doc
        assert first is not None
        second = (await write(bench, b"2", expect=first.version)).doc
        assert second is not None
        late = await write(bench, b"3", expect=first.version)
        assert late == DocReply(False, second)

    async def test_of_two_that_create_a_document_one_wins(self, bench: Bench) -> None:
        assert (await write(bench, b"mine", expect=0)).written
        reply = await write(bench, b"yours", expect=0)
        assert (reply.written, reply.doc) == (False, await read(bench))

    async def test_a_repeated_write_has_no_second_effect(self, bench: Bench) -> None:
        made = await write(bench, b"1", expect=0)
        again = await write(bench, b"1", expect=0)
        assert (again.written, again.doc) == (False, made.doc)

    async def test_none_deletes_and_expects_a_version_too(self, bench: Bench) -> None:
        doc = (await write(bench, b"1")).doc
        assert doc is not None
        assert (await write(bench, None, expect=doc.version + 1)).written is False
        assert await write(bench, None, expect=doc.version) == DocReply(True, None)
        assert await read(bench) is None
        assert await bench.broker.docs("note", now=bench.clock.now) == []

    async def test_a_version_grows_and_is_never_used_twice(self, bench: Bench) -> None:
        versions = []
        for value in (b"1", b"2", None, b"3", None, b"4"):
            reply = await write(bench, value)
            versions += [reply.doc.version] if reply.doc else []
        assert versions == sorted(set(versions))
        assert len(versions) == 4

    async def test_a_document_with_a_ttl_is_gone_after_it(self, bench: Bench) -> None:
        doc = (await write(bench, b"1", ttl=MINUTE)).doc
        assert doc is not None
        assert doc.expires == bench.clock.after(MINUTE)
        bench.clock.advance(MINUTE - 1)
        assert await read(bench) == doc
        bench.clock.advance(1)
        assert await read(bench) is None
        assert await bench.broker.docs("note", now=bench.clock.now) == []
        again = await write(bench, b"2", expect=0)
        assert again.written
        assert again.doc is not None
        assert again.doc.version > doc.version

    async def test_a_write_sets_the_ttl_anew(self, bench: Bench) -> None:
        await write(bench, b"1", ttl=MINUTE)
        bench.clock.advance(MINUTE - 1)
        await write(bench, b"2", ttl=MINUTE)
        bench.clock.advance(MINUTE - 1)
        assert await read(bench) is not None
        await write(bench, b"3")
        bench.clock.advance(100 * MINUTE)
        await bench.sweep()
        assert await read(bench) is not None

    async def test_an_expired_document_expects_no_version_but_0(self, bench: Bench) -> None:
        doc = (await write(bench, b"1", ttl=MINUTE)).doc
        assert doc is not None
        bench.clock.advance(MINUTE)
        assert (await write(bench, b"2", expect=doc.version)).written is False

    async def test_upkeep_leaves_live_documents_alone(self, bench: Bench) -> None:
        await write(bench, b"1", name="dead", ttl=1)
        await write(bench, b"1", name="live", ttl=MINUTE)
        bench.clock.advance(1)
        await bench.sweep()
        assert [doc.name for doc in await bench.broker.docs("note", now=bench.clock.now)] == ["live"]


class TestPuttingWithADocument(Theme):
    async def test_jobs_and_document_are_written_together(self, bench: Bench) -> None:
        tick = DocWrite(kind="note", name="n", value=b"tick", expect_version=0)
        accepted = await bench.put(job("a"), job("b"), when=tick)
        assert [reply.verdict for reply in accepted] == ["created", "created"]
        doc = await read(bench)
        assert doc is not None
        assert doc.value == b"tick"

    async def test_nothing_happens_when_the_version_is_another(self, bench: Bench) -> None:
        await write(bench, b"first")
        before = await bench.everything()
        tick = DocWrite(kind="note", name="n", value=b"tick", expect_version=0)
        assert await bench.put(job("a"), when=tick) == []
        assert await bench.everything() == before

    async def test_of_two_schedulers_one_makes_the_job_of_a_tick(self, bench: Bench) -> None:
        doc = (await write(bench, b"last tick")).doc
        assert doc is not None
        tick = DocWrite(kind="note", name="n", value=b"tick", expect_version=doc.version)
        other = await bench.open()
        assert len(await bench.put(job("by-one"), when=tick)) == 1
        assert await other.put([job("by-other")], when=tick, now=bench.clock.now) == []
        assert await bench.find(Query()) == ["by-one"]

    async def test_a_repeat_after_a_lost_reply_puts_nothing_twice(self, bench: Bench) -> None:
        tick = DocWrite(kind="note", name="n", value=b"tick", expect_version=0)
        await bench.put(job("a"), when=tick)
        before = await bench.everything()
        assert await bench.put(job("a"), when=tick) == []
        assert await bench.everything() == before

    async def test_a_document_may_be_written_with_no_jobs_at_all(self, bench: Bench) -> None:
        tick = DocWrite(kind="note", name="n", value=b"tick", expect_version=0)
        assert await bench.put(when=tick) == []
        assert await read(bench) is not None

    @pytest.mark.parametrize("wrong", ["several queues", "several steps"])
    async def test_the_jobs_are_of_one_queue_and_one_step(self, bench: Bench, wrong: str) -> None:
        many = [job("a"), job("b", queue="other")] if wrong == "several queues" else jobs(PUT_STEP + 1)
        tick = DocWrite(kind="note", name="n", value=b"tick", expect_version=0)
        with pytest.raises(InvalidInput, match="when"):
            await bench.put(*many, when=tick)
        assert await read(bench) is None
        assert await bench.find(Query()) == []
