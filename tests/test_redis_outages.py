"""Servers that stop, stall, lose data or fill up: clear errors in time, no lost wake-ups, no double work."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from redis_proxy import proxy
from redis_server import Server, free_port, running

from dray.broker import Broker, connect
from dray.broker.verbs import Beat, Filter, Interest, Wake, run_blocking
from dray.errors import BrokerAway, BrokerError, BrokerFull, BrokerReadOnly, ForeignStore, NewerLayout
from dray.job import Job, Outcome, OutcomeKind, State, Taken, Verdict

T = TypeVar("T")
Play = Callable[[Coroutine[Any, Any, T]], T]
WORK = Interest(queues=("default",))
PATIENCE = 30.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running("valkey", tmp_path / "server", "--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


def url(server: Server, **options: str) -> str:
    return f"redis://127.0.0.1:{server.port}?" + "&".join(f"{k}={v}" for k, v in options.items())


@pytest.fixture(params=["loop", "blocking"])
def blocking(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "blocking")


def play(blocking: bool, test: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return run_blocking(test()) if blocking else asyncio.run(test())


ID = "default:0123456789abcdef0123456789abcdef"


def a_job(id: str = ID) -> Job:
    return Job(id=id, task="work")


async def eventually(attempt: Callable[[], Awaitable[T]]) -> T:
    """Try again until the server is back, as a worker does."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return await attempt()
        except BrokerAway:
            assert time.monotonic() < end, "it never came back"
            time.sleep(0.02)


async def take(broker: Broker, request: int, want: int = 10) -> list[Taken]:
    return await broker.take("ann", request, ["default"], Filter(), want)


def succeeded(taken: Taken) -> Outcome:
    return Outcome(id=taken.job.id, run=taken.run, kind=OutcomeKind.SUCCEEDED)


def test_a_stopped_server_is_a_clear_error_and_the_same_broker_works_when_it_is_back(
    server: Server, blocking: bool
) -> None:
    async def test() -> None:
        broker = await connect(url(server), blocking=blocking)
        await broker.put([a_job("kept")])
        await broker.renew([Beat("ann", 60_000)])
        server.stop()
        start = time.monotonic()
        with pytest.raises(BrokerAway, match=str(server.port)):
            await broker.put([a_job("lost")])
        assert time.monotonic() - start < 6
        server.start()
        [kept] = await eventually(lambda: take(broker, 1))
        assert kept.job.id == "kept"
        assert [one.verdict for one in await broker.settle("ann", [succeeded(kept)])] == [Verdict.ACCEPTED]
        assert await broker.audit() == []
        await broker.close()

    play(blocking, test)


@pytest.mark.parametrize("how", ["restart", "flush scripts", "flush everything"])
def test_a_server_that_forgot_scripts_or_all_is_served_again(
    server: Server, blocking: bool, how: str
) -> None:
    async def test() -> None:
        broker = await connect(url(server), blocking=blocking)
        await broker.put([a_job("before")])
        if how == "restart":
            server.stop()
            server.start()
        else:
            server.command(*(("SCRIPT", "FLUSH") if how == "flush scripts" else ("FLUSHALL",)))
        await eventually(lambda: broker.put([a_job("after")]))
        await eventually(lambda: broker.renew([Beat("ann", 60_000)]))
        ids = {taken.job.id for taken in await take(broker, 1)}
        assert ids == ({"after"} if how == "flush everything" else {"before", "after"})
        queues = await broker.queues()
        assert [queue.name for queue in queues] == ["default"]
        assert await broker.audit() == []
        await broker.close()

    play(blocking, test)


@pytest.mark.parametrize("how", ["restart", "flush scripts", "flush everything", "cut"])
def test_nobody_is_deaf_afterwards(server: Server, how: str) -> None:
    """A worker that waits, and waits again after an error, hears of a job put after the outage."""

    async def worker(broker: Broker, asleep: asyncio.Event) -> Wake:
        asleep.set()
        while True:
            try:
                wake = await broker.wait(WORK, PATIENCE)
            except BrokerAway:
                await asyncio.sleep(0.02)
                continue
            if wake.work:
                return wake

    async def test() -> None:
        with proxy(server.port) as wire:
            waiter = await connect(f"redis://127.0.0.1:{wire.port}")
            client = await connect(url(server))
            asleep = asyncio.Event()
            waiting = asyncio.ensure_future(worker(waiter, asleep))
            await asleep.wait()
            await _until(lambda: server.command("EXISTS", "dray:{dray:default}:sleep"))
            if how == "restart":
                server.stop()
                server.start()
            elif how == "cut":
                wire.cut()
            else:
                server.command(*(("SCRIPT", "FLUSH") if how == "flush scripts" else ("FLUSHALL",)))
            await eventually(lambda: client.put([a_job()]))
            assert (await asyncio.wait_for(waiting, PATIENCE)).work
            await waiter.close()
            await client.close()

    asyncio.run(test())


async def _until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


def test_a_server_that_stalls_fails_calls_in_time_and_what_it_did_late_is_not_done_twice(
    server: Server, blocking: bool
) -> None:
    async def test() -> None:
        broker = await connect(url(server, timeout="300ms"), blocking=blocking)
        await broker.put([a_job("first")])
        server.signal(signal.SIGSTOP)
        start = time.monotonic()
        with pytest.raises(BrokerAway, match=r"not answered within 0\.3 s"):
            await broker.put([a_job()])
        assert time.monotonic() - start < 3
        with pytest.raises(BrokerAway):
            await broker.put([a_job()])
        server.signal(signal.SIGCONT)
        [accepted] = await eventually(lambda: broker.put([a_job()]))
        assert accepted.id == ID
        await broker.renew([Beat("ann", 60_000)])
        assert sorted(taken.job.id for taken in await take(broker, 1)) == [ID, "first"]
        assert await broker.audit() == []
        await broker.close()

    play(blocking, test)


@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_reply_that_was_cut_off_is_got_by_repeating_the_call(
    server: Server, blocking: bool, count: int
) -> None:
    async def test() -> None:
        with proxy(server.port) as wire:
            broker = await connect(f"redis://127.0.0.1:{wire.port}", blocking=blocking)
            await broker.renew([Beat("ann", 60_000)])
            await broker.put([a_job("warm-up")])
            [warm] = await take(broker, 1)
            await broker.settle("ann", [succeeded(warm)])
            wire.cut_replies_after(count)
            with pytest.raises(BrokerAway):
                await broker.put([a_job()])
            assert [reply.verdict for reply in await broker.put([a_job()])] == ["duplicate"]
            wire.cut_replies_after(count)
            with pytest.raises(BrokerAway):
                await take(broker, 2)
            [taken] = await take(broker, 2)
            assert (taken.job.id, taken.run) == (ID, 1)
            wire.cut_replies_after(count)
            with pytest.raises(BrokerAway):
                await broker.settle("ann", [succeeded(taken)])
            [settled] = await broker.settle("ann", [succeeded(taken)])
            assert (settled.verdict, settled.state) == (Verdict.ALREADY, State.SUCCEEDED)
            await broker.close()

    play(blocking, test)


def test_a_server_without_memory_refuses_and_goes_on_when_it_has_some(server: Server, blocking: bool) -> None:
    async def test() -> None:
        broker = await connect(url(server), blocking=blocking)
        await broker.renew([Beat("ann", 60_000)])
        await broker.put([a_job("held")])
        [held] = await take(broker, 1)
        server.command("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(BrokerFull, match="maxmemory"):
            await broker.put([a_job("more")])
        server.command("CONFIG", "SET", "maxmemory", "0")
        assert [reply.verdict for reply in await broker.put([a_job("more")])] == ["created"]
        assert (await broker.settle("ann", [succeeded(held)]))[0].verdict == Verdict.ACCEPTED
        assert await broker.audit() == []
        await broker.close()

    play(blocking, test)


def test_a_wait_that_is_broken_off_passes_its_ring_on(server: Server) -> None:
    async def test() -> None:
        first, second, client = [await connect(url(server)) for _ in range(3)]
        leaving = asyncio.ensure_future(first.wait(WORK, PATIENCE))
        await _until(lambda: server.command("HLEN", "dray:{dray:default}:sleep") == 1)
        staying = asyncio.ensure_future(second.wait(WORK, PATIENCE))
        await _until(lambda: server.command("HLEN", "dray:{dray:default}:sleep") == 2)
        leaving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await leaving
        await client.put([a_job()])
        assert (await asyncio.wait_for(staying, PATIENCE)).work
        for broker in (first, second, client):
            await broker.close()

    asyncio.run(test())


def test_a_wait_that_has_ended_leaves_no_sleeper(server: Server, blocking: bool) -> None:
    async def test() -> None:
        broker = await connect(url(server), blocking=blocking)
        both = Interest(queues=("default", "other"), watcher="me")
        assert await broker.wait(both, 0.05) == Wake()
        assert server.command("KEYS", "*sleep") == []
        await broker.put([a_job()])
        assert (await broker.wait(both, 0.05)).work
        assert server.command("KEYS", "*sleep") == []
        await broker.close()

    play(blocking, test)


def test_a_put_rings_one_sleeper_that_can_run_the_job_and_no_other(server: Server) -> None:
    async def test() -> None:
        workers = [await connect(url(server)) for _ in range(3)]
        client = await connect(url(server))
        filters = [Filter(tasks=frozenset({name})) for name in ("other", "work", "work")]
        waits = [
            asyncio.ensure_future(worker.wait(Interest(queues=("default",), filter=filter), PATIENCE))
            for worker, filter in zip(workers, filters, strict=True)
        ]
        await _until(lambda: server.command("HLEN", "dray:{dray:default}:sleep") == 3)
        await client.put([a_job()])
        done, _ = await asyncio.wait(waits, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        assert waits[0] not in done
        assert server.command("HLEN", "dray:{dray:default}:sleep") == 2
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        for broker in (*workers, client):
            await broker.close()

    asyncio.run(test())


def test_a_session_that_outlived_its_server_hears_that_it_is_lost(server: Server) -> None:
    async def test() -> None:
        broker = await connect(url(server))
        await broker.put([a_job()])
        await broker.renew([Beat("ann", 60_000)])
        [taken] = await take(broker, 1)
        server.command("FLUSHALL")
        assert (await broker.settle("ann", [succeeded(taken)]))[0].verdict == Verdict.REFUSED
        assert (await broker.wait(Interest(session="ann"), PATIENCE)).told
        [heard] = await broker.renew([Beat("ann", 60_000)])
        assert heard.opened
        await broker.close()

    asyncio.run(test())


# opening


def refuses(address: str, blocking: bool, error: type[BrokerError], says: str) -> None:
    async def test() -> None:
        start = time.monotonic()
        with pytest.raises(error, match=says):
            await connect(address, blocking=blocking)
        assert time.monotonic() - start < 5

    play(blocking, test)


def test_an_address_where_nobody_listens(blocking: bool) -> None:
    refuses(f"redis://127.0.0.1:{free_port()}", blocking, BrokerAway, "is the server running")


def test_a_socket_that_is_not_there(blocking: bool, tmp_path: Path) -> None:
    refuses(f"redis+unix://{tmp_path}/none.sock", blocking, BrokerAway, "cannot be reached")


def test_a_server_that_says_nothing(blocking: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        refuses(f"redis://127.0.0.1:{port}?connect_timeout=200ms", blocking, BrokerAway, "answer")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"-ERR unknown command 'HELLO'\r\n", "too old"),
        (
            b"*6\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n6.0.9\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n",
            "6.0.9",
        ),
        (b"+OK\r\n", "another kind of server"),
    ],
    ids=["before 6", "6.0", "stranger"],
)
def test_a_server_that_dray_cannot_use(blocking: bool, answer: bytes, says: str) -> None:
    """These servers cannot be had any more: what they would say is enough."""
    with socket.create_server(("127.0.0.1", 0)) as old:

        def serve() -> None:
            client, _ = old.accept()
            client.recv(1000)
            client.sendall(answer)
            client.recv(1000)
            client.close()

        thread = threading.Thread(target=serve)
        thread.start()
        refuses(f"redis://127.0.0.1:{old.getsockname()[1]}", blocking, BrokerError, says)
        thread.join()


def test_a_server_that_does_not_speak_tls(server: Server, blocking: bool) -> None:
    refuses(
        f"rediss://127.0.0.1:{server.port}?connect_timeout=1s", blocking, BrokerError, "TLS|cannot be reached"
    )


def test_a_wrong_password_and_none_at_all(tmp_path: Path, blocking: bool) -> None:
    with running("valkey", tmp_path / "locked", "--requirepass", "secret") as locked:
        refuses(f"redis://:wrong@127.0.0.1:{locked.port}", blocking, BrokerError, "password")
        refuses(f"redis://127.0.0.1:{locked.port}", blocking, BrokerError, "password")

        async def test() -> None:
            broker = await connect(f"redis://:secret@127.0.0.1:{locked.port}", blocking=blocking)
            assert len(await broker.put([a_job()])) == 1
            await broker.close()

        play(blocking, test)


def test_a_namespace_that_a_newer_dray_wrote_or_that_is_not_drays(server: Server, blocking: bool) -> None:
    server.command("SET", "dray:{dray}:layout", "99")
    refuses(url(server), blocking, NewerLayout, "upgrade")
    server.command("SET", "dray:{dray}:layout", "something else")
    refuses(url(server), blocking, ForeignStore, "another namespace")
    server.command("DEL", "dray:{dray}:layout")
    server.command("HSET", "dray:{dray}:layout", "a", "b")
    refuses(url(server), blocking, ForeignStore, "not dray's")


def test_a_replica_cannot_be_written(server: Server, tmp_path: Path) -> None:
    async def test() -> None:
        with running("valkey", tmp_path / "replica", "--replicaof", f"127.0.0.1 {server.port}") as replica:
            broker = await connect(url(replica))
            with pytest.raises(BrokerReadOnly, match="replica"):
                await broker.put([a_job()])
            await broker.close()

    asyncio.run(test())


def test_a_name_that_moves_with_the_primary_is_followed(
    server: Server, blocking: bool, tmp_path: Path
) -> None:
    """The old one goes on as a replica and keeps its connections: only its answers show it."""

    async def test() -> None:
        with running("valkey", tmp_path / "other") as other, proxy(server.port) as name:
            broker = await connect(f"redis://127.0.0.1:{name.port}", blocking=blocking)
            await broker.put([a_job("first")])
            server.command("REPLICAOF", "127.0.0.1", str(other.port))
            name.lead_to(other.port)
            with pytest.raises(BrokerReadOnly, match="replica"):
                await broker.put([a_job("second")])
            assert [reply.verdict for reply in await broker.put([a_job("second")])] == ["created"]
            await broker.close()

    play(blocking, test)
