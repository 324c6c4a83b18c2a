"""`find` by arrival on Redis where more jobs are kept than are sorted: by the feed, then what is older."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from redis_server import Server, running

from dray.broker import Broker, connect
from dray.broker.actions import Delete, Ids, Query
from dray.broker.redis import read_newest
from dray.broker.redis.core import Core
from dray.broker.redis.router import command
from dray.broker.verbs import Beat, Filter
from dray.job import Job, Outcome, OutcomeKind, Record, State


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running("valkey", tmp_path_factory.mktemp("newest")) as server:
        yield server


@pytest.fixture(autouse=True)
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three jobs are many."""
    monkeypatch.setattr(read_newest, "FEW", 3)


async def put(broker: Broker, count: int, first: int = 0, size: int = 7) -> list[str]:
    """In two queues by turns, some in one step; their ids in the order of arrival."""
    ids = [f"job-{number:04}" for number in range(first, first + count)]
    for start in range(0, count, size):
        queue = "ab"[start // size % 2]
        await broker.put([Job(id=id, task="t", queue=queue) for id in ids[start : start + size]])
    return ids


async def all_pages(broker: Broker, query: Query, limit: int) -> list[Record]:
    found: list[Record] = []
    cursor = None
    for _ in range(10_000):
        page = await broker.find(query, cursor=cursor, limit=limit, newest=True)
        assert len(page.records) <= limit
        found += page.records
        cursor = page.cursor
        if cursor is None:
            return found
    raise AssertionError("find has no end")


def names(records: list[Record]) -> list[str]:
    return [record.id for record in records]


@pytest.mark.parametrize("limit", [1, 10, 1000])
def test_the_feed_tells_the_order(server: Server, limit: int) -> None:
    async def main() -> None:
        broker = await connect(f"redis://127.0.0.1:{server.port}", f"order{limit}")
        ids = await put(broker, 60)
        await broker.renew([Beat("s", 60_000)])
        for taken in await broker.take("s", 1, ["b", "a"], Filter(), 20):
            await broker.settle("s", [Outcome(id=taken.job.id, run=1, kind=OutcomeKind.SUCCEEDED)])
        assert names(await all_pages(broker, Query(), limit)) == ids[::-1]
        in_a = [id for place, id in enumerate(ids) if place // 7 % 2 == 0]
        assert names(await all_pages(broker, Query(queue="a"), limit)) == in_a[::-1]
        assert len(await all_pages(broker, Query(state=State.SUCCEEDED), limit)) == 20
        await broker.close()

    asyncio.run(main())


def test_paging_goes_on_while_jobs_come_and_go(server: Server) -> None:
    async def main() -> None:
        broker = await connect(f"redis://127.0.0.1:{server.port}", "moving")
        ids = await put(broker, 40)
        page = await broker.find(Query(), limit=15, newest=True)
        assert names(page.records) == ids[:-16:-1]
        await put(broker, 20, first=100)
        await broker.edit(Ids((ids[24], ids[20])), Delete())
        found = list(page.records)
        while page.cursor is not None:
            page = await broker.find(Query(), cursor=page.cursor, limit=15, newest=True)
            found += page.records
        assert names(found) == [id for id in ids[::-1] if id not in (ids[24], ids[20])]
        await broker.close()

    asyncio.run(main())


def test_a_job_that_was_put_again_under_its_id_is_listed_once(server: Server) -> None:
    async def main() -> None:
        broker = await connect(f"redis://127.0.0.1:{server.port}", "again")
        ids = await put(broker, 8)
        await broker.edit(Ids((ids[0],)), Delete())
        await asyncio.sleep(0.05)  # the clock has to go on between the two
        await broker.put([Job(id=ids[0], task="t", queue="a")])
        assert names(await all_pages(broker, Query(), 3)) == [ids[0], *ids[:0:-1]]
        await broker.close()

    asyncio.run(main())


@pytest.mark.parametrize("limit", [2, 100])
def test_jobs_that_are_older_than_the_feed_come_last_and_once(server: Server, limit: int) -> None:
    async def main() -> None:
        namespace = f"trimmed{limit}"
        broker = await connect(f"redis://127.0.0.1:{server.port}", namespace)
        old = await put(broker, 30)
        core: Core = broker._core  # type: ignore[attr-defined]
        await asyncio.sleep(0.05)
        new: list[str] = []
        for first in range(100, 130, 3):
            new += await put(broker, 3, first=first, size=2)
            await asyncio.sleep(0.01)
        for queue, kept in (("a", 4), ("b", 6)):
            key = core.keys.queue(queue) + "feed"
            await core.call(command(key, "XTRIM", key, "MAXLEN", kept))
        found = names(await all_pages(broker, Query(), limit))
        assert sorted(found) == sorted(old + new)
        assert found[0] == new[-1]
        for queue in "ab":
            key = core.keys.queue(queue) + "feed"
            await core.call(command(key, "DEL", key))
        assert sorted(names(await all_pages(broker, Query(), limit))) == sorted(old + new)
        await broker.close()

    asyncio.run(main())


def test_a_page_may_end_within_a_lane_of_very_many_old_jobs(server: Server) -> None:
    async def main() -> None:
        broker = await connect(f"redis://127.0.0.1:{server.port}", "lanes")
        old = await put(broker, 2500, size=2500)
        core: Core = broker._core  # type: ignore[attr-defined]
        key = core.keys.queue("a") + "feed"
        await core.call(command(key, "DEL", key))
        assert sorted(names(await all_pages(broker, Query(), 250))) == old
        await broker.close()

    asyncio.run(main())


def test_a_search_for_new_jobs_ends_before_the_old_ones(server: Server) -> None:
    async def main() -> None:
        broker = await connect(f"redis://127.0.0.1:{server.port}", "since")
        await put(broker, 50, size=5)
        await asyncio.sleep(0.05)
        since = broker.clock()
        new = await put(broker, 8, first=100)
        page = await broker.find(Query(since=since), limit=100, newest=True)
        assert names(page.records) == new[::-1]
        assert page.cursor is None
        await broker.close()

    asyncio.run(main())


def test_dead_jobs_are_found_among_any_number_of_others(server: Server) -> None:
    async def main() -> None:
        broker = await connect(f"redis://127.0.0.1:{server.port}", "dead")
        ids = await put(broker, 20)
        await broker.renew([Beat("s", 60_000)])
        taken = await broker.take("s", 1, ["a", "b"], Filter(), 20)
        kinds = {ids[3]: OutcomeKind.DEAD, ids[8]: OutcomeKind.DEAD}
        await broker.settle(
            "s",
            [
                Outcome(id=one.job.id, run=1, kind=kinds.get(one.job.id, OutcomeKind.SUCCEEDED))
                for one in taken
            ],
        )
        assert names(await all_pages(broker, Query(state=State.DEAD), 1)) == [ids[8], ids[3]]
        await broker.close()

    asyncio.run(main())
