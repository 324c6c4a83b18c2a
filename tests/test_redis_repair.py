"""Clients that die between two steps: whatever they left undone, a sweep brings to its end."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from redis_server import Server, running

from dray.broker import Broker, connect
from dray.broker.actions import Ids, Retry
from dray.broker.redis import outbox, put, sessions, settle
from dray.broker.redis.broker import RedisBroker
from dray.broker.redis.keys import BUCKETS
from dray.broker.redis.repair import GRACE
from dray.broker.redis.router import command
from dray.broker.verbs import Beat, DocWrite, Filter
from dray.job import Job, Outcome, OutcomeKind, State, Suspension

FIRST, SECOND = "one:" + "1" * 32, "two:" + "2" * 32


class Died(Exception):
    """The client is gone."""


def dies(*_: object, **__: object) -> Any:
    raise Died


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running("valkey", tmp_path / "server", cluster=True) as server:
        yield server


def play(server: Server, test: Callable[[Broker, Broker], Coroutine[Any, Any, None]]) -> None:
    """With a client that will die and a sweeper that lives."""

    async def both() -> None:
        url = f"redis://127.0.0.1:{server.port}"
        client, sweeper = await connect(url), await connect(url)
        await test(client, sweeper)
        assert await sweeper.audit() == []
        assert (await sweeper.sweep()).repaired == 0
        await client.close()
        await sweeper.close()

    asyncio.run(both())


async def state(broker: Broker, id: str) -> State:
    [record] = await broker.get([id])
    return State.NOT_FOUND if record is None else record.state


async def later(sweeper: Broker) -> dict[str, int]:
    """Steps that a sweep finishes once their client must be dead: no damage, so no repair."""
    swept = await sweeper.sweep(now=time.time_ns() // 1_000_000 + 2 * GRACE)
    assert swept.repairs == {}
    return swept.finished


async def run_first(broker: Broker, request: int = 1) -> None:
    await broker.renew([Beat("ann", 60_000)])
    [taken] = await broker.take("ann", request, ["one"], Filter(), 1)
    await broker.settle("ann", [Outcome(id=taken.job.id, run=taken.run, kind=OutcomeKind.SUCCEEDED)])


def test_before_word_of_an_end_was_delivered(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(client: Broker, sweeper: Broker) -> None:
        jobs = [
            Job(id=FIRST, task="t", queue="one"),
            Job(id=SECOND, task="t", queue="two", waits_for=(FIRST,)),
        ]
        await client.put(jobs)
        with monkeypatch.context() as patch:
            patch.setattr(outbox, "forward", dies)
            with pytest.raises(Died):
                await run_first(client)
        assert await state(sweeper, SECOND) is State.WAITING
        assert (await sweeper.sweep()).forwarded == 1
        assert await state(sweeper, SECOND) is State.READY

    play(server, test)


def test_before_it_looked_again_at_what_its_job_waits_for(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dependency ended between registering and putting the job, so its message reached no job."""

    async def test(client: Broker, sweeper: Broker) -> None:
        await client.put([Job(id=FIRST, task="t", queue="one")])
        registered = put._Waits.register

        async def slowly(waits: Any, jobs: Any) -> None:
            await registered(waits, jobs)
            await run_first(sweeper)

        with monkeypatch.context() as patch:
            patch.setattr(put._Waits, "register", slowly)
            patch.setattr(put._Waits, "look_again", dies)
            with pytest.raises(Died):
                await client.put([Job(id=SECOND, task="t", queue="two", waits_for=(FIRST,))])
        assert await state(sweeper, SECOND) is State.WAITING
        assert (await sweeper.sweep()).repaired == 0
        assert (await later(sweeper)) == {"dependency": 1}
        assert await state(sweeper, SECOND) is State.READY

    play(server, test)


def test_after_a_document_was_written_and_before_its_jobs_were_put(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(client: Broker, sweeper: Broker) -> None:
        tick = DocWrite(kind="schedule", name="s", value=b"tick", expect_version=0)
        with monkeypatch.context() as patch:
            patch.setattr(put, "put_step", dies)
            with pytest.raises(Died):
                await client.put([Job(id=FIRST, task="t", queue="one")], when=tick)
        assert await state(sweeper, FIRST) is State.NOT_FOUND
        assert isinstance(sweeper, RedisBroker)
        with monkeypatch.context() as patch:
            patch.setattr(put, "INTENT_GRACE", 0)
            swept = await sweeper.sweep()
            assert (swept.repairs, swept.finished) == ({}, {"intent": 1})
            assert (await sweeper.sweep()).finished == {}
        assert await state(sweeper, FIRST) is State.READY

    play(server, test)


def test_after_it_claimed_an_id_and_before_it_put_the_job(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(client: Broker, sweeper: Broker) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(put, "put_step", dies)
            with pytest.raises(Died):
                await client.put([Job(id="my own", task="t", queue="one")])
        assert await state(sweeper, "my own") is State.NOT_FOUND
        finished: Counter[str] = Counter()
        now = time.time_ns() // 1_000_000
        for n in range(BUCKETS + 2):
            swept = await sweeper.sweep(now=now + n * 2 * GRACE)
            assert swept.repairs == {}
            finished.update(swept.finished)
        assert finished == {"id": 1}

    play(server, test)


def test_before_it_put_a_job_that_was_to_wait_for_another(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(client: Broker, sweeper: Broker) -> None:
        await client.put([Job(id=FIRST, task="t", queue="one")])
        registered = put._Waits.register

        async def dies_then(waits: Any, jobs: Any) -> None:
            await registered(waits, jobs)
            raise Died

        with monkeypatch.context() as patch:
            patch.setattr(put._Waits, "register", dies_then)
            with pytest.raises(Died):
                await client.put([Job(id=SECOND, task="t", queue="two", waits_for=(FIRST,))])
        assert (await sweeper.sweep()).finished == {}
        assert await later(sweeper) == {"dependency": 1}

    play(server, test)


def test_between_the_end_of_a_session_and_the_release_of_its_jobs(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(client: Broker, sweeper: Broker) -> None:
        await client.put([Job(id=FIRST, task="t", queue="one")])
        await client.renew([Beat("ann", 60_000)])
        assert len(await client.take("ann", 1, ["one"], Filter(), 1)) == 1
        with monkeypatch.context() as patch:
            patch.setattr(sessions, "bring_to_end", dies)
            with pytest.raises(Died):
                await client.release("ann")
        [heard] = await client.renew([Beat("ann", 60_000)])
        assert heard.opened
        assert (await sweeper.sweep()).freed == 1
        assert await state(sweeper, FIRST) is State.READY

    play(server, test)


def test_a_queue_that_took_in_a_session_just_after_it_ended(server: Server) -> None:
    """The end of a session did not reach a queue whose enrolment was on its way."""

    async def test(client: Broker, sweeper: Broker) -> None:
        await client.put([Job(id=FIRST, task="t", queue="one")])
        assert isinstance(client, RedisBroker)
        core = client._core
        late = core.on_queue(
            "take", "one", None, "ghost", 1, 0, 1, 1, "", "", b"epoch=7 lease=1 expires=1000000000001"
        )
        reply = await core.call(late)
        assert reply[0] == b"lost"
        known = core.keys.queue("one") + "s"
        assert await core.call(command(known, "HKEYS", known)) == [b"ghost"]
        assert (await sweeper.sweep()).repairs == {}
        assert await core.call(command(known, "HKEYS", known)) == []

    play(server, test)


# durable jobs and flows

PARENT = "two:" + "3" * 32


async def start(broker: Broker, queue: str, request: int) -> Outcome:
    """The success of the next run of a queue."""
    await broker.renew([Beat("ann", 60_000)])
    [taken] = await broker.take("ann", request, [queue], Filter(), 1)
    return Outcome(id=taken.job.id, run=taken.run, kind=OutcomeKind.SUCCEEDED)


def suspended(outcome: Outcome, *jobs: str) -> Outcome:
    return replace(outcome, kind=OutcomeKind.SUSPENDED, suspend=Suspension(jobs=jobs))


def dead(outcome: Outcome) -> Outcome:
    return replace(outcome, kind=OutcomeKind.DEAD)


def flow_of_two() -> list[Job]:
    return [
        Job(id=FIRST, task="t", queue="one", owner="flow", node="first"),
        Job(id=SECOND, task="t", queue="two", waits_for=(FIRST,), owner="flow", node="second"),
    ]


def test_a_job_that_ends_while_another_is_suspended_for_it_wakes_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message comes when the other still runs: the second look finds the end."""

    async def test(client: Broker, sweeper: Broker) -> None:
        await client.put([Job(id=FIRST, task="t", queue="one"), Job(id=PARENT, task="t", queue="two")])
        parent = await start(client, "two", 1)
        registered = outbox.add_dependants

        async def slowly(*args: Any, **named: Any) -> Any:
            seen = await registered(*args, **named)
            monkeypatch.undo()
            await sweeper.renew([Beat("bob", 60_000)])
            [taken] = await sweeper.take("bob", 1, ["one"], Filter(), 1)
            done = Outcome(id=FIRST, run=taken.run, kind=OutcomeKind.SUCCEEDED)
            await sweeper.settle("bob", [done])
            return seen

        monkeypatch.setattr(settle, "add_dependants", slowly)
        await client.settle("ann", [suspended(parent, FIRST)])
        assert await state(sweeper, PARENT) is State.READY

    play(server, test)


def test_before_it_looked_again_at_what_a_suspended_job_waits_for(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(client: Broker, sweeper: Broker) -> None:
        await client.put([Job(id=FIRST, task="t", queue="one"), Job(id=PARENT, task="t", queue="two")])
        parent = await start(client, "two", 1)
        first = await start(client, "one", 2)
        registered = outbox.add_dependants

        async def slowly(*args: Any, **named: Any) -> Any:
            seen = await registered(*args, **named)
            with monkeypatch.context() as calm:
                calm.setattr(settle, "add_dependants", registered)
                await sweeper.settle("ann", [first])
            return seen

        with monkeypatch.context() as patch:
            patch.setattr(settle, "add_dependants", slowly)
            patch.setattr(settle._Step, "_look_again", dies)
            with pytest.raises(Died):
                await client.settle("ann", [suspended(parent, FIRST)])
        assert await state(sweeper, PARENT) is State.WAITING
        await sweeper.sweep()
        assert (await later(sweeper)) == {"dependency": 1}
        assert await state(sweeper, PARENT) is State.READY

    play(server, test)


def test_before_it_settled_a_run_that_was_to_wait_for_a_job(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was registered for it goes, and the run goes on."""

    async def test(client: Broker, sweeper: Broker) -> None:
        await client.put([Job(id=FIRST, task="t", queue="one"), Job(id=PARENT, task="t", queue="two")])
        parent = await start(client, "two", 1)
        with monkeypatch.context() as patch:
            patch.setattr(settle._Step, "_settle", dies)
            with pytest.raises(Died):
                await client.settle("ann", [suspended(parent, FIRST)])
        await sweeper.sweep()
        assert (await later(sweeper)) == {"dependency": 1}
        await client.settle("ann", [parent])
        assert await state(sweeper, PARENT) is State.SUCCEEDED

    play(server, test)


def test_before_a_revived_job_was_registered(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(client: Broker, sweeper: Broker) -> None:
        await client.put(flow_of_two())
        await client.settle("ann", [dead(await start(client, "one", 1))])
        assert await state(sweeper, SECOND) is State.CANCELLED
        with monkeypatch.context() as patch:
            patch.setattr(outbox, "_wait_again", dies)
            with pytest.raises(Died):
                await client.edit(Ids((FIRST,)), Retry())
        assert await state(sweeper, SECOND) is State.WAITING
        await sweeper.sweep()
        assert (await later(sweeper)) == {"dependency": 1}
        await client.settle("ann", [await start(client, "one", 2)])
        assert await state(sweeper, SECOND) is State.READY

    play(server, test)


def test_a_message_that_comes_twice_revives_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client died after it delivered the message and before it removed it."""

    async def test(client: Broker, sweeper: Broker) -> None:
        first, flow = flow_of_two()
        await client.put([first, replace(flow, orphan="follow")])
        for request, queue in enumerate(("one", "two"), 1):
            await client.settle("ann", [await start(client, queue, request)])
        delivered = outbox._deliver

        async def and_dies(*args: Any) -> Any:
            await delivered(*args)
            raise Died

        with monkeypatch.context() as patch:
            patch.setattr(outbox, "_deliver", and_dies)
            with pytest.raises(Died):
                await client.edit(Ids((FIRST,)), Retry())
        assert await state(sweeper, SECOND) is State.WAITING
        monkeypatch.setattr(outbox, "forward", _nothing)
        await client.settle("ann", [await start(client, "one", 3)])
        monkeypatch.undo()
        queue = "dray:{dray:one}:out"
        kept = server.command("ZRANGE", queue, "0", "-1")
        await sweeper.sweep()
        await client.settle("ann", [await start(client, "two", 4)])
        assert await state(sweeper, SECOND) is State.SUCCEEDED
        for number, text in enumerate(kept):
            server.command("ZADD", queue, str(number), text)
        assert (await sweeper.sweep()).forwarded == len(kept) > 1
        assert await state(sweeper, SECOND) is State.SUCCEEDED

    play(server, test)


def test_an_old_message_of_an_end_does_not_end_a_revived_job(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow client delivers the death of a node after it was replayed and its dependant revived."""

    async def test(client: Broker, sweeper: Broker) -> None:
        await client.put(flow_of_two())
        with monkeypatch.context() as patch:
            patch.setattr(outbox, "forward", _nothing)
            await client.settle("ann", [dead(await start(client, "one", 1))])
        queue = "dray:{dray:one}:out"
        [old] = server.command("ZRANGE", queue, "0", "-1")
        await sweeper.sweep()
        await client.edit(Ids((FIRST,)), Retry())
        assert await state(sweeper, SECOND) is State.WAITING
        server.command("ZADD", queue, "1", old)
        assert (await sweeper.sweep()).forwarded == 1
        assert await state(sweeper, SECOND) is State.WAITING

    play(server, test)


async def _nothing(*_: object, **__: object) -> int:
    return 0
