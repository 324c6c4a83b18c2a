"""What runs inside a subject's environment: the driver, and what its jobs write down. Standard library only.

`python -m bench.peers.inside MODULE` imports a module of bench/peers/subjects, makes its `Producer`, and
obeys lines of JSON on stdin, each answered by one line on stdout. A job's number tells its phase and its
place in it; jobs leave their marks in files of their process, which the bench reads from outside.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import mmap
import os
import random
import sys
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

SHIFT = 24
"""A job's number is its phase, shifted by this, plus its place."""
PLACES = (1 << SHIFT) - 1
HEAD = 16
"""Bytes before the marks: first start and last end, as monotonic nanoseconds."""
ROOM = 1 << 21
"""Jobs that a phase may have."""
PROBES = 1 << 16
AT_ONCE = 100
"""Calls under way at a time when enqueueing concurrently."""
BATCH = 1000
"""Jobs per call when enqueueing in bulk."""
IO_SECONDS = 0.010

MODES = {"blocking": "put", "awaited": "aput", "concurrent": "aput", "bulk": "put_many", "abulk": "aput_many"}
"""How to enqueue → the method that it takes."""


class Book:
    """What this process did in a phase."""

    def __init__(self, name: str, size: int) -> None:
        path = Path(os.environ["BENCH_MARKS"]) / f"{name}-{os.getpid()}"
        with path.open("a+b") as file:
            file.truncate(size)
            self.bytes = mmap.mmap(file.fileno(), size)
        self.times = memoryview(self.bytes).cast("q")


_books: dict[int, Book] = {}
_delays: dict[int, Book] = {}


def _forget() -> None:
    _books.clear()
    _delays.clear()


os.register_at_fork(after_in_child=_forget)


def begin(n: int) -> Book:
    """A job starts: the first one of its phase in this process opens the book."""
    phase = n >> SHIFT
    book = _books.get(phase)
    if book is None:
        book = _books[phase] = Book(f"marks-{phase}", HEAD + ROOM)
        book.times[0] = time.monotonic_ns()
    return book


def mark(n: int) -> None:
    """A job has run."""
    book = begin(n)
    book.bytes[HEAD + (n & PLACES)] += 1
    book.times[1] = time.monotonic_ns()


def note(n: int, payload: str) -> None:
    """A probe has started: how long after it was sent."""
    now = time.monotonic_ns()
    phase = n >> SHIFT
    book = _delays.get(phase)
    if book is None:
        book = _delays[phase] = Book(f"delays-{phase}", PROBES * 8)
    book.times[n & PLACES] = now - int(payload[:20])


class Producer:
    """How a subject enqueues; what it cannot do it leaves out. Tasks: noop, plain, io, probe and trip."""

    async def open(self) -> None:
        """Connect whatever belongs to the event loop."""

    def put(self, task: str, n: int, payload: str) -> Any:
        """One job, blocking; the answer is what `result` takes."""
        raise NotImplementedError

    async def aput(self, task: str, n: int, payload: str) -> Any:
        raise NotImplementedError

    def put_many(self, task: str, numbers: Sequence[int], payload: str) -> None:
        raise NotImplementedError

    async def aput_many(self, task: str, numbers: Sequence[int], payload: str) -> None:
        raise NotImplementedError

    def result(self, job: Any) -> Any:
        """Wait for a job's result."""
        raise NotImplementedError

    async def aresult(self, job: Any) -> Any:
        raise NotImplementedError

    def can(self, method: str) -> bool:
        return getattr(type(self), method) is not getattr(Producer, method)


class Driver:
    """Obeys commands with one producer and one event loop."""

    def __init__(self, producer: Producer, run: Callable[[Any], Any]) -> None:
        self._producer, self._run = producer, run
        self.modes = [how for how, method in MODES.items() if producer.can(method)]
        self.trips = producer.can("result") or producer.can("aresult")

    def obey(self, command: dict[str, Any]) -> dict[str, Any]:
        do = command.pop("do")
        answer: dict[str, Any] = getattr(self, f"do_{do}")(**command)
        return answer

    def do_enqueue(self, how: str, task: str, first: int, count: int, size: int) -> dict[str, Any]:
        """Enqueue `count` jobs and say how long it took."""
        payload = text(size)
        if how == "fill":
            how = next(one for one in ("bulk", "abulk", "concurrent", "blocking") if one in self.modes)
        numbers = range(first, first + count)
        work: Callable[..., Any] = getattr(self, f"_{how}")
        before, cpu = time.perf_counter(), time.process_time()
        done = work(task, numbers, payload)
        if done is not None:
            self._run(done)
        return {"seconds": time.perf_counter() - before, "cpu": time.process_time() - cpu, "count": count}

    def _blocking(self, task: str, numbers: range, payload: str) -> None:
        put = self._producer.put
        for n in numbers:
            put(task, n, payload)

    async def _awaited(self, task: str, numbers: range, payload: str) -> None:
        aput = self._producer.aput
        for n in numbers:
            await aput(task, n, payload)

    async def _concurrent(self, task: str, numbers: range, payload: str) -> None:
        aput, left = self._producer.aput, iter(numbers)

        async def caller() -> None:
            for n in left:
                await aput(task, n, payload)

        await asyncio.gather(*[caller() for _ in range(AT_ONCE)])

    def _bulk(self, task: str, numbers: range, payload: str) -> None:
        for part in _parts(numbers):
            self._producer.put_many(task, part, payload)

    async def _abulk(self, task: str, numbers: range, payload: str) -> None:
        for part in _parts(numbers):
            await self._producer.aput_many(task, part, payload)

    def do_probe(self, first: int, count: int, gap: float) -> dict[str, Any]:
        """One job at a time, each after a pause that no polling interval can keep step with."""
        for number, pause in enumerate(_pauses(gap, count)):
            time.sleep(pause)
            self._send("probe", first + number)
        return {"count": count}

    def _send(self, task: str, n: int) -> tuple[int, Any]:
        sent = time.monotonic_ns()
        payload = f"{sent:020d}" + "x" * 70
        if self._producer.can("put"):
            return sent, self._producer.put(task, n, payload)
        return sent, self._run(self._producer.aput(task, n, payload))

    def do_trip(self, first: int, count: int, gap: float) -> dict[str, Any]:
        """Enqueue and wait for the result, one after the other."""
        taken = []
        for number, pause in enumerate(_pauses(gap, count)):
            time.sleep(pause)
            sent, result = self._trip(first + number)
            taken.append((time.monotonic_ns() - sent) / 1e9)
            if result != first + number:
                raise RuntimeError(f"the result of {first + number} is {result!r}")
        return {"seconds": taken}

    def _trip(self, n: int) -> tuple[int, Any]:
        if self._producer.can("put") and self._producer.can("result"):
            sent, job = self._send("trip", n)
            return sent, self._producer.result(job)

        async def both() -> tuple[int, Any]:
            sent = time.monotonic_ns()
            job = await self._producer.aput("trip", n, f"{sent:020d}" + "x" * 70)
            return sent, await self._producer.aresult(job)

        done: tuple[int, Any] = self._run(both())
        return done

    def do_load(self, task: str, first: int, rate: float, seconds: float) -> dict[str, Any]:
        """Enqueue evenly, in a portion every 10 ms, for so long."""
        how = next(one for one in ("bulk", "abulk", "concurrent", "blocking") if one in self.modes)
        start, sent = time.perf_counter(), 0
        while (passed := time.perf_counter() - start) < seconds:
            due = int(rate * passed) - sent
            if due > 0:
                self.do_enqueue(how, task, first + sent, due, 90)
                sent += due
            time.sleep(0.01)
        return {"count": sent, "seconds": time.perf_counter() - start}


def text(size: int) -> str:
    """Letters that a compressor gains little from."""
    return b64encode(random.Random(size).randbytes(size))[:size].decode()


def _parts(numbers: range) -> Iterator[range]:
    for start in range(0, len(numbers), BATCH):
        yield numbers[start : start + BATCH]


def _pauses(gap: float, count: int) -> Iterator[float]:
    """Between half and one and a half of `gap`, evenly spread, in an order without a rhythm."""
    for number in range(count):
        yield gap * (0.5 + number * 0.618034 % 1)


def run_loop(work: Callable[[], Awaitable[None]]) -> None:
    """Run a worker's main coroutine, on uvloop where it is installed."""
    with _runner() as runner:
        runner.run(work())  # type: ignore[arg-type]


def _runner() -> asyncio.Runner:
    with suppress(ImportError):
        return asyncio.Runner(loop_factory=importlib.import_module("uvloop").new_event_loop)
    return asyncio.Runner()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not get between the answers
    subject = importlib.import_module(f"bench.peers.subjects.{sys.argv[1]}")
    with _runner() as runner:
        producer: Producer = subject.producer()
        runner.run(producer.open())
        driver = Driver(producer, runner.run)
        print(json.dumps({"modes": driver.modes, "trips": driver.trips}), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps(driver.obey(json.loads(line))), file=answers, flush=True)
    os._exit(0)  # clients that cannot be closed in peace are not measured either


if __name__ == "__main__":
    main()
