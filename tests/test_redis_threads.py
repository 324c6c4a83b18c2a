"""Threads share connections to a server: `pool_size` for calls, and one more however many wait."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from by_hand import Hand
from redis_server import Server, need, running, wait_until

from dray import App, BrokerAway, InvalidInput, JobTimeout

PATIENCE = 60.0


@pytest.fixture(params=["alone", "cluster"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    need("valkey")
    with running("valkey", tmp_path / "server", cluster=request.param == "cluster") as server:
        yield server


@pytest.fixture
def app(server: Server) -> Iterator[App]:
    with_pool = make_app(server, pool_size=2)
    yield with_pool
    with_pool.close()


def make_app(server: Server, options: str = "", **settings: Any) -> App:
    app = App("shop", broker=f"redis://127.0.0.1:{server.port}{options}", **settings)
    app.task(name="add")(lambda a: a)
    return app


def connections(server: Server) -> int:
    """Of clients over the network; `Server.command` comes through the file system."""
    return sum(b"addr=127.0.0.1" in line for line in server.command("CLIENT", "LIST").splitlines())


def commands(server: Server) -> int:
    lines = server.command("INFO", "stats").split()
    return int(
        next(line for line in lines if line.startswith(b"total_commands_processed")).partition(b":")[2]
    )


def together(count: int, work: Callable[[int], object]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    return threads


def join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"


def test_one_connection_serves_any_number_of_threads_that_wait(server: Server, app: App) -> None:
    results: dict[int, int] = {}
    jobs = app.enqueue_many([app.call("add", n) for n in range(60)])
    watched = 0

    def wait(n: int) -> None:
        results[n] = jobs[n].get(timeout=PATIENCE)

    threads = together(60, wait)
    link = app.client.thread_link()
    wait_until(lambda: len(link.waiters._asleep) == 59, "not all wait", PATIENCE)  # and one listens
    wait_until(lambda: connections(server) == 3, "two for calls, one that listens", PATIENCE)
    before, began = commands(server), time.monotonic()
    while time.monotonic() - began < 3:  # a stretch in which each of them used to ask for itself
        watched += 1
        time.sleep(0.1)
        assert connections(server) == 3
    a_second = (commands(server) - before - watched) / (time.monotonic() - began)
    assert a_second < 10, "whatever the number that waits"
    with Hand(app) as hand:
        for taken in hand.take():
            hand.succeed(taken, hand.call(taken))
    join(threads)
    assert results == {n: n for n in range(60)}


def test_threads_that_wait_for_work_share_it_too(server: Server, app: App) -> None:
    got: list[str] = []

    def fetch(_: int) -> None:
        got.extend(job.id for job in app.external.fetch(["default"], wait="60s"))

    threads = together(12, fetch)
    wait_until(lambda: server.command("HLEN", "dray:{shop:default}:sleep") == 12, "not all sleep", PATIENCE)
    assert connections(server) <= 3
    jobs = [app.enqueue("add", n) for n in range(12)]
    join(threads)
    assert sorted(got) == sorted(job.id for job in jobs)
    assert connections(server) <= 3


@pytest.mark.parametrize("size", [1, 4])
def test_threads_wait_for_a_free_connection(server: Server, size: int) -> None:
    app = make_app(server, f"?pool_size={size}", pool_size=7)  # the URL goes first
    most = 0
    ids: list[str] = []

    def produce(n: int) -> None:
        ids.extend(app.enqueue("add", 100 * n + k).id for k in range(25))

    threads = together(30, produce)
    while any(thread.is_alive() for thread in threads):
        most = max(most, connections(server))
    join(threads)
    assert len(set(ids)) == len(app.jobs.find(limit=None)) == 750
    assert most <= size
    app.close()
    wait_until(lambda: connections(server) == 0, "connections are left", PATIENCE)


def test_a_pool_size_that_makes_no_sense_is_refused(server: Server) -> None:
    for wrong in ("0", "-1", "many", "10001", ""):
        with pytest.raises(InvalidInput, match="pool_size"):
            make_app(server, f"?pool_size={wrong}").jobs.find()


def test_threads_behind_a_server_that_stands_still_fail_in_time_and_go_on_later(server: Server) -> None:
    app = make_app(server, pool_size=1, read_timeout="300ms", connect_timeout="300ms")
    job = app.enqueue("add", 1)
    failed: list[BrokerAway] = []

    def ask(_: int) -> None:
        try:
            job.status()
        except BrokerAway as error:
            failed.append(error)

    server.freeze()
    began = time.monotonic()
    join(together(6, ask))
    assert len(failed) == 6
    assert time.monotonic() - began < 30
    server.thaw()
    wait_until(lambda: _succeeds(job.status), "it does not answer again", PATIENCE)
    app.close()


def _succeeds(call: Callable[[], object]) -> bool:
    try:
        call()
    except BrokerAway:
        return False
    return True


class Stop(BaseException):
    """Thrown into a thread, as a timeout of a worker's thread is."""


def throw(thread: threading.Thread) -> None:
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Stop))


def test_a_thread_that_is_stopped_in_a_call_leaves_its_answer_to_no_other(server: Server) -> None:
    app = make_app(server, pool_size=1)
    first, second = app.enqueue("add", 1), app.enqueue("add", 2)
    app.enqueue("add", 3).cancel()
    stopped: list[bool] = []

    def ask(_: int) -> None:
        try:
            first.info()
        except Stop:
            stopped.append(True)

    server.freeze()
    (thread,) = together(1, ask)
    time.sleep(0.3)  # it waits for the answer; if it does not yet, the test is merely easier
    throw(thread)
    server.thaw()
    join([thread])
    assert stopped == [True]
    assert second.info().id == second.id
    assert first.info().id == first.id
    app.close()


def test_when_the_thread_that_listens_is_stopped_another_takes_over(app: App) -> None:
    jobs = [app.enqueue("add", n) for n in range(3)]
    results: list[int] = []

    def give_up(_: int) -> None:
        with pytest.raises(Stop):
            jobs[0].get(timeout=PATIENCE)

    def wait(n: int) -> None:
        results.append(jobs[n + 1].get(timeout=PATIENCE))

    waiters = app.client.thread_link().waiters
    leader = together(1, give_up)
    wait_until(lambda: waiters._leader is not None, "nobody listens", PATIENCE)
    others = together(2, wait)
    wait_until(lambda: len(waiters._asleep) == 2, "not all wait", PATIENCE)
    throw(leader[0])
    with Hand(app) as hand:  # any message wakes the thread, which then finds the exception thrown at it
        for taken in hand.take():
            hand.succeed(taken, hand.call(taken))
    join([*leader, *others])
    assert sorted(results) == [1, 2]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_forked_while_threads_wait_has_connections_of_its_own(server: Server, app: App) -> None:
    from test_client import in_child

    mine = app.enqueue("add", 1)
    results: list[int] = []
    threads = together(4, lambda _: results.append(mine.get(timeout=PATIENCE)))
    wait_until(lambda: len(app.client.thread_link().waiters._asleep) == 3, "not all wait", PATIENCE)

    def child() -> None:
        job = app.enqueue("add", 2)
        with pytest.raises(JobTimeout):
            job.get(timeout=0.1)
        assert mine.status() == "ready"

    assert in_child(child) == ""
    with Hand(app) as hand:
        for taken in hand.take():
            hand.succeed(taken, hand.call(taken))
    join(threads)
    assert results == [1] * 4
