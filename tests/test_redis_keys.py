"""The keys in the store: one slot per script, no leaks, little memory, namespaces apart."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uuid_utils
import uvloop
from redis_leaks import kind_of, leaks
from redis_server import BINARIES, Server, need, running

from dray.broker import Broker, connect
from dray.broker.actions import Delete, Ids, Query, Scope, SetLimits, Speculate
from dray.broker.redis.ids import stored_id
from dray.broker.redis.keys import KeyNames, slot
from dray.broker.redis.router import command
from dray.broker.redis.scripts import PARTS, SCRIPTS
from dray.broker.verbs import Beat, Filter, Interest, ProgressReport
from dray.job import Error, Job, Outcome, OutcomeKind, Progress, State, Taken
from dray.policy import Retention

LUA = Path(__file__).parents[1] / "src" / "dray" / "broker" / "redis" / "lua"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running("valkey", tmp_path / "server") as server:
        yield server


def generated(queue: str = "default") -> str:
    return f"{queue}:{uuid_utils.uuid7().hex}"


async def end(broker: Broker, taken: Taken, kind: OutcomeKind, **fields: Any) -> None:
    await broker.settle("ann", [Outcome(id=taken.job.id, run=taken.run, kind=kind, **fields)])


async def whole_life(broker: Broker) -> None:
    """Jobs of every kind, each brought to an end."""
    await broker.renew([Beat("ann", 60_000), Beat("bob", 60_000)])
    plain, waiting, client = generated(), generated("other"), "made up by a client"
    await broker.put(
        [
            Job(id=plain, task="t", payload=b"x" * 1000),
            Job(id=waiting, task="t", queue="other", waits_for=(plain, client)),
            Job(id=client, task="t", key="k", key_ttl=50_000, once=1, group="g"),
            Job(
                id=generated(),
                task="t",
                rate="100/s",
                rate_key="r",
                running_key="u",
                max_running=3,
                ttl=60_000,
            ),
            Job(id=generated(), task="t", due=1 << 50, tags=("x",)),
            Job(id=generated(), task="t", priority=1, speculate=True, max_crashes=1),
        ]
    )
    await broker.get([plain, waiting], watch="me")
    await broker.edit(Scope("default"), SetLimits(max_running=100, rate="1000/s"))
    taken = {one.job.id: one for one in await broker.take("ann", 1, ["default"], Filter(), 10)}
    await broker.renew([Beat("ann", 60_000, (ProgressReport(plain, 1, Progress(1, 2)),))])
    fast = next(one for one in taken.values() if one.job.speculate)
    await broker.edit(Ids((fast.job.id,)), Speculate())
    [second] = await broker.take("bob", 1, ["default"], Filter(), 1)
    await broker.settle("bob", [Outcome(id=second.job.id, run=second.run, kind=OutcomeKind.CRASHED)])
    await end(broker, taken.pop(plain), OutcomeKind.SUCCEEDED, result=b"r" * 1000)
    await end(broker, taken.pop(client), OutcomeKind.SUCCEEDED, result=b"small")
    for one in taken.values():
        await end(broker, one, OutcomeKind.DEAD, error=Error("E", "e"), reason="why")
    for one in await broker.take("ann", 2, ["other"], Filter(), 10):
        await end(broker, one, OutcomeKind.RETRY, at=1 << 50)
    await broker.edit(Scope("default"), SetLimits(max_running=None, rate=None))
    await broker.doc("note", "n", b"1", ttl=1)
    await broker.wait(Interest(queues=("default",), session="ann", watcher="me"), 0.01)
    assert await broker.audit() == []


def test_what_was_for_jobs_and_sessions_is_gone_with_them(server: Server) -> None:
    async def test() -> None:
        broker = await connect(f"redis://127.0.0.1:{server.port}", retention=Retention(done_ttl=1))
        await whole_life(broker)
        assert leaks(server) == []
        await broker.release("ann")
        await broker.release("bob")
        await broker.edit(Query(), Delete())
        later = int(server.command("TIME")[0]) * 1000 + 3 * 24 * 3_600_000
        for _ in range(3):
            while (await broker.sweep(now=later)).more:
                pass
        assert await broker.audit() == []
        await broker.close()

    asyncio.run(test())
    left = {kind_of(key.decode()) for key in server.command("KEYS", "*") if server.command("PTTL", key) < 0}
    assert left == {("own", name) for name in ("layout", "versions", "opened", "fed")}


def test_lanes_that_are_held_back_are_put_aside_and_what_can_run_is_found_behind_any_number(
    server: Server,
) -> None:
    """More lanes than one call puts aside: the worker goes on until it has met all of them."""
    interest = Interest(queues=("default",), session="ann")

    async def test() -> None:
        broker = await connect(f"redis://127.0.0.1:{server.port}")
        await broker.edit(Scope("default"), SetLimits(group_running=1))
        await broker.put([Job(id=generated(), task="t", group=f"g{n // 2}") for n in range(2400)])
        await broker.renew([Beat("ann", 600_000)])
        requests, held = itertools.count(1), list[Taken]()
        while (await broker.wait(interest, 0)).work:
            held += await broker.take("ann", next(requests), ["default"], Filter(), 1000)
        assert len(held) == 1200
        assert server.command("ZCARD", "dray:{dray:default}:blocked") == 1200
        await broker.put([Job(id="late", task="t", group="new")])
        assert [one.job.id for one in await broker.take("ann", next(requests), ["default"], Filter(), 9)] == [
            "late"
        ]
        await end(broker, held[700], OutcomeKind.SUCCEEDED)
        [following] = await broker.take("ann", next(requests), ["default"], Filter(), 9)
        assert following.job.group == held[700].job.group
        await broker.edit(Scope("default"), SetLimits(group_running=None))
        rest = 0
        while (await broker.wait(interest, 0)).work:
            rest += len(await broker.take("ann", next(requests), ["default"], Filter(), 1000))
        assert rest == 1199
        assert await broker.audit() == []
        await broker.release("ann")
        await broker.close()

    asyncio.run(test())
    assert leaks(server) == []
    assert not server.command("EXISTS", "dray:{dray:default}:blocked")


def test_the_feed_of_a_queue_is_cut_to_a_length(server: Server) -> None:
    async def test() -> None:
        broker = await connect(f"redis://127.0.0.1:{server.port}")
        for _ in range(24):
            await asyncio.gather(*(broker.edit(Scope("default"), SetLimits(rate="1/s")) for _ in range(500)))
        await broker.close()

    asyncio.run(test())
    assert server.command("XLEN", "dray:{dray:default}:feed") <= 10_200


MEMORY = {"redis": 300, "valkey": 270}


@pytest.mark.parametrize("kind", list(BINARIES))
def test_a_pending_job_takes_little_memory(kind: str, tmp_path: Path) -> None:
    """100 bytes of payload; generated ids of 40 characters; the feed's share is counted in."""
    need(kind)
    count = 20_000

    async def test(server: Server) -> float:
        broker = await connect(f"redis://127.0.0.1:{server.port}")
        await broker.put([Job(id=generated(), task="warm.up")])
        before = used(server)
        for _ in range(count // 1000):
            await broker.put([Job(id=generated(), task="mail.send", payload=b"x" * 100) for _ in range(1000)])
        await broker.close()
        return (used(server) - before) / count

    with running(kind, tmp_path / "server") as server:
        assert asyncio.run(test(server)) <= MEMORY[kind]


def used(server: Server) -> int:
    """Bytes in use, less what the engine of the scripts has not tidied up yet."""
    facts = dict(
        line.split(":", 1) for line in server.command("INFO", "memory").decode().split("\r\n") if ":" in line
    )
    return int(facts["used_memory"]) - int(facts.get("used_memory_vm_total") or facts["used_memory_lua"])


def test_it_works_on_uvloop_too(server: Server) -> None:
    async def test() -> None:
        broker = await connect(f"redis://127.0.0.1:{server.port}")
        waiting = asyncio.ensure_future(broker.wait(Interest(queues=("default",)), 20))
        await broker.put([Job(id=generated(), task="t")])
        assert (await waiting).work
        await broker.close()

    uvloop.run(test())


def test_calls_made_together_travel_together(server: Server) -> None:
    async def test() -> None:
        broker = await connect(f"redis://127.0.0.1:{server.port}")
        await broker.renew([Beat("ann", 60_000)])
        await broker.put([Job(id=generated(), task="t") for _ in range(3)])
        [one] = await broker.take("ann", 1, ["default"], Filter(), 1)
        await end(broker, one, OutcomeKind.SUCCEEDED)
        [one] = await broker.take("ann", 2, ["default"], Filter(), 1)
        done = Outcome(id=one.job.id, run=one.run, kind=OutcomeKind.SUCCEEDED)
        asking = -(reads(server) - reads(server))
        before = reads(server)
        await asyncio.gather(broker.settle("ann", [done]), broker.take("ann", 3, ["default"], Filter(), 1))
        assert reads(server) - before - asking == 1
        await broker.close()

    asyncio.run(test())


def reads(server: Server) -> int:
    facts = server.command("INFO", "stats").decode()
    found = re.search(r"total_reads_processed:(\d+)", facts)
    assert found is not None
    return int(found[1])


def test_bytes_that_cannot_be_read_make_a_job_dead_and_its_neighbours_run(server: Server) -> None:
    async def test() -> None:
        broker = await connect(f"redis://127.0.0.1:{server.port}")
        broken, fine = generated(), generated()
        await broker.put([Job(id=broken, task="t"), Job(id=fine, task="t")])
        name = stored_id(broken, "default")
        stored = server.command("HGET", "dray:{dray:default}:job", name)
        spoilt = b"\xdc\x00!\x01\xc1"
        await _set(broker, name, stored.partition(b"\n")[0] + b"\n" + spoilt)
        await broker.renew([Beat("ann", 60_000)])
        assert [one.job.id for one in await broker.take("ann", 1, ["default"], Filter(), 5)] == [fine]
        [record] = await broker.get([broken])
        assert record is not None
        assert (record.state, record.job.payload) == (State.DEAD, spoilt)
        assert str(record.reason).startswith("undecodable")
        assert await broker.audit() == []
        await broker.close()

    asyncio.run(test())


async def _set(broker: Any, id: bytes, stored: bytes) -> None:
    key = "dray:{dray:default}:job"
    await broker._core.call(command(key, "HSET", key, id, stored))


def test_tags_of_queues_namespaces_and_the_directory_are_never_the_same() -> None:
    keys = KeyNames("a")
    assert len({keys.own, keys.queue("b"), KeyNames("b").own, KeyNames("a.b").own, keys.directory("b")}) == 5
    assert slot(keys.queue("b") + "job") == slot(keys.queue("b") + "l:0|t|1\n{x}\n\n")


def test_every_script_says_what_it_takes_and_returns() -> None:
    for path in sorted(LUA.glob("*.lua")):
        text = path.read_text("utf-8")
        head = text[: text.index("\nlocal")] if "\nlocal" in text else text
        assert text.startswith(f"-- {path.stem}: "), path
        assert path.stem in PARTS or "ARGV[" in head or "returns" in head, path


def lengths(text: str) -> Iterator[tuple[str, int]]:
    """The functions of a script, and how many lines each has."""
    lines = text.splitlines()
    for first, line in enumerate(lines):
        found = re.match(r"( *)(?!--)(.*\bfunction\b.*\))$", line)
        if found is not None:
            ends = (
                last for last in range(first + 1, len(lines)) if re.match(rf"{found[1]}end\b", lines[last])
            )
            yield found[2], next(ends) - first + 1


def test_no_script_is_longer_than_200_lines_and_no_function_than_40() -> None:
    texts = {path.name: path.read_text("utf-8") for path in LUA.glob("*.lua")}
    assert {name: text.count("\n") for name, text in texts.items() if text.count("\n") > 200} == {}
    long = {(name, of): n for name, text in texts.items() for of, n in lengths(text) if n > 40}
    assert long == {}
    assert max(n for _, n in lengths(texts["put_fast.lua"])) > 20  # it measures


def test_every_key_of_a_script_is_in_a_head() -> None:
    """The heads alone are the key map."""
    heads = "\n".join(
        line for path in LUA.glob("*.lua") for line in path.read_text().splitlines() if line.startswith("--")
    )
    used = set()
    for script in SCRIPTS.values():
        used |= set(re.findall(r"[QN] \.\. '([a-z]+):?'", script.source))
    assert [name for name in sorted(used) if f"`{name}" not in heads] == []


def test_what_is_kept_of_delayed_and_limited_jobs_is_short(server: Server) -> None:
    """Else `take` and `settle` would go the long way with them, at several times the cost."""

    async def play() -> list[bytes]:
        broker = await connect(f"redis://127.0.0.1:{server.port}", "short")
        names = [f"q:{number:032x}" for number in range(4)]
        seen: list[bytes] = []

        def heads() -> None:
            found = server.command("HMGET", "dray:{short:q}:head", *(stored_id(id, "q") for id in names))
            assert all(head.count(b"\n") == 1 for head in found)
            seen.append(b" ".join(head.partition(b" ")[0] for head in found))

        fields: list[dict[str, Any]] = [{}, {"rate": "9/s+9"}, {"max_running": 9}, {}]
        put = [
            Job(id=id, task=f"t{n}", queue="q", due=5000, **one)
            for n, (id, one) in enumerate(zip(names, fields, strict=True))
        ]
        await broker.put(put, now=1000)
        heads()
        await broker.renew([Beat("s", 60_000)], now=5000)
        taken = await broker.take("s", 1, ["q"], Filter(), 3, now=5000)
        heads()
        done = [Outcome(id=one.job.id, run=one.run, kind=OutcomeKind.SUCCEEDED) for one in taken]
        await broker.settle("s", done, now=5001)
        heads()
        await broker.close()
        return seen

    assert asyncio.run(play()) == [
        b"scheduled scheduled scheduled scheduled",
        b"running running running ready",
        b"succeeded succeeded succeeded ready",
    ]
