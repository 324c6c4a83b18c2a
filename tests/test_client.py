"""Links: threads, event loops, forks, closing, and the end of the program. Nothing leaks or is shared."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from by_hand import Hand, Say, in_thread

from dray import App, BrokerAway, JobTimeout
from dray.client import waiters as waiters_module
from dray.client.link import Link

pytest_plugins = ["shop"]


@pytest.fixture
def add(app: App) -> Any:
    @app.task
    def add(a: int, b: int = 0) -> int:
        return a + b

    return add


@pytest.fixture
def sqlite_app(tmp_path: Path) -> App:
    app = App("shop", broker=f"sqlite:///{tmp_path}/jobs.db")
    app.task(name="add")(lambda a, b=0: a + b)
    return app


def open_files(folder: Path, pid: int | str = "self") -> list[str]:
    """What a process has open below a folder."""
    links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    return sorted(link for link in links if link.startswith(str(folder)))


# threads and loops


def test_each_thread_has_a_link_of_its_own_and_keeps_it(app: App, add: Any) -> None:
    links: list[object] = []

    def look() -> None:
        add.enqueue(1)
        first = app.client.thread_link()
        add.enqueue(2)
        links.append(first if first is app.client.thread_link() else None)

    for thread in [threading.Thread(target=look) for _ in range(3)]:
        thread.start()
        thread.join()
    assert None not in links
    assert len({id(link) for link in [*links, app.client.thread_link()]}) == 4


def test_a_thread_that_ends_takes_its_connection_and_its_bell_with_it(
    sqlite_app: App, tmp_path: Path
) -> None:
    app = sqlite_app
    job = app.enqueue("add", 1)

    def wait() -> None:
        with pytest.raises(JobTimeout):
            app.job(job.id).get(timeout=0.01)

    counts = []
    for _ in range(6):
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()
        counts.append(len(open_files(tmp_path)))
    # SQLite itself keeps the closed handle of one file for the next to open it, as its locks demand.
    assert counts == counts[:1] * 6
    assert not list((tmp_path / "jobs.db-bells").glob("*"))
    app.close()
    assert open_files(tmp_path) == []


def test_blocking_calls_work_in_a_thread_that_runs_an_event_loop(app: App, add: Any) -> None:
    async def main() -> tuple[int, int]:
        blocking, awaited = add.enqueue(1), await add.aenqueue(2)
        assert (blocking.status(), await awaited.astatus()) == ("ready", "ready")
        with Hand(app) as hand:
            hand.work()
        return blocking.get(timeout=5), await awaited.aget(timeout=5)

    assert asyncio.run(main()) == (1, 2)


def test_one_loop_after_another_leaves_nothing_behind(sqlite_app: App, tmp_path: Path) -> None:
    app = sqlite_app

    async def main() -> None:
        job = await app.aenqueue("add", 1)
        with pytest.raises(JobTimeout):
            await job.aget(timeout=0.01)

    for _ in range(5):
        asyncio.run(main())
    gc.collect()
    assert open_files(tmp_path) == [], "a loop that is gone has taken its link along"
    assert len(app.client._loops) == 0


def test_loops_in_several_threads_at_once(app: App, add: Any) -> None:
    results: list[Any] = []

    async def main() -> None:
        jobs = await asyncio.gather(*[add.aenqueue(n) for n in range(10)])
        results.extend(await asyncio.gather(*[job.aget(timeout=30) for job in jobs]))

    threads = [threading.Thread(target=lambda: asyncio.run(main())) for _ in range(4)]
    for thread in threads:
        thread.start()
    with Hand(app) as hand:
        deadline = time.monotonic() + 30
        while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
            hand.work()
            time.sleep(0.01)
    for thread in threads:
        thread.join()
    assert sorted(results) == sorted(list(range(10)) * 4)


def test_tasks_that_open_the_link_of_a_loop_together_share_one(app: App, add: Any) -> None:
    opened = 0
    inner = app.client.open

    async def slowly(blocking: bool) -> Any:
        nonlocal opened
        if not blocking:
            await asyncio.sleep(0.01)
            opened += 1
        return await inner(blocking)

    app.client.open = slowly

    async def main() -> set[int]:
        await asyncio.gather(*[add.aenqueue(n) for n in range(5)])
        return {id(await app.client.loop_link()) for _ in range(3)}

    assert len(asyncio.run(main())) == 1
    assert opened == 5, "who came too late let go of his"
    assert len(app.jobs.find()) == 5


def test_a_wait_that_is_cancelled_leaves_no_task_behind(app: App, add: Any) -> None:
    async def main() -> None:
        job = await add.aenqueue(1)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(job.aget(), 0.01)
        await asyncio.sleep(0.01)
        assert len(asyncio.all_tasks()) == 1
        other = asyncio.create_task(job.aget(timeout=20))
        given_up = asyncio.create_task(job.aget())
        await asyncio.sleep(0.01)
        given_up.cancel()
        await asyncio.sleep(0.01)
        thread = in_thread(lambda: Hand(app).work())
        assert await other == 1, "who still waits is told"
        thread.join()

    asyncio.run(main())


def test_a_thread_that_waits_no_more_hands_over_to_another(app: App, add: Any) -> None:
    """One of them listens for all; whichever that is may leave first."""
    jobs = [add.enqueue(n) for n in range(4)]
    results: list[int] = []

    def wait(n: int) -> None:
        if n % 2:
            results.append(jobs[n].get(timeout=30))
        else:
            with pytest.raises(JobTimeout):
                jobs[n].get(timeout=0.2)

    threads = [threading.Thread(target=wait, args=(n,)) for n in range(4)]
    waiters = app.client.thread_link().waiters
    for count, thread in enumerate(threads):
        thread.start()
        deadline = time.monotonic() + 30
        while len(waiters._asleep) + (waiters._leader is not None) <= count and time.monotonic() < deadline:
            if any(not one.is_alive() for one in threads[: count + 1]):
                break  # it has given up already
            time.sleep(0.005)
    threads[0].join()
    threads[2].join()
    with Hand(app) as hand:
        hand.work()
    for thread in threads:
        thread.join(30)
    assert sorted(results) == [1, 3]
    assert (waiters._leader, waiters._asleep, waiters.by_job) == (None, {}, {})


# a broker that goes away


def test_a_waiter_outlives_a_broker_that_is_away_for_a_while(app: App, add: Any, say: Say) -> None:
    away = [True] * 3
    inner = app.client.open

    class Shaky:
        def __init__(self, broker: Any) -> None:
            self._broker = broker

        async def wait(self, interest: Any, timeout: float) -> Any:
            if away:
                away.pop()
                raise BrokerAway("gone for a walk")
            return await self._broker.wait(interest, timeout)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._broker, name)

    async def open(blocking: bool) -> Any:
        return Shaky(await inner(blocking))

    app.client.open = open
    job = say(add.enqueue, 1)
    thread = in_thread(lambda: Hand(app).work(), after=0.1)
    assert say(job.get, timeout=30) == 1
    assert len(away) < 3
    thread.join()


def test_word_that_got_lost_is_made_up_for_by_reading_again(
    app: App, add: Any, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiters_module, "LOOK_AGAIN", 0.1)
    inner = app.client.open

    async def open(blocking: bool) -> Any:
        broker: Any = await inner(blocking)
        wait = broker.wait

        async def deaf(interest: Any, timeout: float) -> Any:
            woken = await wait(interest, min(timeout, 0.02))
            return type(woken)()

        broker.wait = deaf
        return broker

    app.client.open = open
    job = say(add.enqueue, 1)
    thread = in_thread(lambda: Hand(app).work(), after=0.05)
    assert say(job.get, timeout=30) == 1
    thread.join()


def test_an_error_that_ends_the_waiting_reaches_every_waiter(app: App, add: Any) -> None:
    inner = app.client.open

    async def open(blocking: bool) -> Any:
        broker: Any = await inner(blocking)

        async def broken(interest: Any, timeout: float) -> Any:
            await asyncio.sleep(0.01)
            raise ZeroDivisionError("a bug")

        broker.wait = broken
        return broker

    app.client.open = open

    async def main() -> list[Any]:
        jobs = [await add.aenqueue(n) for n in range(3)]
        return await asyncio.gather(*[job.aget() for job in jobs], return_exceptions=True)

    assert [type(one) for one in asyncio.run(main())] == [ZeroDivisionError] * 3


# closing


def test_a_close_in_another_thread_leaves_a_call_its_connection(sqlite_app: App, add: Any) -> None:
    def call(link: Link) -> Any:
        broker = link.broker
        del link

        async def read() -> list[str]:
            in_thread(sqlite_app.close, after=0).join()
            gc.collect()
            return list(await broker.queue_names())

        return read()

    sqlite_app.enqueue("add", 1)
    assert sqlite_app.client.block(call) == ["default"]


def test_close_lets_go_of_everything_and_the_next_call_opens_anew(sqlite_app: App, tmp_path: Path) -> None:
    app = sqlite_app
    hold, looked = threading.Event(), threading.Event()
    states: list[str] = []

    def idle() -> None:
        job = app.enqueue("add", 1)
        looked.set()
        hold.wait(30)
        states.append(job.status())

    thread = threading.Thread(target=idle)
    thread.start()
    looked.wait(30)
    app.enqueue("add", 2)
    asyncio.run(app.aenqueue("add", 3))
    assert open_files(tmp_path) != []
    app.close()
    gc.collect()
    assert open_files(tmp_path) == [], "those of other threads and of loops, too"
    hold.set()
    thread.join()
    assert states == ["ready"]
    assert len(app.jobs.find()) == 3
    app.close()
    app.close()


def test_closing_does_not_pull_the_connection_from_under_a_thread_that_waits(app: App, add: Any) -> None:
    job = add.enqueue(1)
    results: list[int] = []
    waiting = threading.Thread(target=lambda: results.append(job.get(timeout=30)))
    waiting.start()
    time.sleep(0.1)
    for _ in range(3):
        app.close()
        time.sleep(0.02)
    with Hand(app) as hand:
        hand.work()
    waiting.join()
    assert results == [1]


# fork


def in_child(body: Callable[[], object]) -> str:
    """Run something in a forked child; what went wrong there, or nothing."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)  # a child that hangs must not outlive the test
        answer = b""
        try:
            body()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}".encode()
        os.write(writing, answer)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert status == 0
    return answer.decode()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_parent_and_child_both_go_on_after_a_fork(app: App, add: Any) -> None:
    mine = add.enqueue(1)
    asyncio.run(add.aenqueue(2))
    parents = app.client.thread_link()

    def child() -> None:
        assert mine.status() == "ready"
        link = app.client.thread_link()
        assert link is not parents
        assert link.broker is not parents.broker
        for n in range(10):
            add.enqueue(n)
        asyncio.run(add.aenqueue(2))
        with pytest.raises(JobTimeout):
            mine.get(timeout=0.02)

    for _ in range(2):
        assert in_child(child) == ""
        assert app.client.thread_link() is parents
        add.enqueue(3)
    kept = 2 + 2 if app.settings.broker_url == "memory://" else 2 + 2 + 22
    assert len(app.jobs.find(limit=None)) == kept, "a store in memory is each process's own"
    with Hand(app) as hand:
        assert hand.work() == kept
    assert mine.get(timeout=5) == 1


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_uses_no_connection_that_it_inherited(sqlite_app: App, tmp_path: Path) -> None:
    app = sqlite_app
    job = app.enqueue("add", 1)
    with pytest.raises(JobTimeout):
        job.get(timeout=0.01)
    assert len(open_files(tmp_path)) >= 3, "database, log and bell"
    parents = app.client.thread_link().broker._database._connection  # type: ignore[attr-defined]

    def child() -> None:
        app.enqueue("add", 2)
        database = app.client.thread_link().broker._database  # type: ignore[attr-defined]
        assert database._connection is not parents
        with pytest.raises(Exception, match="closed"):
            parents.execute("SELECT 1")

    assert in_child(child) == ""
    assert len(app.jobs.find()) == 2
    app.close()


# the end of the program

PROGRAMS = {
    "blocking": "job = add.enqueue(1)\ntry: job.get(timeout=0.01)\nexcept dray.JobTimeout: pass\n",
    "awaited": "async def main():\n    job = await add.aenqueue(1)\n"
    "    try: await job.aget(timeout=0.01)\n    except dray.JobTimeout: pass\n"
    "asyncio.run(main())\nasyncio.run(main())\n",
    "loop closed by hand": "loop = asyncio.new_event_loop()\n"
    "loop.run_until_complete(add.aenqueue(1))\nloop.close()\n",
    "loop cut off while waiting": "async def main():\n    job = await add.aenqueue(1)\n"
    "    asyncio.create_task(job.aget())\n    await asyncio.sleep(0.02)\nasyncio.run(main())\n",
    "threads": "def wait():\n    try: add.enqueue(1).get(timeout=0.05)\n    except dray.JobTimeout: pass\n"
    "threads = [threading.Thread(target=wait) for _ in range(4)]\n"
    "[t.start() for t in threads]\n[t.join() for t in threads]\n",
    "a daemon thread that waits": "wait = lambda: add.enqueue(1).get()\n"
    "threading.Thread(target=wait, daemon=True).start()\n"
    "time.sleep(0.1)\n",
    "a generator left half-way": "job = add.enqueue(1)\njob.cancel()\n"
    "left = dray.as_completed([job, add.enqueue(2)])\nnext(left)\n",
    "closed": "add.enqueue(1)\napp.close()\n",
    "an error": "add.enqueue(1)\nraise SystemExit(0)\n",
    "fork": "add.enqueue(1)\npid = os.fork()\nadd.enqueue(2)\nif pid: os.waitpid(pid, 0)\n",
    "at exit": "import atexit\natexit.register(lambda: add.enqueue(2))\nadd.enqueue(1)\n",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_end_without_a_word_of_warning(name: str, tmp_path: Path) -> None:
    urls = ["memory://", f"sqlite:///{tmp_path}/jobs.db"]
    program = "import asyncio, os, sys, threading, time, dray\n"
    program += "app = dray.App('t', broker=sys.argv[1])\n@app.task\ndef add(a: int) -> int: return a\n"
    program += PROGRAMS[name]
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-X", "dev", "-c", program, url],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for url in urls
    ]
    for process in running:
        said, _ = process.communicate(timeout=60)
        # Development mode also tells of steps of the loop that took long: true of a busy machine.
        said = "".join(line for line in said.splitlines(True) if not line.startswith("Executing <"))
        assert (process.returncode, said) == (0, "")
    assert not list((tmp_path / "jobs.db-bells").glob("*")) or name == "a daemon thread that waits"
