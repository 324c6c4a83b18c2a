"""What an executor notes of its runs: how many, how long they took and waited, the CPU time they used.

Every run is counted; up to `PER_SECOND` of each task are measured in full (some 5 µs each), which bounds what
measuring costs however many there are: a job that is only counted costs a tenth of a microsecond.

CPU time is that of the thread, while it was inside the run: for a coroutine, step by step. What a job leaves
to threads and tasks of its own is not seen. A run in a child process is measured there, with its memory.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final

from dray.durations import Sketch
from dray.job import Job, Outcome, OutcomeKind, Taken
from dray.stats import Histogram, Tallies, Tally
from dray.worker.logs import FAILURES

if TYPE_CHECKING:
    from dray.task import Task
    from dray.worker.live import Live

PER_SECOND: Final = 256
"""How many runs of a task are measured within a second, if few tasks are busy."""
IN_ALL: Final = 512
"""How many of all tasks together, as far as `AT_LEAST` is left for each."""
AT_LEAST: Final = 16
EVERY_STEP: Final = 512
"""So many steps of a coroutine are measured one by one; then every `SKIPS`th stands for its neighbours."""
SKIPS: Final = 16
LONGEST_WAIT: Final = 30 * 86_400.0
"""Seconds; whatever seems to have waited longer has an id of somebody else's making."""

Clock = Callable[[], float]


class Meter:
    """Measures one run. All times in seconds."""

    __slots__ = (
        "_cpu_clock",
        "_mark",
        "_scale",
        "_steps",
        "began",
        "clock",
        "cpu",
        "memory",
        "took",
        "waited",
    )

    def __init__(self, clock: Clock, cpu_clock: Clock, waited: float | None) -> None:
        self.clock, self._cpu_clock, self.waited = clock, cpu_clock, waited
        self.began = clock()
        self.took: float | None = None
        """Where it was measured elsewhere; else it ends when its executor hears of it."""
        self.cpu = 0.0
        self.memory = 0
        self._steps = 0
        self._mark: float | None = None
        self._scale = 1

    def around(self, act: Callable[[], Any]) -> Callable[[], Any]:
        """The same, measured: for what is called in a thread."""

        def measured() -> Any:
            if not self._steps:
                self.began = self.clock()
            mark = self._cpu_clock()
            try:
                return act()
            finally:
                self.cpu += self._cpu_clock() - mark
                if not self._steps:
                    self.took = self.clock() - self.began

        return measured

    def step_into(self) -> None:
        steps = self._steps = self._steps + 1
        if steps == 1:
            self.began = self.clock()
        if steps <= EVERY_STEP:
            self._mark = self._cpu_clock()
        elif steps % SKIPS == 0:
            self._mark, self._scale = self._cpu_clock(), SKIPS

    def step_out(self) -> None:
        """The run comes back to the event loop, or has ended in the midst of its last step."""
        if self._mark is not None:
            self.cpu += (self._cpu_clock() - self._mark) * self._scale
            self._mark = None

    def end(self) -> float:
        """How long it took."""
        self.step_out()
        return self.clock() - self.began if self.took is None else self.took


class Steps(Coroutine[Any, Any, None]):
    """A coroutine whose steps are measured."""

    __slots__ = ("_inner", "_meter")

    def __init__(self, inner: Coroutine[Any, Any, None], meter: Meter) -> None:
        self._inner, self._meter = inner, meter

    def send(self, value: Any) -> Any:
        meter = self._meter
        meter.step_into()
        try:
            return self._inner.send(value)
        finally:
            meter.step_out()

    def throw(self, *error: Any) -> Any:
        meter = self._meter
        meter.step_into()
        try:
            return self._inner.throw(*error)
        finally:
            meter.step_out()

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._inner.__await__()


class Account:
    """One task's book."""

    __slots__ = (
        *("cpu", "ends", "failed", "memory", "metered", "runs", "speculate", "succeeded"),
        *("told", "took", "up_to", "waited"),
    )

    def __init__(self, speculate: bool) -> None:
        self.speculate = speculate
        self.runs = self.told = 0
        """Started so far, and of these told so far."""
        self.up_to = PER_SECOND
        """Runs with a higher number are not measured, until the next second."""
        self.succeeded: defaultdict[str, int] = defaultdict(int)
        """Runs that did, by queue."""
        self._clear()

    def _clear(self) -> None:
        self.took: list[float] = []
        self.waited: list[float] = []
        self.failed = self.metered = self.memory = 0
        self.cpu = 0.0
        self.succeeded.clear()
        self.ends: dict[str, dict[str, int]] = {}
        """Runs that came to anything else: queue → outcome → how many."""

    def note_end(self, queue: str, outcome: str) -> None:
        """For any but a success, which happens too often for a call."""
        ends = self.ends.setdefault(queue, {})
        ends[outcome] = ends.get(outcome, 0) + 1

    @property
    def busy(self) -> bool:
        """Whether runs were started since the last time."""
        return self.runs > self.told

    def fetch(self, share: int) -> Tally | None:
        """What is new; None if nothing is. The next `share` runs are measured."""
        new = self.runs - self.told
        self.told, self.up_to = self.runs, self.runs + share
        ended = self.succeeded or self.ends or self.took or self.waited or self.failed or self.metered
        if not new and not ended:
            return None
        took, waited, lasted, delays = Sketch(), Sketch(), Histogram(), Histogram()
        took.add(self.took)
        waited.add(self.waited)
        lasted.add(self.took)
        delays.add(self.waited)
        for queue, count in self.succeeded.items():
            self.ends.setdefault(queue, {})[OutcomeKind.SUCCEEDED.value] = count
        tally = Tally(
            runs=new,
            failed=self.failed,
            took=took,
            waited=waited,
            cpu=self.cpu,
            metered=self.metered,
            memory=self.memory,
            speculate=self.speculate,
            ends=self.ends,
            lasted=lasted,
            delays=delays,
        )
        self._clear()
        return tally


class Accounts:
    """The books of one executor. It belongs to the event loop."""

    def __init__(
        self,
        clock: Clock = time.perf_counter,
        cpu_clock: Clock = time.thread_time,
        wall: Callable[[], int] | None = None,
    ) -> None:
        self._clock, self._cpu_clock, self._wall = clock, cpu_clock, wall or _wall_clock
        self._books: dict[str, Account] = {}
        self.lag = 0.0
        """The longest time by which the event loop was late since it was last told, in seconds."""

    def open(self, task: Task[..., Any]) -> Account:
        """The book of a task."""
        return self._books.setdefault(task.name, Account(task.options.speculate))

    def meter(self, taken: Taken) -> Meter:
        """For a run that begins now."""
        wait = waited(taken.job, self._wall()) if taken.run == 1 else None
        return Meter(self._clock, self._cpu_clock, wait)

    def ended(self, live: Live, meter: Meter, outcome: Outcome) -> None:
        book, took = self._books[live.taken.job.task], meter.end()
        if meter.waited is not None:
            book.waited.append(meter.waited)
        if outcome.kind is OutcomeKind.SUCCEEDED:
            book.took.append(took)
        elif outcome.kind not in FAILURES:
            return
        book.cpu += meter.cpu
        book.metered += 1
        book.memory = max(book.memory, meter.memory)

    def failed(self, task: str) -> None:
        self._books[task].failed += 1

    def fetch(self) -> tuple[Tallies, float]:
        """What is new since the last time, and the loop's lag."""
        busy = sum(book.busy for book in self._books.values())
        share = max(AT_LEAST, min(PER_SECOND, IN_ALL // (busy or 1)))
        found = {name: book.fetch(share) for name, book in self._books.items()}
        lag, self.lag = self.lag, 0.0
        return {name: tally for name, tally in found.items() if tally is not None}, lag


def waited(job: Job, now: int) -> float | None:
    """Seconds since it was enqueued, or due; None if that is not known."""
    since = max(job.created or made_at(job.id) or 0, job.due or 0)
    seconds = max(0, now - since) / 1000
    return seconds if since and seconds < LONGEST_WAIT else None


def made_at(id: str) -> int | None:
    """When a generated id was made, in milliseconds since the epoch: it ends in a UUID of version 7."""
    if len(id) < 34 or id[-33] != ":" or id[-20] != "7":
        return None
    try:
        return int(id[-32:-20], 16)
    except ValueError:
        return None


def _wall_clock() -> int:
    return time.time_ns() // 1_000_000
